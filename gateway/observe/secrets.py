"""What a secret is called, what is stored in its place, and the secrets that were found in one exchange."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote, quote_plus

_WORDS = (
    *("authorization", "cookie", "password", "passwd", "secret", "api_key", "api-key", "apikey", "jwt", "passphrase"),
    *("credential", "access_key", "access-key", "accesskey", "private_key", "private-key", "privatekey"),
)
KEY_OWNERS = (
    *("openai", "cohere", "anthropic", "gemini", "google", "azure", "mistral", "deepseek", "voyage", "jina", "bedrock"),
    *("huggingface", "subscription", "account", "master", "signing", "encryption", "shared", "functions"),
)
"""Whose keys are secrets: `openAI_key` of the cluster's documentation, `Ocp-Apim-Subscription-Key`."""
_KEY_NAMES = tuple(f"{owner}{joint}key" for owner in KEY_OWNERS for joint in ("", "_", "-"))
# Begins with a literal, so that a text is searched quickly; then with what excludes most of OpenSearch's `"key"`.
_KEYS = re.compile("key(?<=[a-z_-]key)(?:" + "|".join(f"(?<={name})" for name in _KEY_NAMES) + ")")
_OWNERS = ("access", "refresh", "auth", "api", "session", "bearer")
"""Whose tokens are secrets, in the plural too."""
_COUNTS = re.compile(rf"{''.join(f'(?<!{word})(?<!{word}[_-])' for word in _OWNERS)}token(?:s(?![a-z])|i[sz])")
_COUNTED = re.compile(r"token[_-]?(?:counts?|limits?|filters?|chars|usage|budget)")
_QUICK = tuple(word.encode() for word in (*_WORDS, "bearer ", "basic "))
_PLURALS = tuple(f"{word}{joint}tokens".encode() for word in _OWNERS for joint in ("", "_", "-"))
_HARMLESS = (b"tokens", b"tokeniz")
_START = "[REDACTED length="
_MARKER = re.compile(r"\[REDACTED length=[0-9]+ sha256=[0-9a-f]{12}\]")
_HEX = re.compile("%[0-9A-F]{2}")
_LEAST = 8
"""Shortest secret, in characters, that is removed from other texts. A shorter one may be a word of them."""


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Return True if a header, parameter or member of this name holds a secret. A number of tokens is not a secret."""
    lowered = name.lower()
    if any(word in lowered for word in _WORDS) or _KEYS.search(lowered):
        return True
    return "token" in lowered and "token" in _COUNTED.sub("", _COUNTS.sub("", lowered))


def may_hold_secret(text: str) -> bool:
    """Return False if nothing in a text names a secret."""
    lowercase = text.lower()
    lowered = lowercase.encode("utf-8", "surrogatepass")
    if any(word in lowered for word in _QUICK) or _KEYS.search(lowercase):
        return True
    if b"token" in lowered:
        counts = sum(lowered.count(word) for word in _HARMLESS)
        if lowered.count(b"token") > counts or any(word in lowered for word in _PLURALS):
            return True
    return b"\\u00" in lowered or (b"://" in lowered and b"@" in lowered)


def marker(secret: str) -> str:
    """Return what is stored in place of a secret; a marker stays as it is."""
    if secret.startswith(_START) and _MARKER.fullmatch(secret):
        return secret
    digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_START}{len(secret)} sha256={digest[:12]}]"


class Secrets:
    """The secrets that were found in the texts of one exchange."""

    __slots__ = ("_found",)

    def __init__(self, found: Iterable[str] = ()) -> None:
        self._found: set[str] = set(found)

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def add(self, secret: str) -> None:
        """Add a secret, unless it is too short to be distinguished from a word, or is a reference to a secret."""
        if len(secret) >= _LEAST and "${" not in secret and not secret.startswith(_START):
            self._found.add(secret)

    def update(self, secrets: Iterable[str]) -> None:
        """Add secrets that were found before."""
        self._found.update(secrets)

    def hide(self, text: str) -> str:
        """Return `text` without the secrets, also where they are escaped as JSON or for a URL."""
        for secret in sorted(self._found, key=len, reverse=True) if len(self._found) > 1 else self._found:
            if secret.isdecimal():
                text = _hide_number(text, secret)
                continue
            for form in _forms(secret):
                if form in text:
                    text = text.replace(form, marker(secret))
        return text


def _hide_number(text: str, number: str) -> str:
    """Return `text` without a number; one that is a value of JSON becomes a string."""
    if number not in text:
        return text
    text = re.sub(rf"(?<=[\s:,\[]){number}(?=[\s,\]}}])", f'"{marker(number)}"', text)
    return re.sub(rf"(?<![0-9.]){number}(?![0-9.])", marker(number), text)


@lru_cache(1024)
def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret as it is, and as it is in strings of JSON, in JSON in these, and in URLs."""
    once = (json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(secret)[1:-1])
    in_json = (*once, *(form.replace("/", "\\/") for form in once))
    twice = tuple(json.dumps(form)[1:-1] for form in in_json)
    in_url = tuple(quote_as(secret, safe="", errors="replace") for quote_as in (quote, quote_plus))
    lowercase = tuple(_HEX.sub(lambda digits: digits[0].lower(), form) for form in in_url)
    return tuple(dict.fromkeys((secret, *in_json, *twice, *in_url, *lowercase)))

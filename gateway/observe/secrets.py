"""What a secret is called, what is stored in its place, and the secrets that were found in one exchange."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
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
_SPLIT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LAST = frozenset(
    {"pass", "pwd", "passcode", "auth", "oauth", "bearer", "signature", "sig", "dsn", "creds", "connectionstring"}
)
"""Words with which a secret's name ends."""
_LAST_OF_HEADER = _LAST | {"session", "sid", "sessionid"}
_LAST_TWO = frozenset({("connection", "string"), ("connection", "str"), ("conn", "string"), ("conn", "str")})
_SESSION_ID = ("session", "id")
_CODES = frozenset({(), ("auth",), ("authorization",), ("device",)})
"""What may come before `code` in a parameter that is a secret."""
KEY_WORDS = frozenset(
    {*KEY_OWNERS, "access", "api", "app", "application", "auth", "client", "decryption", "deploy", "exchange", "hmac"}
    | {"host", "license", "pem", "private", "rsa", "secret", "server", "service", "session", "ssh", "ssl", "storage"}
    | {"symmetric", "tls", "vault", "webhook"}
)
"""Words beside which a key is a secret."""
_HARMLESS_KEYS = frozenset({"cache", "idempotency", "partition", "public", "routing", "sort", "surrogate", "socket"})
"""Words beside which a key in a header is none."""
_SECURITY_API = (b"/_plugins/_security/", b"/_opendistro/_security/")
_SECURITY_NAMES = frozenset({"key", "hash"})
"""Members that are secrets in bodies of the security plugin's API. Elsewhere they are keys of buckets, and hashes."""
_QUICK = tuple(word.encode() for word in (*_WORDS, "bearer ", "basic "))
_PLURALS = tuple(f"{word}{joint}tokens".encode() for word in _OWNERS for joint in ("", "_", "-"))
_FOLLOWED = r"[0-9_-]{0,8}(?=[\"'\\>]|\s{0,3}[=:]|%3d|\Z)"
"""What is after a name where a value may follow."""
_QUICK_NAMES = {
    word.encode(): re.compile(word + rest)
    for word, rest in {
        **dict.fromkeys(("pwd", "auth", "bearer", "dsn", "creds"), _FOLLOWED),
        "pass": f"(?:code)?{_FOLLOWED}",
        "sig": f"(?:natures?)?{_FOLLOWED}",
        "conn": rf"(?:ection)?[_. -]?str(?:ing)?{_FOLLOWED}",
        "key": rf"(?<=[a-z0-9_. -]key)s?{_FOLLOWED}",
        "x-": r"[a-z0-9_-]{0,64}(?:key|session|sid)",
        "session": r"[_.-]?(?:id)?=",
    }.items()
}
"""Finds each name of `_ends_as_secret` where a value may follow, and a few other words.

Each begins with a literal, so that a text is searched quickly. Texts are in lower case.
"""
_QUICK_FORMS = (b"-----begin ", b"$2", b"$argon2", b"$pbkdf2", b"$scrypt", b"curl", b"code=", b"key=", b"sid=")
_START_TAG = re.compile(r"<(?:[\w.-]{1,64}+:)?([a-zA-Z][\w.-]{0,64}+)\s")
_URL_SECRETS = (b"@", b"key=", b"sig=", b"signature=")
_HARMLESS = (b"tokens", b"tokeniz")
_START = "[REDACTED length="
_MARKER = re.compile(r"\[REDACTED length=[0-9]+ sha256=[0-9a-f]{12}\]")
_HEX = re.compile("%[0-9A-F]{2}")
_NUMBER = re.compile(r"(?<![0-9.])[0-9]{8,}(?![0-9.])")
_BEFORE_VALUE, _AFTER_VALUE = re.compile(r"[\s:,\[]"), re.compile(r"[\s,\]}]")
_FEW = 1000
"""So many secrets are searched one after the other, which takes less time than one pass over the text."""
_LEAST = 8
"""Shortest secret, in characters, that is removed from other texts. A shorter one may be a word of them."""


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Return True if a header, parameter or member of this name holds a secret. A number of tokens is not a secret."""
    lowered = name.lower()
    if any(word in lowered for word in _WORDS) or _KEYS.search(lowered):
        return True
    if "token" in lowered and "token" in _COUNTED.sub("", _COUNTS.sub("", lowered)):
        return True
    words = split_name(name)
    return _ends_as_secret(words, _LAST) or (lowered.startswith("x-") and _is_secret_header(words))


@lru_cache(4096)
def is_secret_header(name: str) -> bool:
    """Return True if a header of this name holds a secret: also a session's id, and any key."""
    return is_secret_name(name) or _is_secret_header(split_name(name))


@lru_cache(4096)
def is_secret_parameter(name: str) -> bool:
    """Return True if a parameter of a URL holds a secret: also a session's id, a code of OAuth, and Gemini's `key`."""
    words = split_name(name)
    if words[-1:] == ("code",):
        return words[:-1] in _CODES
    is_known = words == ("key",) or words[-2:] == _SESSION_ID
    return is_known or is_secret_name(name) or _ends_as_secret(words, _LAST_OF_HEADER)


def secret_members(target: bytes) -> frozenset[str]:
    """Return names of members that hold secrets only in the bodies of requests to this path."""
    return _SECURITY_NAMES if target.startswith(_SECURITY_API) else frozenset()


def split_name(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: ``sshKey``, ``SSH_KEY`` and ``ssh-key-2`` are ``ssh`` and ``key``."""
    return tuple(word.lower() for word in _SPLIT.findall(name))


def _is_secret_header(words: tuple[str, ...]) -> bool:
    if words[-1:] == ("key",):
        return not _HARMLESS_KEYS.intersection(words)
    return words[-2:] == _SESSION_ID or _ends_as_secret(words, _LAST_OF_HEADER)


def _ends_as_secret(words: tuple[str, ...], last: frozenset[str]) -> bool:
    if not words:
        return False
    word = words[-1].removesuffix("s") if words[-1] in ("keys", "signatures") else words[-1]
    if word == "key":
        return not KEY_WORDS.isdisjoint(words[:-1])
    return word in last or words[-2:] in _LAST_TWO or (word.endswith("key") and word[:-3] in KEY_WORDS)


def may_hold_secret(text: str) -> bool:
    """Return False if nothing in a text names a secret."""
    lowercase = text.lower()
    lowered = lowercase.encode("utf-8", "surrogatepass")
    if any(word in lowered for word in _QUICK) or _KEYS.search(lowercase):
        return True
    if any(form in lowered for form in _QUICK_FORMS):
        return True
    if any(word in lowered and names.search(lowercase) for word, names in _QUICK_NAMES.items()):
        return True
    if b"<" in lowered and any(is_secret_name(tag[1]) for tag in _START_TAG.finditer(text)):
        return True
    if b"token" in lowered:
        counts = sum(lowered.count(word) for word in _HARMLESS)
        if lowered.count(b"token") > counts or any(word in lowered for word in _PLURALS):
            return True
    return b"\\u00" in lowered or (b"://" in lowered and any(word in lowered for word in _URL_SECRETS))


def marker(secret: str) -> str:
    """Return what is stored in place of a secret; a marker stays as it is."""
    if secret.startswith(_START) and _MARKER.fullmatch(secret):
        return secret
    digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_START}{len(secret)} sha256={digest[:12]}]"


class Secrets:
    """The secrets that were found in the texts of one exchange. names: further names of its members that hold one."""

    __slots__ = ("_found", "_index", "names")

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self._found: set[str] = set()
        self._index: _Index | None = None
        self.names = names

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
        if len(self._found) > _FEW:
            if self._index is None or self._index.count != len(self._found):
                self._index = _Index(self._found)
            return self._index.hide(text)
        for secret in sorted(self._found, key=len, reverse=True) if len(self._found) > 1 else self._found:
            if secret.isdecimal():
                text = _hide_number(text, secret)
                continue
            for form in _forms(secret):
                if form in text:
                    text = text.replace(form, marker(secret))
        return text


class _Index:
    """Many secrets, which are all searched in one pass. count: how many."""

    def __init__(self, secrets: set[str]) -> None:
        self.count = len(secrets)
        self._numbers = {secret for secret in secrets if secret.isdecimal() and secret.isascii()}
        self._forms = {form: secret for secret in secrets - self._numbers for form in _forms(secret)}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for form in self._forms:
            lengths[form[:_LEAST]].add(len(form))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}

    def hide(self, text: str) -> str:
        """See `Secrets.hide`. Of secrets that begin at the same place, the longest is hidden."""
        if self._numbers:
            text = _NUMBER.sub(self._hide_number, text)
        out: list[str] = []
        done = at = 0
        while at <= len(text) - _LEAST:
            for length in self._lengths.get(text[at : at + _LEAST], ()):
                secret = self._forms.get(text[at : at + length])
                if secret is not None:
                    out += (text[done:at], marker(secret))
                    done = at = at + length
                    break
            else:
                at += 1
        return "".join((*out, text[done:])) if out else text

    def _hide_number(self, found: re.Match[str]) -> str:
        number, text = found[0], found.string
        if number not in self._numbers:
            return number
        before, after = text[max(found.start() - 1, 0) : found.start()], text[found.end() : found.end() + 1]
        is_value = _BEFORE_VALUE.fullmatch(before) and _AFTER_VALUE.fullmatch(after)
        return f'"{marker(number)}"' if is_value else marker(number)


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

"""Redaction of what is recorded: a secret becomes its length and the start of its hash; everything else stays.

A text is read as JSON tokens, wherever they are in it: in a whole document, in lines of documents, in events, in
strings that hold JSON. A text that is cut, or is not JSON, is therefore redacted by the same rules. A secret that was
found is also removed from the other texts of its exchange (`Secrets.hide`), such as an error that quotes it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote_plus

from gateway.observe.json_path import Path, Place, path_matches, unescape
from gateway.observe.pairs import Pair, find_pairs
from gateway.observe.patterns import Pattern
from gateway.observe.secrets import (
    Secrets,
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
    marker,
    may_hold_secret,
)
from gateway.observe.text_secrets import hide_assigned

TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*(?:"|\\?\Z)|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)
_LITERALS = frozenset({"true", "false", "null"})
_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]*")
_SCHEMES = frozenset({"aws4-ecdsa-p256-sha256", "aws4-hmac-sha256", "apikey", "basic", "bearer", "digest", "negotiate"})
"""Schemes of authorization that are shown. Any other may be a part of a secret."""
_DEPTH = 8
"""Levels of JSON in strings of JSON that are read."""


class _Hidden(NamedTuple):
    """How a value is hidden. whole: even a literal. counts: but not a number, which may be a number of tokens."""

    whole: bool = True
    counts: bool = False


_WHOLE = _Hidden()
_Replacement = tuple[int, int, str]
"""Start and end of what is replaced, and what replaces it."""


class Redactor:
    """Redacts headers, targets and bodies. paths, patterns: what the operator hides in addition to secrets.

    has_rules: there are some.
    """

    def __init__(self, paths: Sequence[Path] = (), patterns: Sequence[Pattern] = ()) -> None:
        self._paths = tuple(paths)
        self._patterns = tuple(patterns)
        self.has_rules = bool(self._paths or self._patterns)

    def headers(self, lines: Iterable[bytes], found: Secrets) -> tuple[tuple[str, str], ...]:
        """Return names and values of header lines. found: gets the secrets."""
        split = (line.decode("utf-8", "replace").partition(":") for line in lines)
        return tuple((name, self.header(name, value.strip(" \t"), found)) for name, _, value in split)

    def header(self, name: str, value: str, found: Secrets) -> str:
        """Return the value of a header."""
        lowered = name.lower()
        if not (is_secret_header(name) or lowered.startswith("aws-")):
            return self.text(value, found)
        scheme, _, credentials = value.partition(" ")
        if "authorization" in lowered and scheme.lower() in _SCHEMES and credentials:
            found.add(credentials)
            found.add(_password(scheme, credentials))
            return f"{scheme} {marker(credentials)}"
        cookies = value.split(";") if "cookie" in lowered else []
        for cookie in cookies[:1] if lowered == "set-cookie" else cookies:  # its attributes are no secrets
            found.add(cookie.partition("=")[2].strip())
        found.add(value)
        return marker(value)

    def target(self, target: bytes, found: Secrets) -> str:
        """Return path and query of a request."""
        text = target.decode("utf-8", "replace")
        if "?" not in text and not self._patterns:
            return text
        path, mark, query = text.partition("?")
        parts = [self._parameter(part, found) for part in query.split("&")] if mark else []
        return self._hide_patterns(path, found) + mark + "&".join(parts)

    def _parameter(self, part: str, found: Secrets) -> str:
        name, mark, value = part.partition("=")
        plain = unquote_plus(value)
        if plain and is_secret_parameter(unquote_plus(name)):
            found.add(plain)
            return f"{name}={quote(marker(plain), safe='[]=')}"
        shown = self.text(plain, found)
        return part if shown == plain else f"{name}{mark}{quote(shown, safe='[]=')}"

    def text(self, text: str, found: Secrets) -> str:
        """Return a text without its secrets. found: gets them."""
        named = bool(found.names) or may_hold_secret(text)
        if named or self._paths:
            text = self._hide_members(text, found, (), 0)
        if named:
            text = hide_assigned(text, found)
        return self._hide_patterns(text, found) if self._patterns else text

    def _hide_members(self, text: str, found: Secrets, base: Path, depth: int) -> str:
        out: list[str] = []
        done = 0
        replacements = {start: (end, new) for start, end, new in self._replacements(text, found, Place(base), depth)}
        for pair in find_pairs(text, TOKEN.finditer(text)):
            replacements |= {start: (end, new) for start, end, new in _beside(text, pair, found)}
        for start, (end, new) in sorted(replacements.items()):
            if start >= done:  # else it is in a value that is hidden as a whole
                out += (text[done:start], new)
                done = end
        return "".join((*out, text[done:])) if out else text

    def _replacements(self, text: str, found: Secrets, at: Place, depth: int) -> Iterator[_Replacement]:
        """Yield the replacement of each value that is hidden."""
        hidden = self._hidden_at(at)
        since, levels = 0, 0
        for match in TOKEN.finditer(text):
            token, sign = match[0], match[0][0]
            if levels:  # within an object or array that is hidden as a whole
                levels += (sign in "{[") - (sign in "}]")
                if not levels:
                    yield since, match.end(), _quoted(text[since : match.end()], found)
                    at.close()
            elif sign == '"':
                yield from self._string(match, hidden, found, at, depth)
                at.string, hidden = token, None
            elif sign in "{[":
                at.open(sign)
                if hidden is not None:
                    since, levels, hidden = match.start(), 1, None
                elif sign == "[":
                    hidden = self._hidden_at(at)
            elif sign in ":,}]":
                hidden = self._after(sign, at, found)
            else:
                if hidden is not None and _hides_scalar(hidden, token):
                    yield match.start(), match.end(), _quoted(token, found)
                at.string = hidden = None
        if levels:
            yield since, len(text), _quoted(text[since:], found)

    def _after(self, sign: str, at: Place, found: Secrets) -> _Hidden | None:
        """Return how to hide the value that follows a sign; None to show it."""
        if sign == ":":
            name = at.name()
            if name is not None and (is_secret_name(name) or name in found.names) and not self._hidden_at(at):
                return _Hidden(whole=False, counts="token" in name.lower())
            return self._hidden_at(at) if name is not None else None
        if sign == ",":
            at.next()
            return self._hidden_at(at) if at.in_array else None
        at.close()
        return None

    def _hidden_at(self, at: Place) -> _Hidden | None:
        """Return how to hide the value at a place that the operator has named; None to show it."""
        return _WHOLE if self._paths and any(path_matches(path, at.path) for path in self._paths) else None

    def _string(
        self, match: re.Match[str], hidden: _Hidden | None, found: Secrets, at: Place, depth: int
    ) -> Iterator[_Replacement]:
        """Yield the replacement of a string, or of its content, which may be JSON."""
        token = match[0]
        content = token[1:-1] if len(token) > 1 and token.endswith('"') else token[1:]
        start, end = match.start() + 1, match.start() + 1 + len(content)
        value = unescape(content)
        if hidden is not None:
            secret = content if value is None else value
            found.add(secret)
            yield start, end, marker(secret)
        elif "\\" in content and (self._paths or found.names or may_hold_secret(content)):
            if value is None or depth >= _DEPTH:
                yield start, end, marker(content)
            else:
                new = hide_assigned(self._hide_members(value, found, at.path, depth + 1), found)
                if new != value:
                    yield start, end, _escape(new)

    def _hide_patterns(self, text: str, found: Secrets) -> str:
        if not any(pattern.search(text) for pattern in self._patterns):
            return text
        if text.lstrip()[:1] in ("{", "["):  # a match must not reach from one value into the next
            return TOKEN.sub(lambda token: self._hide_in_token(token[0], found), text)
        return self._hide_in(text, found)

    def _hide_in_token(self, token: str, found: Secrets) -> str:
        if token[0] != '"':
            new = self._hide_in(token, found)
            return token if new == token else f'"{new}"'
        closed = len(token) > 1 and token.endswith('"')
        return f'"{self._hide_in(token[1:-1] if closed else token[1:], found)}' + '"' * closed

    def _hide_in(self, text: str, found: Secrets) -> str:
        for pattern in self._patterns:
            for start, end in reversed(list(pattern.spans(text))):
                found.add(text[start:end])
                text = text[:start] + marker(text[start:end]) + text[end:]
        return text


def _beside(text: str, pair: Pair, found: Secrets) -> Iterator[_Replacement]:
    """Yield the replacement of a value whose name is beside it."""
    value = text[pair.start : pair.end]
    start = pair.start + len(value) - len(value.lstrip())
    value = value.strip()
    string = TOKEN.fullmatch(value) if value.startswith('"') else None
    if string is not None:
        content = value[1:].removesuffix('"')
        secret = unescape(content) or content
        found.add(secret)
        yield start + 1, start + 1 + len(content), marker(secret)
    elif value and (
        value[0] in "{[" or _hides_scalar(_Hidden(whole=False, counts="token" in pair.name.lower()), value)
    ):
        yield start, start + len(value), _quoted(value, found)


def _hides_scalar(hidden: _Hidden, token: str) -> bool:
    return hidden.whole or (token not in _LITERALS and not (hidden.counts and _NUMBER.fullmatch(token)))


def _password(scheme: str, credentials: str) -> str:
    """Return the password of basic authentication (RFC 7617), or a signature; "" if there is none."""
    if scheme.lower() != "basic":
        return credentials.rpartition("Signature=")[2] if "Signature=" in credentials else ""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _quoted(value: str, found: Secrets) -> str:
    """Return the string in place of a value that is hidden whole. The strings in it are secrets too, but no names."""
    if _NUMBER.fullmatch(value):
        found.add(value)
    last = ""
    for match in TOKEN.finditer(value):
        if last and match[0] != ":":
            found.add(unescape(last[1:-1]) or last[1:-1])
        last = match[0] if match[0][0] == '"' else ""
    return f'"{marker(value)}"'


def _escape(text: str) -> str:
    """Return the content of a JSON string."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)[1:-1]
    return json.dumps(text, ensure_ascii=False)[1:-1]

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
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote_plus

from gateway.observe.json_path import Path, Place, path_matches, unescape
from gateway.observe.patterns import Pattern
from gateway.observe.secrets import (
    KEY_WORDS,
    Secrets,
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
    marker,
    may_hold_secret,
)

_NAMES = frozenset({"name", "key", "header"})
_VALUES = frozenset({"value", "values"})
_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-auth-token"}
    | {"x-goog-api-key", "x-amz-security-token"}
)
"""Headers whose value is looked for after them in a list, beside those that begin with X-."""
_QUICK = (*(f'{word}"' for word in (*_VALUES, *_HEADERS)), '"x-')
_LONGEST = 128
"""Longest name, in characters of JSON."""
_WORD = re.compile(r"[A-Za-z-]+")
"""A word after a header's name in a list. It is taken for another name, not for a value."""


class Pair(NamedTuple):
    """A secret's name, and where its value begins and ends, with white space."""

    name: str
    start: int
    end: int


@dataclass(slots=True)
class _Container:
    """An object or array that is open. begun: where its present value begins. secret: the name that was read."""

    is_array: bool
    begun: int
    member: str = ""
    secret: str = ""
    value: tuple[int, int] | None = None

    def pairs(self) -> list[Pair]:
        """Return the pair of an object that has a name and a value."""
        return [Pair(self.secret, *self.value)] if self.secret and self.value is not None else []


def find_pairs(text: str, tokens: Iterable[re.Match[str]]) -> list[Pair]:
    """Return the secrets beside their names in a text of these tokens, which may be cut."""
    lowered = text.lower()
    if "\\u" not in lowered and not any(word in lowered for word in _QUICK):
        return []
    return list(_Reader().read(tokens, len(text)))


class _Reader:
    """Reads the tokens of a text. The first container stands for the text itself, which may be a part of a document."""

    def __init__(self) -> None:
        self._open = [_Container(False, 0)]
        self._string = ""

    def read(self, tokens: Iterable[re.Match[str]], length: int) -> Iterator[Pair]:
        """Yield the pairs. length: of the text."""
        for match in tokens:
            sign = match[0][0]
            if sign in "{[":
                self._open.append(_Container(sign == "[", match.end()))
            elif sign == ":":
                self._open[-1].member, self._open[-1].begun = _name(self._string).lower(), match.end()
            elif sign in ",}]":
                yield from self._end_value(match.start(), match.end())
                if sign != "," and len(self._open) > 1:
                    yield from self._open.pop().pairs()
            self._string = match[0] if sign == '"' else ""
        yield from self._end_value(length, length)
        for container in self._open[1:]:
            yield from container.pairs()

    def _end_value(self, start: int, end: int) -> Iterator[Pair]:
        container, name = self._open[-1], _name(self._string)
        if container.is_array:
            if container.secret and self._string and not _WORD.fullmatch(name):
                yield Pair(container.secret, container.begun, start)
            container.secret = name if _is_header(name) else ""
        elif container.member in _VALUES:
            container.value = container.begun, start
        elif container.member in _NAMES and is_secret_name(name):
            container.secret = name
        container.member, container.begun = "", end


def _is_header(name: str) -> bool:
    return name.lower() in _HEADERS or (name.lower().startswith("x-") and is_secret_name(name))


def _name(token: str) -> str:
    """Return the text of a string's token; "" if it is longer than a name."""
    if len(token) > _LONGEST:
        return ""
    content = token[1:].removesuffix('"')
    return unescape(content) or content


_NAME = (
    r"((?:authorization|cookie|passw(?:or)?d|secret|token|api[_-]?key|credential|access[_-]?key|private[_-]?key"
    rf"|passphrase|jwt|(?<![a-z])pwd|conn(?:ection)?[_-]?str(?:ing)?|(?:{'|'.join(sorted(KEY_WORDS))})[_-]?key)"
    r"[\w.-]{0,64}+)"
)
_ASSIGNED = (
    re.compile(rf"(?i){_NAME}\s{{0,3}}[=:]\s{{0,3}}\"([^\"\\]{{1,4096}}+)"),
    re.compile(rf"(?i){_NAME}'?\s{{0,3}}[=:]\s{{0,3}}'([^'\\\r\n]{{1,4096}}+)"),
    re.compile(
        r"(?i)((?:authorization|cookie)[\w.-]{0,64}+)\s{0,3}[=:]\s{0,3}([^\s\"'\\{}\[\],][^\r\n\"\\{}\[\],]{0,4096}+)"
    ),
    re.compile(  # a part of multipart/form-data (RFC 7578): lines of its head, an empty line, its value
        rf"(?i)form-data;[^\r\n]{{0,128}}name=\"{_NAME}\"[^\r\n]{{0,128}}"
        r"(?:\r?\n[^\r\n]{1,128}){0,8}\r?\n\r?\n([^\r\n]{1,4096}+)"
    ),
    re.compile(rf"(?i){_NAME}(?:\s{{0,3}}[=:]\s{{0,3}}|%3d)([^\s&,;\"'<>{{}}\[\]\\()]{{1,4096}}+)"),
)
_ALONE = (
    re.compile(r"(?i)\b(?:bearer|basic)\s{1,3}(?=[A-Za-z._~+/-]{0,64}[0-9=])([A-Za-z0-9._~+/=-]{8,4096}+)"),
    re.compile(  # a private key (RFC 7468), whole or cut
        r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----([^-\"]*+(?:-(?!----END )[^-\"]*+)*)"
    ),
    re.compile(  # the hash of a password, as crypt(3) and OpenSearch's security plugin write it
        r"(\$(?:2[abxy]?\$[0-9]{2}\$[./A-Za-z0-9]{22,53}+|(?:argon2|pbkdf2|scrypt)[\w-]{0,16}\$[^\s\"'\\<>&]{16,512}+))"
    ),
    re.compile(r"://([^\s/?#@\"'\\:]{0,256}+:[^\s/?#@\"'\\]{1,256}+)@"),
)
_PARAMETER = re.compile(r"(?i)(?<![\w.%-])([a-z][\w.-]{0,64}+)=([^\s&;,\"'<>{}\[\]\\()]{1,4096}+)")
"""A parameter of a URL or a form. In other texts, names such as `code` say little, so no white space may be there."""
_ELEMENT = re.compile(
    r"<(?:[\w.-]{1,64}+:)?([a-zA-Z][\w.-]{0,64}+)(?:\s[^<>]{0,512}+)?>(?:<!\[CDATA\[)?([^<>]{1,4096}?)(?:\]\]>)?<\\?/"
)
_CURL_USER = re.compile(
    r"(?<![\w-])(?:-[uU]|--(?:proxy-)?user)(?:\s{1,3}|=)?(?:\\?[\"'])?[^\s\"'\\:]{0,256}+:([^\s\"'\\]{1,1024}+)"
)
_SHOWN = re.compile(r"true|false|null|\[REDACTED.*", re.DOTALL)


def hide_assigned(text: str, found: Secrets) -> str:
    """Return `text` without such secrets. found: gets them."""

    def hide(match: re.Match[str]) -> str:
        *names, secret = match.groups()
        if _SHOWN.fullmatch(secret) or not all(map(is_secret, names)):
            return match[0]
        found.add(secret)
        at = match.start(len(names) + 1) - match.start()
        return match[0][:at] + marker(secret) + match[0][at + len(secret) :]

    is_secret = is_secret_name
    for pattern in (*_ASSIGNED, *_ALONE, _ELEMENT):
        text = pattern.sub(hide, text)
    if "curl" in text.lower():
        text = _CURL_USER.sub(hide, text)
    is_secret = is_secret_parameter
    return _PARAMETER.sub(hide, text)


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

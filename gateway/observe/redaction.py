"""Redaction of what is recorded and logged: a secret becomes its length and the start of its hash; all else stays.

A JSON document is read and walked, in its strings of JSON too; lines and events are read one by one. In other texts
secrets are found by what stands before them. A text that seems to hold JSON with a secret but is none, such as one that
is cut, is hidden whole. A secret that was found is also removed from the other texts of its exchange (`Secrets.hide`),
such as an error that quotes it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote_plus

import re2  # type: ignore[import-untyped]

from gateway.observe.secrets import (
    KEY_WORDS,
    Secrets,
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
    marker,
    may_hold_secret,
)

Path = tuple[str, ...]
"""Names of members and numbers of items, with ``*`` for any one and ``**`` for any number of them."""


def read_path(text: str) -> Path:
    """Read a path, such as ``parameters.ssn``, ``input[*].content[*].text`` or ``**.email``.

    Raises:
        ValueError: it has an empty part, or a bracket without its other half.
    """
    parts = text.removeprefix("$.").replace("[", ".").replace("]", "").split(".")
    if text.count("[") != text.count("]") or not all(parts):
        raise ValueError(text)
    return tuple(parts)


def path_matches(path: Path, at: Path) -> bool:
    """Return True if `path` is of the value `at`."""
    if not path:
        return not at
    if path[0] == "**":
        return any(path_matches(path[1:], at[skipped:]) for skipped in range(len(at) + 1))
    return bool(at) and path[0] in ("*", at[0]) and path_matches(path[1:], at[1:])


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


class BadPattern(Exception):
    """An expression is not valid. The message says why."""


class Pattern:
    """An expression whose matches are hidden, in RE2's syntax (https://github.com/google/re2/wiki/Syntax).

    Raises:
        BadPattern: see there.
    """

    def __init__(self, text: str) -> None:
        try:
            self._compiled = re2.compile(text.encode(), _OPTIONS)
        except (re2.error, UnicodeEncodeError) as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
            raise BadPattern(f"is not a regular expression of RE2: {reason}") from None
        if self._compiled.search(b"") is not None:
            raise BadPattern("matches an empty text, and so every place of any text")

    def search(self, text: str) -> bool:
        """Return True if there is a match."""
        return self._compiled.search(text.encode("utf-8", "surrogatepass")) is not None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of each match, from left to right. They don't overlap."""
        data = text.encode("utf-8", "surrogatepass")
        position = characters = 0
        for match in self._compiled.finditer(data):
            start, end = match.span()
            characters += len(data[position:start].decode("utf-8", "surrogatepass"))
            length = len(data[start:end].decode("utf-8", "surrogatepass"))
            if length:
                yield characters, characters + length
            characters, position = characters + length, end


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

    is_secret: Callable[[str], bool] = is_secret_name
    for pattern in (*_ASSIGNED, *_ALONE, _ELEMENT):
        text = pattern.sub(hide, text)
    if "curl" in text.lower():
        text = _CURL_USER.sub(hide, text)
    is_secret = is_secret_parameter
    return _PARAMETER.sub(hide, text)


_SCHEMES = frozenset({"aws4-ecdsa-p256-sha256", "aws4-hmac-sha256", "apikey", "basic", "bearer", "digest", "negotiate"})
"""Schemes of authorization that are shown. Any other may be a part of a secret."""
_NAMES = frozenset({"name", "key", "header"})
_VALUES = frozenset({"value", "values"})
"""Members of an object that has a name and a value."""
_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-auth-token"}
    | {"x-goog-api-key", "x-amz-security-token"}
)
"""Headers whose value is looked for after them in a list, beside those that begin with X-."""
_WORD = re.compile(r"[A-Za-z-]+")
"""A word after a header's name in a list. It is taken for another name, not for a value."""
_PART = re.compile(r'[^\s{}\[\],:"]{1,128}')
"""What may be a name between quotes."""
_MEMBER = re.compile(r"\s*:\s*(?:\\*\Z|[\[{0-9-])")
_ITEM = re.compile(r"\s*,\s*\\*\Z")
"""What follows a name if its value does: a string, an object, an array or a number; or the next string of an array."""
_FIELDS = (":", "event:", "id:", "retry:")
"""How lines of events begin that hold no data (the HTML standard, "Server-sent events")."""
_DEPTH = 8
"""Levels of JSON in strings of JSON that are read."""
_LONGEST = 1 << 20
"""Characters of a document that is read: the parser blocks other threads. A longer one is hidden whole."""


class Redactor:
    """Redacts headers, targets and bodies. paths, patterns: what the operator hides in addition to secrets."""

    def __init__(self, paths: Sequence[Path] = (), patterns: Sequence[Pattern] = ()) -> None:
        self._paths = tuple(paths)
        self._patterns = tuple(patterns)

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
        return self._text(text, found, (), 0)

    def _text(self, text: str, found: Secrets, at: Path, depth: int) -> str:
        """Return a text. at: its place in a document, if it is a string of one."""
        if not (found.names or self._paths or self._patterns or may_hold_secret(text)):
            return text
        shown = self._document(text, found, at, depth)
        if shown is None:
            shown = self._lines(text, found)
        return self._words(text, found) if shown is None else shown

    def _document(self, text: str, found: Secrets, at: Path, depth: int) -> str | None:
        """Return a JSON document; None if it is none."""
        if text.lstrip()[:1] not in ("{", "[", '"'):
            return None
        if len(text) > _LONGEST or depth > _DEPTH:
            return marker(text)
        try:
            value = json.loads(text, object_pairs_hook=_members)
        except (ValueError, RecursionError):
            return None
        shown = self._value(value, found, at, depth)
        return text if shown is value else _dump(shown, text)

    def _lines(self, text: str, found: Secrets) -> str | None:
        """Return lines of documents, or events; None if there are others."""
        lines = text.split("\n")
        for number, line in enumerate(lines):
            content = line.strip().removeprefix("data:").strip()
            if not content or content == "[DONE]":
                continue
            known = line.startswith(_FIELDS)
            shown = self._words(content, found) if known else self._document(content, found, (), 0)
            if shown is None:
                return None
            lines[number] = line.replace(content, shown, 1)
        return "\n".join(lines)

    def _words(self, text: str, found: Secrets) -> str:
        """Return a text that is not JSON. One that names a secret as JSON does is hidden whole."""
        if "{" in text or "[" in text:
            parts = text.split('"')
            for number in range(len(parts)):
                if _names_secret(parts, number, found):
                    for value in parts[number + 1 : number + 4]:
                        found.add(value.strip("\\"))
                    return marker(text)
        return self._hide_patterns(hide_assigned(text, found), found)

    def _hide_patterns(self, text: str, found: Secrets) -> str:
        for pattern in self._patterns:
            for start, end in reversed(list(pattern.spans(text))):
                found.add(text[start:end])
                text = text[:start] + marker(text[start:end]) + text[end:]
        return text

    # Values of a document. One that stays is returned itself.

    def _value(self, value: Any, found: Secrets, at: Path, depth: int) -> Any:
        if any(path_matches(path, at) for path in self._paths):
            return _hidden(value, found)
        match value:
            case dict():
                return self._object(value, found, at, depth)
            case list():
                return self._array(value, found, at, depth)
            case str():
                return _same(self._text(value, found, at, depth + 1), value)
            case int() | float() if self._patterns and not isinstance(value, bool):
                written = json.dumps(value)
                shown = self._words(written, found)
                return value if shown == written else shown
        return value

    def _object(self, members: dict[str, Any], found: Secrets, at: Path, depth: int) -> dict[str, Any]:
        named = (value for name, value in members.items() if name.lower() in _NAMES and isinstance(value, str))
        beside = next(filter(is_secret_name, named), "")
        shown = {}
        for name, value in members.items():
            secret = beside if beside and name.lower() in _VALUES else name
            if is_secret_name(secret) or name in found.names:
                shown[name] = value if _is_harmless(value, secret) else _hidden(value, found)
            else:
                shown[self._hide_patterns(name, found)] = self._value(value, found, (*at, name), depth)
        return members if all(shown.get(name) is value for name, value in members.items()) else shown

    def _array(self, items: list[Any], found: Secrets, at: Path, depth: int) -> list[Any]:
        shown = []
        after_header = False
        for number, item in enumerate(items):
            if after_header and isinstance(item, str) and not _WORD.fullmatch(item):
                shown.append(_hidden(item, found))
            else:
                shown.append(self._value(item, found, (*at, str(number)), depth))
            after_header = isinstance(item, str) and _is_header(item)
        return items if all(new is item for new, item in zip(shown, items, strict=True)) else shown


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object. Raises ValueError for two of one name: only one of them would be looked at."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError
    return members


def _same(shown: str, value: str) -> str:
    return value if shown == value else shown


def _is_harmless(value: Any, name: str) -> bool:
    """Return True for literals, and for a number that may be a number of tokens."""
    if value is None or isinstance(value, bool):
        return True
    return isinstance(value, int | float) and "token" in name.lower()


def _is_header(name: str) -> bool:
    return name.lower() in _HEADERS or (name.lower().startswith("x-") and is_secret_name(name))


def _names_secret(parts: Sequence[str], number: int, found: Secrets) -> bool:
    """Return True if a part of a text, which quotes separate, names a secret that is beside it, as in JSON."""
    name = parts[number].strip("\\")
    if _PART.fullmatch(name) is None:
        return False
    if "\\u" in name:
        try:
            name = json.loads(f'"{name}"')
        except ValueError:
            return True
    if not (is_secret_name(name) or name in found.names):
        return False
    before = parts[number - 2].strip("\\").lower() if number > 1 else ""
    after = parts[number + 1] if number + 1 < len(parts) else ""
    return before in _NAMES or _MEMBER.match(after) is not None or (_is_header(name) and _ITEM.match(after) is not None)


def _hidden(value: Any, found: Secrets) -> str:
    """Return what stands in place of a value. The strings in it are secrets too, but no names."""
    if isinstance(value, str):
        found.add(value)
        return marker(value)
    for inner in _scalars(value):
        found.add(inner)
    return marker(json.dumps(value))


def _scalars(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _scalars(inner)
        case list():
            for inner in value:
                yield from _scalars(inner)
        case int() | float() if not isinstance(value, bool):
            yield json.dumps(value)


def _dump(value: Any, like: str) -> str:
    """Return JSON, with spaces if `like` has some."""
    separators = (", ", ": ") if '": ' in like else (",", ":")
    written = json.dumps(value, ensure_ascii=False, separators=separators)
    return written if _is_utf8(written) else json.dumps(value, separators=separators)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _password(scheme: str, credentials: str) -> str:
    """Return the password of basic authentication (RFC 7617), or a signature; "" if there is none."""
    if scheme.lower() != "basic":
        return credentials.rpartition("Signature=")[2] if "Signature=" in credentials else ""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""

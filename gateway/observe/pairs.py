"""Secrets in JSON whose names are beside them: ``{"name": "Authorization", "value": "…"}``, ``["X-Api-Key", "…"]``.

HAR files, Postman collections and OpenTelemetry attributes write headers so, and lists of raw headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gateway.observe.json_path import unescape
from gateway.observe.secrets import is_secret_name

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

"""The text of a connector's template: where its members, items and bare placeholders are. Pure.

A template is JSON except for bare placeholders. These functions walk over it without parsing.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.mlcommons.template import DEFAULT_DELIMITER, PREFIX, SUFFIX

Span = tuple[int, int]

_OPENING = {"{": "}", "[": "]"}


class UnreadableTemplate(Exception):
    """The template's brackets or quotes do not close."""


def members(text: str, start: int | None = None) -> dict[str, Span]:
    """Return the members of the object at `start` (by default the first in `text`), with the span of each value.

    Raises:
        UnreadableTemplate: brackets or quotes do not close.
    """
    start = text.find("{") if start is None else start
    if start < 0:
        return {}
    found: dict[str, Span] = {}
    spans = list(_tokens(text, start))
    for (a, b), colon, value in zip(spans, spans[1:], spans[2:], strict=False):
        if text[a] == '"' and text[colon[0]] == ":":
            found[text[a + 1 : b - 1]] = value
    return found


def items(text: str, start: int) -> Iterator[Span]:
    """Return the spans of the items of the array at `start`: turns and bare placeholders, without commas.

    Raises:
        UnreadableTemplate: brackets or quotes do not close.
    """
    return (span for span in _tokens(text, start) if text[span[0]] != ",")


def member_slots(text: str) -> list[str]:
    """Return the placeholders of the outermost object that are no value: a comma and a member can be put there.

    Raises:
        UnreadableTemplate: brackets or quotes do not close.
    """
    start = text.find("{")
    names, before = [], ""
    for a, b in _tokens(text, start) if start >= 0 else ():
        if text.startswith(PREFIX, a) and before not in ("", ",", ":"):
            names.append(text[a + len(PREFIX) : b - len(SUFFIX)].partition(DEFAULT_DELIMITER)[0])
        before = text[a]
    return names


def end_of_object(text: str) -> int:
    """Return where the outermost object's closing brace is.

    Raises:
        UnreadableTemplate: brackets or quotes do not close.
    """
    return _end(text, _closed(text.find("{"))) - 1


def _tokens(text: str, start: int) -> Iterator[Span]:
    """Yield the spans directly inside the object or array at `start`: strings, containers, placeholders, characters."""
    position = start + 1
    while position < len(text) and text[position] != _OPENING[text[start]]:
        end = _end(text, position)
        if not text[position].isspace():
            yield position, end
        position = end
    if position >= len(text):
        raise UnreadableTemplate


def _end(text: str, start: int) -> int:
    """Return the end of the token at `start`."""
    if text.startswith(PREFIX, start):
        return _closed(text.find(SUFFIX, start)) + 1
    if text[start] in _OPENING:
        spans = list(_tokens(text, start))
        inside = spans[-1][1] if spans else start + 1
        return _closed(text.find(_OPENING[text[start]], inside)) + 1
    if text[start] != '"':
        return start + 1
    position = start + 1
    while position < len(text) and text[position] != '"':
        # The cluster ends a placeholder at the first closing brace, whatever is before it.
        inside = _end(text, position) if text.startswith(PREFIX, position) else position + 1
        position = position + 2 if text[position] == "\\" else inside
    return position + 1 if position < len(text) else _closed(-1)


def _closed(position: int) -> int:
    if position < 0:
        raise UnreadableTemplate
    return position

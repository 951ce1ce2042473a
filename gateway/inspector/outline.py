"""A document as lines of text, each marked with what the comparison found there. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.inspector.diff import JSON, Change, Medium, Number, Path, describe_media, inner, media, show

LONGEST = 400
"""Characters of a text that are shown at first."""
_MOST = 3000
_DEPTH = 64


class Line(NamedTuple):
    """A line. indent: levels. name: `"text": ` or "". value: brackets or the value; cut if `rest` is more than 0.

    rest: characters that are not shown. path: of the value, as JSON, to ask for the rest. kind: as in `Change`.
    other: the place on the other side, "" for the same or none. media: what the value refers to.
    """

    indent: int
    name: str
    value: str
    kind: str = ""
    other: str = ""
    inside: bool = False
    rest: int = 0
    path: str = ""
    media: tuple[Medium, ...] = ()


def outline(document: Any, changes: Mapping[Path, Change], is_before: bool) -> tuple[list[Line], bool]:
    """Return the lines of a document, and True if there are more than are shown. changes: by the path on its side."""
    lines: list[Line] = []
    for line in _lines(document, (), "", 0, _Marks(changes, is_before), ""):
        if len(lines) == _MOST:
            return lines, True
        lines.append(line)
    return lines, False


class _Marks(NamedTuple):
    changes: Mapping[Path, Change]
    is_before: bool

    def mark(self, path: Path) -> tuple[str, str, bool]:
        change = self.changes.get(path)
        if change is None:
            return "", "", False
        other = change.after if self.is_before else change.before
        place = show(other.path) if other is not None and change.kind in ("moved", "copied") else ""
        return change.kind, place, change.inside


def _lines(document: Any, path: Path, name: str, indent: int, marks: _Marks, comma: str) -> Iterator[Line]:
    within, quote = document, ""
    if isinstance(document, str) and not isinstance(document, Number) and (found := inner(document)) is not None:
        within, path, quote = found, (*path, JSON), "JSON in a string "
    if isinstance(within, dict | list) and within and indent < _DEPTH:
        opening, closing = "{}" if isinstance(within, dict) else "[]"
        yield Line(indent, name, f"{quote}{opening}")
        last = len(within) - 1
        items = within.items() if isinstance(within, dict) else enumerate(within)
        for number, (step, value) in enumerate(items):
            label = f"{_text(step)}: " if isinstance(step, str) else ""
            yield from _lines(value, (*path, step), label, indent + 1, marks, "," if number < last else "")
        yield Line(indent, "", f"{closing}{comma}")
    else:
        yield _leaf(document, path, name, indent, marks, comma)


def _leaf(value: Any, path: Path, name: str, indent: int, marks: _Marks, comma: str) -> Line:
    kind, other, inside = marks.mark(path)
    shown = describe_media(value) if isinstance(value, str) else value
    text = str(value) if isinstance(value, Number) else _text(shown)
    found = tuple(media(value)) if isinstance(value, str) else ()
    rest = len(value) - LONGEST if isinstance(value, str) and len(value) > LONGEST else 0
    if rest:
        text = _text(describe_media(value[:LONGEST])).removesuffix('"')
        comma = ""
    return Line(indent, name, text + comma, kind, other, inside, rest, json.dumps(path) if rest else "", found)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

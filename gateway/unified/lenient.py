"""Searches a body that is not strict JSON for a top-level `input`, as leniently as the cluster reads it.

OpenSearch reads bodies with Jackson, which accepts more than strict JSON: ``//`` and ``/* */`` comments, anything after
the document, UTF-16 and UTF-32, characters in overlong UTF-8. A body without `input` is forwarded byte for byte, and
the cluster decides what to do with it; a body with `input` must be strict JSON.

This reader accepts more than Jackson, so it never misses a member that Jackson finds: it knows only strings, comments
and brackets. If Jackson stops with an error, nothing after that place reaches an agent.
"""

from __future__ import annotations

import json
import re

from gateway.unified.budget import Budget
from gateway.unified.jsonstrings import WINDOW, end_of_escaped, find

_NEXT = re.compile(rb'["{}\[\]/]')
_BOM = b"\xef\xbb\xbf"
_END_OF_LINE = re.compile(rb"[\r\n]")
_LONGEST_NAME = 6 * len("input")  # each character written as an escape
_SLASH = ord("/")


class _Undecided(Exception):
    """It is unknown if there is an `input`: the body ends too early, or reading it costs too much."""


def may_have_input(body: bytes, budget: Budget) -> bool:
    """Return True if the cluster could find a top-level `input` in `body`, or if that is unknown."""
    try:
        return _has_input(_as_utf8(body, budget), budget)
    except _Undecided:
        return True


def _has_input(body: bytes, budget: Budget) -> bool:
    depth = 0
    position = len(_BOM) if body.startswith(_BOM) else 0
    outside = steps = 0  # bytes outside strings, and characters found there
    while True:
        start, position = position, _search(_NEXT, body, position)
        if position < 0:
            raise _Undecided
        outside += position - start
        steps += 1
        if outside > budget.text or steps > 2 * budget.values:
            raise _Undecided
        if not depth and body[position] != _SLASH and (body[position] != _OPEN or not _is_blank(body, start, position)):
            raise _Undecided  # not an object
        match body[position]:
            case 0x22:
                end = _end_of_string(body, position + 1)
                if depth == 1 and _is_input(body, position + 1, end) and _has_colon(body, end + 1):
                    return True
                position = end
            case 0x2F:
                start, position = position, _end_of_comment(body, position)
                outside += position - start
            case 0x7B | 0x5B:
                depth += 1
            case _:
                depth -= 1
                if not depth:
                    return False  # what follows the document is not read
        position += 1


_OPEN = ord("{")


def _is_blank(body: bytes, start: int, end: int) -> bool:
    return _search(_NO_SPACE, body, start) == end


def _search(pattern: re.Pattern[bytes], body: bytes, position: int) -> int:
    """Return the next position of `pattern`, which matches one byte; -1 if there is none."""
    for start in range(position, len(body), WINDOW):
        found = pattern.search(body, start, start + WINDOW)
        if found:
            return found.start()
    return -1


def _end_of_string(body: bytes, start: int) -> int:
    end = find(body, b'"', start)
    if end >= 0 and find(body, b"\\", start, end) >= 0:
        end = end_of_escaped(body, start)
    if end < 0:
        raise _Undecided
    return end


def _end_of_comment(body: bytes, position: int) -> int:
    """Return the last byte of the comment that begins at `position`; `position` if no comment begins there."""
    match body[position + 1 : position + 2]:
        case b"/":
            end = _search(_END_OF_LINE, body, position)
        case b"*":
            end = find(body, b"*/", position + 2)
            end += 1 if end >= 0 else 0
        case _:
            return position
    if end < 0:
        raise _Undecided
    return end


def _has_colon(body: bytes, position: int) -> bool:
    """Return True if a colon is next, after white space and comments, so the string before it is a name."""
    while (position := _search(_NO_SPACE, body, position)) >= 0 and body[position] == _SLASH:
        end = _end_of_comment(body, position)
        if end == position:
            return False
        position = end + 1
    if position < 0:
        raise _Undecided
    return body[position] == _COLON


_NO_SPACE = re.compile(rb"[^ \t\r\n]")
_COLON = ord(":")


def _is_input(body: bytes, start: int, end: int) -> bool:
    """Return True if the string from `start` to `end` may be `input`."""
    if end - start > _LONGEST_NAME:
        return False
    name = body[start:end]
    try:
        return (
            bool(json.loads(f'"{name.decode()}"') == "input") if b"\\" in name or not name.isascii() else name == _INPUT
        )
    except UnicodeDecodeError:
        return True  # Jackson decodes overlong forms: C1 A9 is an "i" for it
    except ValueError:
        return False


_INPUT = b"input"


def _as_utf8(body: bytes, budget: Budget) -> bytes:
    """Return `body` as UTF-8, if Jackson would read it as UTF-16 or UTF-32."""
    coding = _coding(body[:4])
    if not coding:
        return body
    if len(body) > budget.text:
        raise _Undecided
    return body.decode(coding, "replace").removeprefix("\ufeff").encode("utf-8", "replace")


def _coding(start: bytes) -> str:
    """Return the encoding that Jackson detects from the first four bytes; "" for UTF-8."""
    match tuple(start):
        case (0, 0, 0xFE, 0xFF) | (0, 0, 0, _):
            return "utf-32-be"
        case (0xFF, 0xFE, 0, 0) | (_, 0, 0, 0):
            return "utf-32-le"
        case (0xFE, 0xFF, *_) | (0, _, *_):
            return "utf-16-be"
        case (0xFF, 0xFE, *_) | (_, 0, *_):
            return "utf-16-le"
    return ""

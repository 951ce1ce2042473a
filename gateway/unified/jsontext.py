"""Strict JSON: a value that every reader understands in the same way, or an error with its place.

Parsers disagree or clusters fail on the following, so it is refused (docs/evidence/facts.md, "Errors" and "Rendering,
in detail"): invalid UTF-8, duplicate keys, NaN and Infinity, numbers beyond 64 bits or a double, lone surrogates,
U+0000, deep nesting. The parser marks each of them in the result, and one walk over the result finds the places.

`ParseLimits` bounds the work: the length of the text and the number of its values are checked before parsing. The
parser is C code and blocks other threads for at most about 3 ms a megabyte.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

import msgspec

from gateway.errors import InvalidInput, Problem
from gateway.unified.jsonstrings import WINDOW, Unreadable, end_of_escaped
from gateway.unified.limits import count_separators, too_many_values
from gateway.unified.payloads import ExtractedBody
from gateway.unified.validate import Problems, Reading, child, json_type, shorten

_MAX_DIGITS = 400
_INT64 = range(-(2**63), 2**63)
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*"', re.DOTALL)
_COMPLETE_STRINGS = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*")*', re.DOTALL)
_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_UNSAFE_ESCAPE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""How an unsafe character, or half of a safe one, is written: raw ones are no JSON, or no UTF-8."""
_BOM = b"\xef\xbb\xbf"


class _BadNumber(msgspec.Struct, frozen=True):
    """Marks a number that can't be read safely in the decoded data."""

    text: str
    reason: str
    expected: str


class _Repeated(dict[str, Any]):
    """An object with duplicate keys."""

    keys_repeated: tuple[str, ...] = ()


def decode_text(text: str, place: str, reading: Reading) -> Any:
    """Decode JSON in a string, such as a tool call's arguments; None and problems at `place` if it is wrong.

    Raises:
        InvalidInput: together with what was read before, it has more values than the limits allow.
    """
    problems = reading.problems
    before = len(problems)
    try:
        encoded = text.encode()
        reading.add_values(count_values(encoded, reading.values_left), place)
        value = _loads(text, ExtractedBody(b"", {}))
        check(value, encoded, problems, reading.limits.depth, place)
    except (ValueError, RecursionError) as error:
        problems.add(place, f"Not valid JSON: {_describe(error)}", "JSON text", shorten(text))
    return None if len(problems) > before else value


def parse(extracted: ExtractedBody) -> dict[str, Any]:
    """Parse the object in `extracted`, with marks where it is not strict JSON. Call `check` before using it.

    Raises:
        InvalidInput: the text has too many values, can't be parsed at all, or is not an object.
        BodyTooLarge: its keys are too long.
    """
    most = extracted.limits.values
    if len(extracted.text) > most and count_values(extracted.text, most) > most:
        raise too_many_values(most)
    try:
        text = extracted.text.removeprefix(_BOM).decode()
        value = _loads(text, extracted)
    except UnicodeDecodeError as error:
        start = error.start + (len(_BOM) if extracted.text.startswith(_BOM) else 0)
        raise _malformed(f"invalid UTF-8 at {_position(extracted, start)}", "UTF-8") from None
    except json.JSONDecodeError as error:
        position = len(text[: error.pos].encode())
        raise _malformed(f"{error.msg.removesuffix(' at')} at {_position(extracted, position)}") from None
    except (Unreadable, RecursionError) as error:
        raise _malformed(_describe(error)) from None
    if not isinstance(value, dict):
        raise InvalidInput.of([Problem("", "The body is not a JSON object", "object", json_type(value))])
    return value


_Path = tuple["_Path", int | str] | None
"""Place of a value: the path of its parent, and its index or key. It is formatted only for a problem."""


def check(value: Any, text: bytes, problems: Problems, max_depth: int, place: str = "") -> None:
    """Add a problem for everything in `value`, as it was parsed from `text`, that strict JSON refuses.

    Raises:
        InvalidInput: there are more problems than are listed.
    """
    if _UNSAFE_ESCAPE.search(text) is None and _is_strict(value, max_depth):
        return
    waiting: list[tuple[Any, _Path, int]] = [(value, None, 1)]

    def name(path: _Path) -> str:
        keys = []
        while path is not None:
            path, key = path
            keys.append(key)
        return reduce(child, reversed(keys), place)

    while waiting:
        item, at, depth = waiting.pop()
        match item:
            case str():
                _check_string(item, partial(name, at), problems, "string")
            case _BadNumber():
                problems.add(name(at), item.reason, item.expected, shorten(item.text))
            case list() | dict() if depth > max_depth:
                problems.add(name(at), f"Nested more than {max_depth} levels deep", f"at most {max_depth} levels")
            case list():
                # Reversed, because the stack returns the last one first, and problems have the order of the body.
                children = [(element, (at, index), depth + 1) for index, element in _worth_a_look(item)]
                waiting += reversed(children)
            case dict():
                for key in getattr(item, "keys_repeated", ()):
                    problems.add(name((at, key)), "The key occurs more than once", "unique keys", shorten(key))
                for key in item:
                    if not _is_safe(key):
                        _check_string(key, partial(name, (at, key)), problems, "key")
                children = [(element, (at, key), depth + 1) for key, element in _worth_a_look(item)]
                waiting += reversed(children)


def _is_strict(value: Any, levels: int) -> bool:
    """Return True if nothing but a string in `value` is refused, as in most bodies. levels: that it may have."""
    items = [value]
    for _ in range(levels + 1):
        containers = [item for item in items if type(item) not in _PLAIN]
        if not containers:
            return True
        if not {*map(type, containers)} <= _CONTAINERS:
            return False
        items = []
        for container in containers:
            items += container.values() if type(container) is dict else container
    return False


def _worth_a_look(value: list[Any] | dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield index or key, and item, of every item that can be wrong."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    return ((at, item) for at, item in items if not isinstance(item, _SCALARS) and not _is_safe(item))


_SCALARS = (bool, int, float, type(None))
_PLAIN = frozenset({*_SCALARS, str})
_CONTAINERS = frozenset({dict, list})


def _is_safe(item: Any) -> bool:
    return isinstance(item, str) and item.isascii() and "\x00" not in item


def _check_string(text: str, place: Callable[[], str], problems: Problems, what: str) -> None:
    unsafe = _UNSAFE.search(text)
    if unsafe:
        name = "U+0000" if unsafe[0] == "\x00" else f"the lone surrogate U+{ord(unsafe[0]):04X}"
        problems.add(place(), f"The {what} holds {name} at character {unsafe.start()}", "text without it", name)


def _loads(text: str, extracted: ExtractedBody) -> Any:
    if not extracted.blobs:
        return _DECODER.decode(text)

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # An extracted key is restored at once, because two equal keys have different tokens.
        return _members([(extracted.restore(key), value) for key, value in pairs])

    return _decoder(members).decode(text)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    decoded = dict(pairs)
    if len(decoded) == len(pairs):
        return decoded
    repeated = _Repeated(decoded)
    repeated.keys_repeated = tuple(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
    return repeated


def _decoder(members: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=members, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def _integer(digits: str) -> int | _BadNumber:
    if len(digits) <= 20 and (number := int(digits)) in _INT64:
        return number
    return _BadNumber(digits, "The integer needs more than 64 bits", "an integer from -2^63 to 2^63-1")


def _float(digits: str) -> float | _BadNumber:
    if len(digits) <= _MAX_DIGITS and math.isfinite(number := float(digits)):
        return number
    return _BadNumber(digits, "The number does not fit a double", f"a double of at most {_MAX_DIGITS} characters")


def _constant(name: str) -> _BadNumber:
    return _BadNumber(name, f"{name} is not a JSON number", "a number, a string or null")


_DECODER = _decoder(_members)


def count_values(text: bytes, most: int) -> int:
    """Count the commas and opening brackets outside strings; counting stops above `most`.

    If there are at most `most` with those in strings, that number is returned.
    """
    total = 0
    for start in range(0, len(text), _COUNTED):
        total += count_separators(text, start, start + _COUNTED)
        if total > most:
            return _count_outside_strings(text, most)
    return total


_COUNTED = 1 << 20


def _count_outside_strings(text: bytes, most: int) -> int:
    total = position = 0
    while position < len(text) and total <= most:
        run = _COMPLETE_STRINGS.match(text, position, position + WINDOW)
        assert run is not None
        if run.end() > position:
            piece = _STRING.sub(b"", text[position : run.end()])
            total += count_separators(piece, 0, len(piece))
            position = run.end()
        else:  # a string that continues after the window
            end = end_of_escaped(text, position + 1)
            if end < 0:
                break
            position = end + 1
    return total


def _describe(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply to be read"
    return f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)


_STRICT = "Send strict JSON: no comments, nothing after the object."


def _malformed(what: str, expected: str = "a JSON object") -> InvalidInput:
    error = InvalidInput.of([Problem("", f"The body is not valid JSON: {what}", expected, help=_STRICT)])
    assert isinstance(error, InvalidInput)
    return error


def _position(extracted: ExtractedBody, position: int) -> str:
    """Return line and column (in bytes, both from 1) in the original body of a byte of the extracted text."""
    before = extracted.text[:position]
    start = before.rfind(b"\n") + 1
    column = extracted.offset(position) - extracted.offset(start)
    return f"line {before.count(chr(10).encode()) + 1}, column {column + 1}"

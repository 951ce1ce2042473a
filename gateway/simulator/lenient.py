"""Tests if the cluster treats a text as a JSON object or array, and inserts it raw.

The cluster parses the text with two lenient parsers, and both must succeed. This parser follows the probes
(docs/evidence/facts.md, "Rendering, in detail"): it accepts unquoted and single-quoted strings, ``=`` for ``:``, ``;``
for ``,``, empty elements and a trailing comma in an array. It rejects duplicate keys, comments, anything after the
value, anything but JSON white space before it, and scalars.
"""

from __future__ import annotations

import json
from typing import Any

_SPACE = " \t\r\n"
_WORD_ENDS = frozenset("{}[]:,;='\"\\/#")
_ESCAPES = frozenset("\"'\\/btnfru")


class _NotJson(Exception):
    pass


def is_json(text: str | None, max_depth: int | None = None) -> bool:
    """Return True if `text` counts as a JSON object or array.

    max_depth: the deepest nesting that is accepted: None for any depth on 2.19, 255 on 3.x.
    """
    if text is None:
        return False
    start = text.lstrip(_SPACE)[:1]
    if start not in ("{", "["):
        return False
    if max_depth is None or text.count("{") + text.count("[") <= max_depth:
        try:
            _STRICT.decode(text)
        except (ValueError, RecursionError):
            pass
        else:
            return True
    try:
        return _Scanner(text, max_depth).accepts()
    except _NotJson:
        return False


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("duplicate key")


_STRICT = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_int=str, parse_float=str, parse_constant=str)


class _Scanner:
    """One pass over the text, with an explicit stack, because nesting may exceed Python's recursion limit."""

    def __init__(self, text: str, max_depth: int | None) -> None:
        self.text = text
        self.pos = 0
        self.max_depth = max_depth
        self.after_comma = False

    def accepts(self) -> bool:
        stack: list[set[str] | None] = []  # names seen in an object, None for an array
        self._open(stack)
        while stack:
            if stack[-1] is None:
                self._array_step(stack)
            else:
                self._object_step(stack, stack[-1])
        self._blank()
        return self.pos == len(self.text)

    def _open(self, stack: list[set[str] | None]) -> None:
        stack.append(set() if self._next() == "{" else None)
        self.pos += 1
        self.after_comma = False
        if self.max_depth is not None and len(stack) > self.max_depth:
            raise _NotJson

    def _array_step(self, stack: list[set[str] | None]) -> None:
        char = self._next()
        if char == "]":
            self._close(stack)
        elif char in ",;":
            self.pos += 1  # an empty element
        else:
            self._value(stack)

    def _object_step(self, stack: list[set[str] | None], names: set[str]) -> None:
        if self._next() == "}":
            if self.after_comma:
                raise _NotJson
            self._close(stack)
            return
        name = self._quoted() if self.text[self.pos] in "\"'" else self._word()
        if name in names:
            raise _NotJson
        names.add(name)
        if self._next() not in ":=":
            raise _NotJson
        self.pos += 1
        self._value(stack)

    def _value(self, stack: list[set[str] | None]) -> None:
        char = self._next()
        if char in "{[":
            self._open(stack)
            return
        if char in "\"'":
            self._quoted()
        else:
            self._word()
        self._after_value(stack)

    def _close(self, stack: list[set[str] | None]) -> None:
        self.pos += 1
        stack.pop()
        if stack:
            self._after_value(stack)

    def _after_value(self, stack: list[set[str] | None]) -> None:
        char = self._next()
        self.after_comma = char in ",;"
        if self.after_comma:
            self.pos += 1
        elif char != ("]" if stack[-1] is None else "}"):
            raise _NotJson

    def _next(self) -> str:
        self._blank()
        if self.pos >= len(self.text):
            raise _NotJson
        return self.text[self.pos]

    def _blank(self) -> None:
        while self.pos < len(self.text) and self.text[self.pos] in _SPACE:
            self.pos += 1

    def _word(self) -> str:
        start = self.pos
        while self.pos < len(self.text) and self.text[self.pos] > " " and self.text[self.pos] not in _WORD_ENDS:
            self.pos += 1
        if start == self.pos:
            raise _NotJson
        return self.text[start : self.pos]

    def _quoted(self) -> str:
        quote, start = self.text[self.pos], self.pos + 1
        self.pos = start
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char == quote:
                self.pos += 1
                return self.text[start : self.pos - 1]
            if char in "\n\r\0":
                break
            self.pos += self._escape() if char == "\\" else 1
        raise _NotJson

    def _escape(self) -> int:
        """Return the length of the escape sequence that begins here."""
        kind = self.text[self.pos + 1 : self.pos + 2]
        if kind not in _ESCAPES or not kind:
            raise _NotJson
        if kind != "u":
            return 2
        digits = self.text[self.pos + 2 : self.pos + 6]
        if len(digits) < 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise _NotJson
        return 6

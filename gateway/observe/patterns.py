"""Regular expressions of the operator, whose time is bounded: Python's matcher can't be interrupted.

A text is searched in windows. The number of ways in which an expression can match within a window is the product of
its repetitions, which must be small. A possessive repetition or an atomic group has one way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_WINDOW = 512
"""Characters that are searched at a time. Windows overlap by half, so a match may have half as many."""
_MOST = 8192
"""Most ways in which an expression may match at one position."""
_LONGEST = 65_536


class BadPattern(Exception):
    """An expression is not valid, or may take long. The message says why."""


class Pattern:
    """An expression whose matches are hidden.

    Raises:
        BadPattern: see there.
    """

    def __init__(self, text: str) -> None:
        try:
            tree = parser.parse(text)
            self._compiled = re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise BadPattern(f"is not a regular expression: {error}") from None
        if self._compiled.search("") is not None:
            raise BadPattern("matches an empty text, and so every place of any text")
        if _ways(tree) > _MOST:
            raise BadPattern(
                "may take long on some texts; write repetitions as {1,64}, or possessive (++), and none within another"
            )

    def search(self, text: str) -> bool:
        """Return True if there is a match."""
        return next(self.spans(text), None) is not None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of each match, from left to right. They don't overlap."""
        done = 0
        for window in range(0, max(len(text) - _WINDOW // 2, 1), _WINDOW // 2):
            end = min(window + _WINDOW, len(text))
            while (match := self._compiled.search(text, max(window, done), end)) is not None:
                last = self._extended(text, match, end)
                if last == match.start():
                    break
                yield match.start(), last
                done = last
                if done >= end:
                    break

    def _extended(self, text: str, match: re.Match[str], end: int) -> int:
        """Return the end of a match that may go on after its window."""
        last = match.end()
        while last == end < len(text) and last - match.start() < _LONGEST:
            end = min(end + _WINDOW, len(text))
            longer = self._compiled.match(text, match.start(), end)
            if longer is None or longer.end() <= last:
                break
            last = longer.end()
        return last


def _ways(tree: Sequence[Any]) -> int:
    """Return in how many ways an expression can match at one position of a window, at most."""
    ways = 1
    for code, argument in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, part = argument
            inner = _ways(part)
            repeats = min(int(most), _WINDOW) - int(least) + 1
            ways *= repeats * inner if inner == 1 or most == 1 else _MOST + 1
        elif code is codes.SUBPATTERN:
            ways *= _ways(argument[3])
        elif code is codes.BRANCH:
            ways *= sum(map(_ways, argument[1]))
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            ways *= _ways(argument[1])
        elif code in (codes.POSSESSIVE_REPEAT, codes.ATOMIC_GROUP):
            part = argument[2] if code is codes.POSSESSIVE_REPEAT else argument
            ways *= 1 if _ways(part) == 1 else _MOST + 1
        elif code in (codes.GROUPREF, codes.GROUPREF_EXISTS):
            ways *= _MOST + 1
        ways = min(ways, _MOST + 1)
    return ways

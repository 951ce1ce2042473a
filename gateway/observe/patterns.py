"""Regular expressions of the operator. RE2 matches in time that grows only with the text, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator

import re2  # type: ignore[import-untyped]

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

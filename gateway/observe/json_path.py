"""Paths of members in JSON, and the place of a reader of JSON tokens."""

from __future__ import annotations

import json

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


def unescape(content: str) -> str | None:
    """Return the text of a JSON string without its quotes; None if that is not valid."""
    if "\\" not in content:
        return content
    try:
        text: str = json.loads(f'"{content}"', strict=False)
    except ValueError:
        return None
    return text


class Place:
    """The position of a token reader in a document. string: the last token, if it was a string.

    base: the path of the string of JSON that is read; empty for a whole document.
    """

    def __init__(self, base: Path = ()) -> None:
        self._keys: list[str | int] = []
        self._base = base
        self.string: str | None = None

    @property
    def path(self) -> Path:
        """The path of the value that is read."""
        return (*self._base, *map(str, self._keys))

    @property
    def in_array(self) -> bool:
        """The value that is read is an item."""
        return bool(self._keys) and isinstance(self._keys[-1], int)

    def open(self, sign: str) -> None:
        """Begin an object or an array."""
        self._keys.append(0 if sign == "[" else "")
        self.string = None

    def close(self) -> None:
        """End it."""
        if self._keys:
            self._keys.pop()
        self.string = None

    def next(self) -> None:
        """Go to the next member or item."""
        if self._keys:
            last = self._keys[-1]
            self._keys[-1] = last + 1 if isinstance(last, int) else ""
        self.string = None

    def name(self) -> str | None:
        """Return the name before a colon, and move to its value; None if there is no string before the colon."""
        string, self.string = self.string, None
        if string is None:
            return None
        name = unescape(string[1:-1]) or string[1:-1]
        if self._keys and not self.in_array:
            self._keys[-1] = name
        return name

"""Takes large texts, such as the base64 of images, out of content blocks, for stores that keep them apart."""

from __future__ import annotations

from typing import Any

from gateway.memory.model import Block

LARGE = 65_536
"""Characters of a text from which on it is kept apart."""

Place = tuple[str | int, ...]
"""Keys and indexes that lead to a text: ``(0, "image", "source", "bytes")``."""


def take_out(content: tuple[Block, ...]) -> tuple[list[Any], dict[Place, str]]:
    """Return `content` with each large text replaced by an empty one, and the large texts by place.

    Raises:
        RecursionError: `content` is nested too deeply.
    """
    found: dict[Place, str] = {}
    return [_without(block, (index,), found) for index, block in enumerate(content)], found


def _without(value: Any, place: Place, found: dict[Place, str]) -> Any:
    match value:
        case str() if len(value) >= LARGE:
            found[place] = value
            return ""
        case dict():
            return {key: _without(item, (*place, key), found) for key, item in value.items()}
        case list() | tuple():
            return [_without(item, (*place, index), found) for index, item in enumerate(value)]
        case _:
            return value


def put_back(content: tuple[Block, ...], place: Place, text: str) -> None:
    """Write a text that was taken out into `content` again, in place.

    Raises:
        LookupError, TypeError: `content` has no such place.
    """
    value: Any = content
    for step in place[:-1]:
        value = value[step]
    value[place[-1]]  # must exist
    value[place[-1]] = text

"""JSON data as a tree: finds, reads and replaces values by their path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Path = tuple[str | int, ...]


def locate(value: Any, needle: str, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all strings in `value` that contain `needle`, in order."""
    match value:
        case str():
            if needle in value:
                yield path
        case dict():
            for name, member in value.items():
                yield from locate(member, needle, (*path, name))
        case list():
            for index, item in enumerate(value):
                yield from locate(item, needle, (*path, index))


def value_at(value: Any, path: Path) -> Any:
    """Return the value at `path`; None if `value` has no such path."""
    for step in path:
        match value, step:
            case dict(), str():
                value = value.get(step)
            case list(), int() if step < len(value):
                value = value[step]
            case _:
                return None
    return value


def with_value(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of `value` in which the value at `path` is `new`."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = with_value(value[path[0]], path[1:], new)
    return copy


def with_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of `value` in which everything but objects and arrays went through `change`."""
    match value:
        case dict():
            return {name: with_leaves(member, change) for name, member in value.items()}
        case list():
            return [with_leaves(item, change) for item in value]
    return change(value)


def replace_texts(value: Any, texts: Mapping[str, str]) -> Any:
    """Return a copy of `value` with each key of `texts` replaced in every string; names of members stay."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, str):
            for old, new in texts.items():
                leaf = leaf.replace(old, new)
        return leaf

    return with_leaves(value, change)

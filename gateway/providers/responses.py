"""Helpers for `Provider.read_response`: safe access to JSON data whose shape is not known to be right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.providers.values import ToolCall, Usage


def member(value: Any, *path: str | int) -> Any:
    """Return the value at `path` (member names and array positions); None if there is none."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of an array; nothing if `value` is not an array."""
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def text(value: Any) -> str:
    """Return a string as it is, "" for any other value."""
    return value if isinstance(value, str) else ""


def tool_call(id: Any, name: Any, input: Any) -> ToolCall:
    """Return a tool call; an id or name that is no string becomes ""."""
    return ToolCall(text(id), text(name), input)


def usage(counts: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Usage | None:
    """Return the sums of the named counts; None if `counts` is no object with the first of each."""
    if not isinstance(counts, dict) or not isinstance(counts.get(inputs[0]), int):
        return None

    def total(names: tuple[str, ...]) -> int:
        return sum(count for name in names if isinstance(count := counts.get(name), int))

    return Usage(total(inputs), total(outputs))

"""Helpers for `Provider.read_response`: safe access to JSON data whose shape is not known to be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def stop_reason(reason: Any, names: Mapping[str, str]) -> str:
    """Return the reason's name in `names`, the reason itself if it is not there, "" for what is no string."""
    return names.get(reason, reason) if isinstance(reason, str) else ""


def usage(counts: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Usage | None:
    """Return the sums of the named counts; None if `counts` is no object with the first of each.

    A cluster writes the counts of an answer that it passes on as 11.0 (2.19.0 ``flow_raw``).
    """
    if not isinstance(counts, dict) or count(counts.get(inputs[0])) is None:
        return None

    def total(names: tuple[str, ...]) -> int:
        return sum(count(counts.get(name)) or 0 for name in names)

    return Usage(total(inputs), total(outputs))


def count(value: Any) -> int | None:
    """Return a count of tokens; None for any other value."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

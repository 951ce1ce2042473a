"""Reads server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import NamedTuple


class Event(NamedTuple):
    """An event. id: the last one that was sent, "" for none."""

    name: str
    data: str
    id: str


async def read_events(lines: AsyncIterable[bytes]) -> AsyncIterator[Event]:
    """Yield the events of a stream's lines. One that is cut at the end is left out."""
    name, id = "message", ""
    data: list[str] = []
    async for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Event(name, "\n".join(data), id)
            name, data = "message", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            id = value

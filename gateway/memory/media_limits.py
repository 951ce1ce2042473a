"""How many media of a session are sent again: as many as the LLM's API takes in one request. Pure.

What the client itself sends now is never cut. Of what is only remembered, the oldest media become texts that name them;
the session keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.memory.model import Block, Message
from gateway.memory.repair import Placed
from gateway.memory.window import MEDIA
from gateway.notices import Notice
from gateway.providers.capabilities import RequestLimits

_CODE = "MEMORY_MEDIA_LEFT_OUT"


class _Medium(msgspec.Struct, frozen=True):
    """A medium in a message. data: its base64, or where it is. at: its place. path: the positions of its block, and of
    its part in a tool's result."""

    kind: str
    data: str
    size: int
    path: tuple[int, ...]
    at: str


def within_limits(
    stored: Sequence[Placed], sent: Sequence[Message], new: Sequence[Message], limits: RequestLimits
) -> tuple[list[Placed], tuple[Notice, ...]]:
    """Return the stored messages with as many media as fit beside those of `new`, and what was left out.

    sent: messages of the client that the session has: their media stay. new: those that it does not have.
    """
    fixed = Counter(medium.data for message in sent for medium in _media(Placed(message, "")))
    counts: Counter[str] = Counter()
    size = 0
    removable: list[tuple[int, _Medium]] = []
    everything = list(enumerate([*stored, *(Placed(message, "") for message in new)]))
    for number, placed in reversed(everything):  # the newest of equal media are those that the client sent
        for medium in _media(placed):
            counts[medium.kind] += 1
            size += medium.size
            if number >= len(stored):
                continue
            if fixed[medium.data]:
                fixed[medium.data] -= 1
            else:
                removable.append((number, medium))
    removable.sort(key=lambda item: item[0])
    left_out: dict[int, list[_Medium]] = {}
    notices: list[Notice] = []
    for number, medium in removable:
        most = limits.media.get(medium.kind, 0)
        too_many, too_large = 0 < most < counts[medium.kind], 0 < limits.bytes < size
        if too_many or (too_large and medium.size):
            counts[medium.kind] -= 1
            size -= medium.size
            left_out.setdefault(number, []).append(medium)
            limit = f"{most} of this kind" if too_many else f"{limits.bytes:,} bytes of media"
            reason = f"a text stands for this {medium.kind} of an earlier turn: the LLM takes {limit} in a request"
            notices.append(Notice(_CODE, reason, medium.at))
    kept = [_without(placed, left_out[n]) if n in left_out else placed for n, placed in enumerate(stored)]
    return kept, tuple(notices)


def _media(placed: Placed) -> Iterator[_Medium]:
    for position, block in enumerate(placed.message.content):
        at = f"{placed.at}.content[{position}]"
        if (kind := _kind(block)) is not None:
            yield _Medium(kind, *_data(block[kind]), (position,), at)
        result = block.get("toolResult")
        parts = result.get("content") if isinstance(result, dict) else None
        for inner, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and (kind := _kind(part)) is not None:
                yield _Medium(kind, *_data(part[kind]), (position, inner), f"{at}.toolResult.content[{inner}]")


def _kind(block: Block) -> str | None:
    return next((kind for kind in block if kind in MEDIA and isinstance(block[kind], dict)), None)


def _data(medium: Any) -> tuple[str, int]:
    """Return a medium's base64 and its length, or a text that says where it is, and 0."""
    source = medium.get("source")
    data = source.get("bytes") if isinstance(source, dict) else None
    return (data, len(data)) if isinstance(data, str) else (repr(source), 0)


def _without(placed: Placed, media: Sequence[_Medium]) -> Placed:
    content = list(placed.message.content)
    for medium in media:
        position, *inner = medium.path
        block = content[position]
        if not inner:
            content[position] = _named(block, medium.kind)
            continue
        parts = list(block["toolResult"]["content"])
        parts[inner[0]] = _named(parts[inner[0]], medium.kind)
        content[position] = {**block, "toolResult": {**block["toolResult"], "content": parts}}
    return replace(placed, message=msgspec.structs.replace(placed.message, content=tuple(content)))


def _named(block: Block, kind: str) -> Block:
    """Return a text that names a medium: its kind, its name, and its format."""
    medium = block[kind]
    name = f" {medium['name']!r}" if isinstance(medium.get("name"), str) else ""
    format = f", {medium['format']}" if isinstance(medium.get("format"), str) else ""
    return {"text": f"(Here was the {kind}{name}{format}. It is not sent again.)"}

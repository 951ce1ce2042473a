"""`delivery: describe`: media that can't be delivered are replaced by a text note."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from gateway.notices import Notice
from gateway.unified.model import AgentInput, Base64, ContentBlock, Media, Text, ToolResult

Part = TypeVar("Part")


def describe(agent_input: AgentInput, places: Collection[str]) -> tuple[AgentInput, tuple[Notice, ...]]:
    """Replace media in turns and tool results by text notes; return the conversation and a notice for each.

    places: those of a refusal's problems. Only the media there are replaced, or all media if none is there.
    """
    named = [media.at for media in agent_input.media if media.at in places]
    chosen = frozenset(named or (media.at for media in agent_input.media))
    notices: list[Notice] = []

    def note(part: Part) -> Part | Text:
        if not isinstance(part, Media) or part.at not in chosen:
            return part
        notices.append(Notice("MEDIA_DESCRIBED", f"the {part.kind} was replaced by a text note", part.at))
        return Text(_note(part), part.at)

    def describe_block(block: ContentBlock) -> ContentBlock:
        if isinstance(block, ToolResult):
            return replace(block, content=tuple(note(part) for part in block.content))
        return note(block)

    messages = tuple(
        replace(m, content=tuple(describe_block(block) for block in m.content)) for m in agent_input.messages
    )
    return replace(agent_input, messages=messages), tuple(notices)


def _note(media: Media) -> str:
    name = f" {media.name!r}" if media.name else ""
    if isinstance(media.source, Base64):
        data = media.source.data
        padding = bytes(data[-2:]).count(b"=")
        size = f", {len(data) * 3 // 4 - padding} bytes"
    else:
        size = f" at {media.source.url}"
    return f"[{media.kind}{name} ({media.format}{size}) was not delivered]"

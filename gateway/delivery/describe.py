"""An operator's way out: media that can't be delivered are replaced by a short note in words."""

from __future__ import annotations

from dataclasses import replace

from gateway.notices import Notice
from gateway.unified.model import AgentInput, Base64, ContentBlock, Media, Text


def described(agent_input: AgentInput) -> tuple[AgentInput, tuple[Notice, ...]]:
    """The conversation with a text note for each media block, and a notice for each."""
    notices: list[Notice] = []

    def noted(block: ContentBlock) -> ContentBlock:
        if not isinstance(block, Media):
            return block
        notices.append(Notice("MEDIA_DESCRIBED", f"the {block.kind} was replaced by a note in words", block.at))
        return Text(_note(block), block.at)

    messages = tuple(replace(m, content=tuple(noted(block) for block in m.content)) for m in agent_input.messages)
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

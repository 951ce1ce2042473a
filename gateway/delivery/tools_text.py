"""Tool calls and results as text, for agents whose LLM can't be given them in any other form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gateway.notices import Notice
from gateway.unified.model import AgentInput, ContentBlock, Json, Media, Message, Text, ToolResult, ToolUse
from gateway.unified.roles import meaning_of


def tools_as_text(agent_input: AgentInput, roles: Mapping[str, str]) -> tuple[AgentInput, Notice] | None:
    """Write each tool block as the JSON text of Bedrock Converse's block, in its place; a turn of a tool is the user's.

    Return None if there is no such block, or if a result has media, which a text can't hold.

    roles: the operator's role table (`MappingOptions.roles`).
    """
    blocks = [block for message in agent_input.messages for block in message.content]
    tools = [block for block in blocks if isinstance(block, ToolUse | ToolResult)]
    if not tools or any(isinstance(part, Media) for block in tools for part in _content(block)):
        return None
    messages = tuple(_written(message, roles) for message in agent_input.messages)
    notice = Notice("TOOLS_AS_TEXT", "the connector can't carry tool calls and results, so they are text", tools[0].at)
    return replace(agent_input, messages=messages), notice


def _content(block: ToolUse | ToolResult) -> Iterable[Text | Json | Media]:
    return block.content if isinstance(block, ToolResult) else ()


def _written(message: Message, roles: Mapping[str, str]) -> Message:
    role = "user" if meaning_of(message, roles).standard == "tool" else message.role
    return replace(message, role=role, content=tuple(map(_as_text, message.content)))


def _as_text(block: ContentBlock) -> ContentBlock:
    match block:
        case ToolUse():
            value: dict[str, Any] = {"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.input}}
        case ToolResult():
            result: dict[str, Any] = {"toolUseId": block.id, "content": [_part(part) for part in block.content]}
            result |= {"name": block.name} if block.name else {}
            value = {"toolResult": {**result, **({"status": "error"} if block.is_error else {})}}
        case _:
            return block
    return Text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), block.at)


def _part(part: Text | Json | Media) -> dict[str, Any]:
    assert not isinstance(part, Media)
    return {"text": part.text} if isinstance(part, Text) else {"json": part.value}

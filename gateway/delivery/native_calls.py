"""Tool calls for an agent that takes `input` itself (`conversational_v2`), where the cluster can't carry them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from gateway.mlcommons.memory_form import is_storable
from gateway.mlcommons.profile import AgentProfile
from gateway.notices import Notice
from gateway.providers.capabilities import NEUTRAL_CALL_TEXT
from gateway.unified.model import AgentInput, Message, ToolResult, ToolUse


def adapt_tool_calls(profile: AgentProfile, value: Any, agent_input: AgentInput) -> tuple[Any, tuple[Notice, ...]]:
    """Return `value`, an `input` in the cluster's spelling, so that its tool calls reach the LLM; and what was changed.

    - An id with a placeholder is replaced, in call and result. The cluster fills in a call's id twice and a result's
      once, so no text in its place is the same for the LLM.
    - On OpenAI, a turn of calls alone gets a text. The cluster always sends `content` as a list, and OpenAI refuses an
      empty one.

    agent_input: the same, decoded.
    """
    if not isinstance(value, list):
        return value, ()
    needs_text = profile.provider.startswith("openai/")
    notices = tuple(notice for message in agent_input.messages for notice in _notices(message, needs_text))
    return ([_adapted(item, needs_text) for item in value] if notices else value), notices


def _notices(message: Message, needs_text: bool) -> Iterator[Notice]:
    tools = [block for block in message.content if isinstance(block, ToolUse | ToolResult)]
    for block in tools:
        if not is_storable(block.id):
            yield Notice("TOOL_ID_CLEANED", f"The id has a placeholder and is sent as {_clean(block.id)!r}", block.at)
    if needs_text and len(tools) == len(message.content) and any(isinstance(block, ToolUse) for block in tools):
        yield Notice("NEUTRAL_TEXT_ADDED", "A text is added: the turn holds tool calls alone", message.at)


def _adapted(item: Any, needs_text: bool) -> Any:
    match item:
        case {"toolCallId": str(id)}:
            return {**item, "toolCallId": _clean(id)}
        case {"toolCalls": [_, *_] as calls}:
            content = item.get("content") or ([{"type": "text", "text": NEUTRAL_CALL_TEXT}] if needs_text else [])
            return {**item, "content": content, "toolCalls": [{**call, "id": _clean(call["id"])} for call in calls]}
    return item


def _clean(id: str) -> str:
    """Return an id without placeholders, always the same for the same id."""
    return id if is_storable(id) else f"call_{blake2b(id.encode(), digest_size=12).hexdigest()}"

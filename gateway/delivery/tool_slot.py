"""Earlier tool calls: their tools declared beside the messages, or calls and results as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Addition
from gateway.delivery.escaping import dump
from gateway.delivery.question_placements import raw_names
from gateway.delivery.target import Turn
from gateway.delivery.template_change import TOOLS_MEMBER, TOOLS_VALUE, UnreadableTemplate, member_slots
from gateway.mlcommons.template import PREFIX, SUFFIX
from gateway.notices import Notice
from gateway.unified.model import AgentInput, ContentBlock, Json, Media, Message, Text, ToolResult, ToolUse
from gateway.unified.roles import meaning_of

_DECLARED = Notice("TOOLS_DECLARED", "the tools of earlier calls are declared as not available, as the API requires it")


def declarations(call: CallModel, messages: list[Turn]) -> Iterator[Addition]:
    """Yield ways to declare the tools of the calls in `messages`: one that adds nothing if that is not needed."""
    member = call.provider.tools_member
    value = call.provider.tool_declarations(messages) if member else None
    body = call.render(call.with_question({})) if value is not None else None
    if value is None or (isinstance(body, dict) and member in body):
        yield Addition()
        return
    try:
        slots = member_slots(call.model.connector.request_body)
    except (UnreadableTemplate, RecursionError):
        return
    # If an agent can't be called without messages, every LLM tool of a flow gets them, and needs the tools as well.
    key = call.key if call.legacy_body is not None else str
    for slot in slots:
        if call.base_parameters.get(slot):
            continue
        if f'"{member}"' in call.model.connector.parameters.get(TOOLS_MEMBER, ""):
            # The cluster escapes a request's parameters, but not those of the connector.
            reference = {key(slot): f"{PREFIX}{TOOLS_MEMBER}{SUFFIX}", key(TOOLS_VALUE): dump(value)}
            yield Addition(reference, _Declare(member, value), (_DECLARED,))
        elif call.inserts_raw(slot):
            text = f",{dump(member)}:{dump(value)}"
            names = raw_names(call, {slot: text}) if call.raw_parameters else {}
            yield Addition({key(slot): text, **names}, _Declare(member, value), (_DECLARED,))


@dataclass(frozen=True, slots=True)
class _Declare:
    """Adds the member that declares tools."""

    member: str
    value: Any

    def __call__(self, body: Any) -> Any:
        if not isinstance(body, dict) or self.member in body:
            return None
        return {**body, self.member: self.value}


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

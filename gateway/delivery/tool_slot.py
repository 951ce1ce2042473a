"""Tools declared beside the messages: those of the client, and those of earlier calls; or such calls as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Addition
from gateway.delivery.escaping import dump
from gateway.delivery.question_placements import raw_names
from gateway.delivery.template_change import TOOLS_MEMBER, TOOLS_VALUE, UnreadableTemplate, member_slots
from gateway.mlcommons.template import PREFIX, SUFFIX
from gateway.providers.base import ProviderRequest
from gateway.unified.model import AgentInput, ContentBlock, Json, Media, Message, Text, ToolResult, ToolSpec, ToolUse
from gateway.unified.roles import meaning_of

_DECLARED = Notice("TOOLS_DECLARED", "the tools of earlier calls are declared as not available, as the API requires it")


_NOT_STRICT = Notice(
    "TOOL_NOT_STRICT", "this LLM's API has no `strict`: a call's arguments may not follow the tool's schema", "tools"
)
_EARLIER = "Used earlier in this conversation. Not available now."
"""The description of a tool that is declared only because the API requires it."""


def declarations(call: CallModel, request: ProviderRequest) -> Iterator[Addition]:
    """Yield ways to declare the client's tools, and those of earlier calls where the API requires that.

    One that adds nothing is yielded if there is nothing to declare, or if earlier calls are declared already. Nothing
    is yielded if the client's tools have no place.
    """
    provider, offered = call.provider, request.tools
    specs = {spec.name: spec for spec in offered.specs} if offered is not None else {}
    called = provider.called_tools(request.messages) if provider.needs_declarations else []
    earlier = [ToolSpec(name, _EARLIER, {"type": "object"}) for name in called if name not in specs]
    if not (specs or earlier):
        yield Addition()
        return
    body = call.render(call.with_question({}))
    if isinstance(body, dict) and provider.tools_member in body:
        if offered is None:
            yield Addition()
        return
    members = provider.declare([*specs.values(), *earlier], offered) if provider.tools_member else {}
    notices = (_DECLARED,) if earlier else ()
    if not provider.capabilities.strict_tools and any(spec.strict for spec in specs.values()):
        notices = (*notices, _NOT_STRICT)
    for parameters in _in_slots(call, members) if members else ():
        yield Addition(parameters, _Declare(members), notices)


def _in_slots(call: CallModel, members: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    """Yield parameters that put members into a slot of the body, for each slot."""
    try:
        slots = member_slots(call.model.connector.request_body)
    except (UnreadableTemplate, RecursionError):
        return
    # If an agent can't be called without messages, every LLM tool of a flow gets them, and needs the tools as well.
    key = call.key if call.legacy_body is not None else str
    alone = next(iter(members)) if len(members) == 1 else None
    for slot in slots:
        if call.base_parameters.get(slot):
            continue
        if alone is not None and f'"{alone}"' in call.model.connector.parameters.get(TOOLS_MEMBER, ""):
            # The cluster escapes a request's parameters, but not those of the connector.
            yield {key(slot): f"{PREFIX}{TOOLS_MEMBER}{SUFFIX}", key(TOOLS_VALUE): dump(members[alone])}
        elif call.inserts_raw(slot):
            text = "".join(f",{dump(name)}:{dump(value)}" for name, value in members.items())
            names = raw_names(call, {slot: text}) if call.raw_parameters else {}
            yield {key(slot): text, **names}


class _Declare(msgspec.Struct, frozen=True):
    """Adds the members that declare tools."""

    members: Mapping[str, Any]

    def __call__(self, body: Any) -> Any:
        if not isinstance(body, dict) or not self.members.keys().isdisjoint(body):
            return None
        return {**body, **self.members}


def tools_as_text(agent_input: AgentInput, roles: Mapping[str, str]) -> tuple[AgentInput, tuple[Notice, ...]] | None:
    """Write each tool block as the JSON text of Bedrock Converse's block, in its place; a turn of a tool is the user's.

    Return the conversation and what to report: a text has no place for the signature of a call. Return None if there is
    no such block, or if a result has media, which a text can't hold.

    roles: the operator's role table (`MappingOptions.roles`).
    """
    blocks = [block for message in agent_input.messages for block in message.content]
    tools = [block for block in blocks if isinstance(block, ToolUse | ToolResult)]
    if not tools or any(isinstance(part, Media) for block in tools for part in _content(block)):
        return None
    messages = tuple(_written(message, roles) for message in agent_input.messages)
    notices = [
        Notice("TOOLS_AS_TEXT", "the connector can't carry tool calls and results, so they are text", tools[0].at),
        *(
            Notice("SIGNATURE_LEFT_OUT", "a tool call that is sent as text has no signature", block.at)
            for block in tools
            if isinstance(block, ToolUse) and block.signature
        ),
    ]
    return replace(agent_input, messages=messages), tuple(notices)


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

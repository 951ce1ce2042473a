"""Decodes all spellings of the unified input to one model; ``docs/reference/input.md`` shows them."""

from __future__ import annotations

from typing import Any

from gateway.unified import tools
from gateway.unified.blocks import is_block, read_block, read_blocks, read_result_content
from gateway.unified.model import AgentInput, ContentBlock, InputType, Message, Text, ToolResult
from gateway.unified.roles import meaning
from gateway.unified.validate import Fields, Reading, child, json_type, shorten

EXPECTED_INPUT = "string, array of content blocks, or array of messages"
# Members of a message that stores and frameworks add for themselves, and that are not sent to a model.
HARMLESS = frozenset({"id", "message_id", "tracking_id", "metadata", "created_at", "updated_at"})
_FREQUENT = frozenset({"role", "content"})
"""The members of most messages."""
_PLAIN_ROLES = ("user", "assistant", "system", "developer")
_EXPECTED_CONTENT = "string, or non-empty array of content blocks"


def read_input(reading: Reading, value: Any) -> AgentInput:
    """Decode the value of `input`. The result is complete only if `reading` has no problems."""
    known = len(reading.problems)
    agent_input = _read_any(reading, value)
    if len(reading.problems) == known and all(message.is_blank for message in agent_input.messages):
        reading.problems.add(
            "input", "The input is empty: it holds neither text nor other content", "content", "blank text"
        )
    return agent_input


def _read_any(reading: Reading, value: Any) -> AgentInput:
    match value:
        case str():
            text = Text(reading.text(value, "input"), "input")
            return AgentInput(InputType.TEXT, (Message("user", (text,), "input"),))
        case [_, *_]:
            return _read_array(reading, value)
        case _:
            got = "empty array" if value == [] else json_type(value)
            reading.problems.add("input", "Invalid input format", EXPECTED_INPUT, got)
            return AgentInput(InputType.TEXT, ())


def _read_array(reading: Reading, items: list[Any]) -> AgentInput:
    """Decode an array by the sort of its first object. Items of the other sort are read for their problems only."""
    reading.add_items(len(items), "input")
    sorts = [_sort(item) for item in items]
    first = next((sort for sort in sorts if sort is not None), None)
    expected = first or InputType.CONTENT_BLOCKS
    wanted = _A[first] if first else "a content block or a message"
    messages: list[Message] = []
    blocks: list[ContentBlock] = []
    for index, (item, sort) in enumerate(zip(items, sorts, strict=True)):
        at = child("input", index)
        if sort is None:
            reading.problems.add(at, f"This item is not {wanted}", "object", json_type(item))
            continue
        if sort is not expected:
            reason = f"{_A[sort].capitalize()} in an array of {expected.value.replace('_', ' ')}"
            reading.problems.add(
                at,
                reason,
                _A[expected],
                _A[sort],
                "Send either messages only or content blocks only; a message takes content blocks in its content.",
            )
        if sort is InputType.MESSAGES:
            messages += _read_message(reading, item, at)
        elif block := read_block(reading, item, at):
            blocks.append(block)
    if expected is InputType.CONTENT_BLOCKS:
        messages = [Message("user", tuple(blocks), "input")]
    return AgentInput(expected, tuple(messages))


_A = {InputType.MESSAGES: "a message", InputType.CONTENT_BLOCKS: "a content block"}


def _sort(item: Any) -> InputType | None:
    if not isinstance(item, dict):
        return None
    if "role" not in item and is_block(item):
        return InputType.CONTENT_BLOCKS
    return InputType.MESSAGES


def _read_message(reading: Reading, item: dict[str, Any], at: str) -> list[Message]:
    """Return the message in a list; an empty list if it has no role."""
    if (plain := _read_plain_message(reading, item, at)) is not None:
        return [plain]
    message = Fields(reading, item, at)
    role = message.name("role")
    calls = call_id = ""
    if not item.keys() <= _FREQUENT:
        written = message.string("type", '"message"', required=False)
        if written not in (None, "message"):
            reason = 'The "type" of a message can only be "message"'
            message.problem("type", reason, '"message"', shorten(written or ""))
        calls = message.one_of(("toolCalls", "tool_calls"))
        call_id = message.one_of(("toolCallId", "tool_call_id"))
    content: list[ContentBlock]
    if call_id:
        content = _read_answer(message, role or "", calls, call_id)
    else:
        content = _read_content(message, bool(calls and message.get(calls)))
        content += tools.read_tool_calls(message, calls) if calls else []
        means = meaning(role or "", reading.roles)
        is_tool = means.standard == "tool" and not means.is_renamed  # a renamed one: see TOOL_RESULT_MISSING
        if is_tool and not all(isinstance(block, ToolResult) for block in content):
            message.problem(
                "toolCallId",
                "A message of role tool needs the id of the tool call that it answers",
                "the id of a tool call",
            )
    message.done(HARMLESS)
    return [Message(role, tuple(content), at)] if role else []


def _read_plain_message(reading: Reading, item: dict[str, Any], at: str) -> Message | None:
    """Return a message that is a role and texts, as most are; None for any other, and for one with problems."""
    if item.keys() != _FREQUENT or item["role"] not in _PLAIN_ROLES:
        return None
    place, content = f"{at}.content", item["content"]
    texts: list[ContentBlock] = []
    if isinstance(content, str) and reading.is_as_written(content):
        texts.append(Text(content, place))
    elif isinstance(content, list):
        for index, block in enumerate(content):
            match block:
                case {"type": "text", "text": str(text)} if len(block) == 2 and reading.is_as_written(text):
                    texts.append(Text(text, f"{place}[{index}]"))
                case _:
                    return None
        reading.add_items(len(content), place)
    return Message(item["role"], tuple(texts), at) if texts else None


def _read_answer(message: Fields, role: str, calls: str, call_id: str) -> list[ContentBlock]:
    if meaning(role, message.reading.roles).standard not in ("tool", "user"):
        message.problem(call_id, f"A message of role {role} can't answer a tool call", '"role": "tool"', shorten(role))
    if calls and message.get(calls):
        message.problem(calls, "A message can't both answer a tool call and call tools", f"no {calls}", calls)
    result = tools.read_tool_message(message, call_id, read_result_content)
    return [result] if result else []


def _read_content(message: Fields, has_calls: bool) -> list[ContentBlock]:
    """Return the content of a message. With tool calls it may be absent, null, "" or []."""
    place = message.place("content")
    match message.get("content"):
        case None | "" | [] if has_calls:
            return []
        case None:
            message.require("content", _EXPECTED_CONTENT)
        case str() as text:
            return [Text(message.reading.text(text, place), place)]
        case [_, *_] as items:
            return read_blocks(message.reading, items, place)
        case []:
            message.problem("content", "The content is empty", _EXPECTED_CONTENT, "empty array")
        case other:
            message.problem("content", '"content" has the wrong type', _EXPECTED_CONTENT, json_type(other))
    return []

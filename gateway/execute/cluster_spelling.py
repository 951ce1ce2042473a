"""An `input` in the one spelling that the cluster reads itself, for agents that take it (`conversational_v2`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.memory.conversion import write_for_cluster
from gateway.notices import Notice
from gateway.unified.model import AgentInput, Base64, ConverseBlock, InputType, Media, Message, ToolResult
from gateway.unified.payloads import ExtractedBody

Spelled = tuple[Any, tuple[Notice, ...]]


def spell(value: Any, agent_input: AgentInput, extracted: ExtractedBody, turn_id: str) -> Spelled:
    """Return what the cluster is sent for `value`, the request's `input`, and notices.

    Of messages, that is a list for each of them. Content blocks become messages if tool calls or results are among
    them. What the cluster reads as the gateway does is unchanged. turn_id: as for `gateway.delivery.plan.plan`.
    """
    messages = agent_input.messages
    match agent_input.type:
        case InputType.TEXT:
            return value, ()
        case InputType.CONTENT_BLOCKS:
            items, notices = _spell({"role": "user", "content": value}, messages[0], extracted, turn_id)
            is_turn = len(items) == 1 and items[0].keys() == {"role", "content"}
            return items[0]["content"] if is_turn else items, notices
        case InputType.MESSAGES:
            pairs = enumerate(zip(value, messages, strict=True))
            spelled = [_spell(item, message, extracted, f"{turn_id}-{index}") for index, (item, message) in pairs]
            return [items for items, _ in spelled], tuple(notice for _, notices in spelled for notice in notices)


def _spell(item: Any, message: Message, extracted: ExtractedBody, new_id: str) -> tuple[list[Any], tuple[Notice, ...]]:
    if any(isinstance(block, ConverseBlock) for block in message.content):
        return [item], ()  # the cluster has no spelling for it, and says so
    content = tuple(_with_token(block, extracted) for block in message.content)
    written, left_out = write_for_cluster(replace(message, content=content), new_id)
    if len(written) == 1 and _has(item, written[0], extracted):
        return [item], ()
    return written, tuple(Notice(code, reason, message.at) for code, reason in left_out)


def _with_token(block: Any, extracted: ExtractedBody) -> Any:
    """Return the block with the tokens of data that were taken out of the client's body."""
    match block:
        case ToolResult(content=content):
            return replace(block, content=tuple(_with_token(part, extracted) for part in content))
        case Media(source=Base64(token=token) as source) if token in extracted.blobs:
            return replace(block, source=replace(source, data=token.encode()))
    return block


def _has(item: Any, written: Any, extracted: ExtractedBody) -> bool:
    """Return True if `item`, as the client wrote it, has all that is in `written`."""
    match written:
        case dict():
            return isinstance(item, dict) and all(
                _is_text(item.get(name)) if name == "arguments" else _has(item.get(name), value, extracted)
                for name, value in written.items()
            )
        case list():
            return (
                isinstance(item, list)
                and len(item) == len(written)
                and all(_has(one, other, extracted) for one, other in zip(item, written, strict=True))
            )
    return bool(item == written) or (isinstance(item, str) and extracted.restore(item) == written)


def _is_text(arguments: Any) -> bool:
    """Return True if the arguments of a tool call are JSON text, which was read and may be written in any way."""
    return isinstance(arguments, str) and bool(arguments.strip())

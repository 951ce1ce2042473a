"""Messages in the form in which ML Commons' agents of type ``conversational_v2`` keep them in memory containers. Pure.

``structured_data_blob.message``: ``{"role": "user", "content": [{"type": "TEXT", "text": …}, {"type": "IMAGE", "image":
{"type": "BASE64", "format": "png", "data": …}}]}``; an assistant's calls are in ``toolCalls``, and each tool's result
is a message of the role ``tool``. Every block has a `type`: an agent that reads one without it fails
(docs/evidence/facts.md, "conversational_v2").
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gateway.memory.model import Block, Message
from gateway.unified.model import MEDIA_KINDS

Json = dict[str, Any]


def structured(message: Message, calls: Iterable[str] | None = None) -> Json:
    """Return a message in that form. Blocks for which it has none are texts that name them.

    calls: ids of the tool calls that are written as such; others, and their results, are texts. None for all.
    """
    known = None if calls is None else set(calls)
    results = [block["toolResult"] for block in message.content if isinstance(block.get("toolResult"), dict)]
    if len(results) == len(message.content) == 1 and (known is None or results[0].get("toolUseId") in known):
        id_ = str(results[0].get("toolUseId", ""))
        return {"role": "tool", "toolCallId": id_, "content": _content(results[0].get("content"))}
    uses = [
        block["toolUse"]
        for block in message.content
        if isinstance(block.get("toolUse"), dict) and (known is None or block["toolUse"].get("toolUseId") in known)
    ]
    others = [block for block in message.content if block.get("toolUse") not in uses]
    content = _content(others)
    shown: Json = {"role": message.role, **({"content": content} if content or not uses else {})}
    if uses:
        shown["toolCalls"] = [_call(use) for use in uses]
    return shown


def single_calls(messages: Iterable[Message]) -> set[str]:
    """Return the ids of the tool calls that the form can hold: the only call of a message, answered by a message alone.

    A message of that form holds one result, and an API refuses a call of which it does not get the result.
    """
    asked: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        uses = [block["toolUse"] for block in message.content if isinstance(block.get("toolUse"), dict)]
        results = [block["toolResult"] for block in message.content if isinstance(block.get("toolResult"), dict)]
        if len(uses) == 1 and message.role == "assistant":
            asked.add(str(uses[0].get("toolUseId", "")))
        if len(results) == len(message.content) == 1:
            answered.add(str(results[0].get("toolUseId", "")))
    return asked & answered


def from_structured(document: Json) -> Message:
    """Return a message of that form.

    Raises:
        ValueError, TypeError, AttributeError, KeyError: it is not one.
    """
    role, parts = document["role"], [_untyped(block) for block in document.get("content") or []]
    if role == "tool":
        return Message("user", ({"toolResult": {"toolUseId": str(document.get("toolCallId", "")), "content": parts}},))
    if role not in ("user", "assistant"):  # as the gateway delivers roles that an API does not have
        return Message("user", ({"text": f"{role}:"}, *parts))
    uses = [_use(call) for call in document.get("toolCalls") or []]
    return Message(role, (*parts, *uses))


def _use(call: Json) -> Block:
    function = call["function"]
    written = function.get("arguments") or "{}"
    try:
        arguments = json.loads(written)
    except ValueError:  # as the LLM wrote it
        arguments = {"input": written}
    return {"toolUse": {"toolUseId": str(call.get("id", "")), "name": str(function["name"]), "input": arguments}}


def _untyped(block: Block) -> Block:
    match block:
        case {"type": "TEXT", "text": str(text)}:
            return {"text": text}
        case {"type": str(type_)} if isinstance(block.get(type_.lower()), dict):
            medium = block[type_.lower()]
            source = {"url" if medium.get("type") == "URL" else "bytes": medium["data"]}
            return {type_.lower(): {"format": medium["format"], "source": source}}
    return {name: value for name, value in block.items() if name != "type"}


def _call(use: Json) -> Json:
    arguments = json.dumps(use.get("input"), ensure_ascii=False)
    function = {"name": use.get("name", ""), "arguments": arguments}
    return {"id": use.get("toolUseId", ""), "type": "function", "function": function}


def _content(blocks: Any) -> list[Block]:
    parts = blocks if isinstance(blocks, (list, tuple)) else []
    return [typed for block in parts if isinstance(block, dict) for typed in _typed(block)]


def _typed(block: Block) -> list[Block]:
    """Return a block with its `type`; a text for one for which there is none; nothing for blank text."""
    text = block.get("text")
    if isinstance(text, str) and len(block) == 1:
        return [{"text": text, "type": "TEXT"}] if text.strip() else []
    for kind in MEDIA_KINDS:
        match block.get(kind):
            case {"format": str(format), "source": {"url": str(data)} | {"bytes": str(data)} as source}:
                if not data:
                    return [{"text": f"({kind}, {format}: too large to be shown here)", "type": "TEXT"}]
                type_ = "URL" if "url" in source else "BASE64"
                return [{kind: {"format": format, "type": type_, "data": data}, "type": kind.upper()}]
    return [{"text": json.dumps(block, ensure_ascii=False), "type": "TEXT"}]

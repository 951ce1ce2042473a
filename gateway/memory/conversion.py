"""From the unified input to the messages that a session stores, and back to an `input`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from gateway.errors import InvalidInput, Problem
from gateway.memory.model import Block, Message, Metadata, Role
from gateway.providers.capabilities import TOOL_ERROR_TEXT
from gateway.unified import model
from gateway.unified.model import AgentInput, Base64, ConverseBlock, Json, Media, Text, ToolResult, ToolUse
from gateway.unified.roles import RoleMeaning, meaning_of


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message of the input, as it is stored. index: its position in the client's input."""

    index: int
    message: Message


@dataclass(frozen=True, slots=True)
class NewInput:
    """What a request adds to a session. system: its system text; None without system turns.

    system_indexes: the positions of the system turns in the client's input.
    """

    messages: tuple[NewMessage, ...]
    system: str | None
    system_indexes: tuple[int, ...]


def convert(agent_input: AgentInput, metadata: Metadata, roles: Mapping[str, str], turn_id: str) -> NewInput:
    """Return the input as a session stores it.

    A turn of role tool is the user's, and one of an unknown role too, with the role's name before its text, as it is
    delivered. roles: the operator's table. turn_id: gives ids to tool calls that have none.

    Raises:
        InvalidInput: a system turn has other content than text.
    """
    found: list[NewMessage] = []
    system: list[Text] = []
    indexes: list[int] = []
    for index, message in enumerate(agent_input.messages):
        meaning = meaning_of(message, roles)
        if meaning.is_system:
            indexes.append(index)
            system += _texts(message)
            continue
        blocks = [_block(block, f"{turn_id}-{index}-{at}") for at, block in enumerate(message.content)]
        role: Role = "assistant" if meaning.standard == "assistant" else "user"
        found.append(NewMessage(index, Message(role, tuple(_with_role_name(blocks, meaning)), metadata)))
    return NewInput(tuple(found), "\n\n".join(block.text for block in system) if indexes else None, tuple(indexes))


def _texts(system_turn: model.Message) -> list[Text]:
    texts = [block for block in system_turn.content if isinstance(block, Text)]
    problems = [
        Problem(block.at, "A session keeps only the text of a system turn", "text", help=_SYSTEM_HELP)
        for block in system_turn.content
        if not isinstance(block, Text)
    ]
    if problems:
        raise InvalidInput.of(problems)
    return texts


_SYSTEM_HELP = (
    "Send it in a turn of the user, or leave the agent's memory to the cluster (`memory: cluster` in its rule)."
)


def _with_role_name(blocks: list[Block], meaning: RoleMeaning) -> list[Block]:
    if not meaning.prefix or not blocks:
        return blocks
    if "text" in blocks[0]:
        return [{"text": f"{meaning.prefix} {blocks[0]['text']}"}, *blocks[1:]]
    return [{"text": meaning.prefix}, *blocks]


def _block(block: model.ContentBlock | Json, new_id: str) -> Block:
    match block:
        case Text(text=text):
            return {"text": text}
        case Media():
            return _media(block)
        case ToolUse(id=id, name=name, input=value):
            return {"toolUse": {"toolUseId": id or f"call-{new_id}", "name": name, "input": value}}
        case ToolResult(id=id, content=content, is_error=is_error):
            status = "error" if is_error else "success"
            return {"toolResult": {"toolUseId": id, "status": status, "content": [_block(b, new_id) for b in content]}}
        case Json(value=value):
            return {"json": value}
        case ConverseBlock(kind=kind, value=value):
            return {kind: value}
        case _:
            assert_never(block)


def _media(block: Media) -> Block:
    source: dict[str, Any]
    if isinstance(block.source, Base64):
        source = {"bytes": bytes(block.source.data).decode("ascii")}
    elif block.source.scheme == "s3":
        owner = {"bucketOwner": block.source.bucket_owner} if block.source.bucket_owner else {}
        source = {"s3Location": {"uri": block.source.url, **owner}}
    else:
        source = {"url": block.source.url}
    name = {"name": block.name} if block.name else {}
    return {block.kind: {"format": block.format, **name, "source": source}}


# Back to an input

NO_OUTPUT = "(no output)"
Written = dict[str, Any]
"""A message of an `input`, as JSON data."""


def as_input(message: Message) -> list[Written]:
    """Return a stored message for an `input` that the gateway reads: its blocks as they are stored.

    A tool result without content, which no provider takes, gets a text.
    """
    return [{"role": message.role, "content": [_with_content(block) for block in message.content]}]


def _with_content(block: Block) -> Block:
    result = block.get("toolResult")
    if isinstance(result, dict) and not result.get("content"):
        return {**block, "toolResult": {**result, "content": [{"text": NO_OUTPUT}]}}
    return block


def as_cluster_input(message: Message) -> list[Written]:
    """Return a message, in the form of `convert`, for an `input` that the cluster reads itself (`conversational_v2`).

    Each tool result is a message of its own, of role tool, with its texts as one; it begins with a mark if the tool
    failed. See `find_left_out` for what it does not hold.
    """
    written: list[Written] = []
    content: list[Block] = []
    calls: list[Block] = []
    for block in message.content:
        match block:
            case {"toolUse": use}:
                arguments = json.dumps(use["input"], ensure_ascii=False, separators=(",", ":"))
                function = {"name": use["name"], "arguments": arguments}
                calls.append({"id": use["toolUseId"], "type": "function", "function": function})
            case {"toolResult": result}:
                items = result.get("content") or [{"text": NO_OUTPUT}]
                marked = ({"text": TOOL_ERROR_TEXT}, *items) if result.get("status") == "error" else items
                parts = [part for item in marked if (part := _typed(item)) is not None]
                written.append({"role": "tool", "toolCallId": result["toolUseId"], "content": _in_one_text(parts)})
            case _:
                if (typed := _typed(block)) is not None:
                    content.append(typed)
    if content or calls:
        written.append({"role": message.role, "content": content, **({"toolCalls": calls} if calls else {})})
    return written


def _in_one_text(parts: list[Written]) -> list[Written]:
    """Return a tool's output with all texts as the first part: the cluster sends Bedrock no other."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    others = [part for part in parts if part["type"] != "text"]
    return [{"type": "text", "text": "\n".join(texts)}, *others] if texts else others


def write_for_cluster(message: model.Message, new_id: str) -> tuple[list[Written], list[tuple[str, str]]]:
    """Return a client's message as `as_cluster_input` writes it, but in its own role, and what `find_left_out` finds.

    new_id: starts the ids of tool calls that have none.
    """
    blocks = tuple(_block(block, f"{new_id}-{at}") for at, block in enumerate(message.content))
    stored = Message("user", blocks)
    own = [item if "toolCallId" in item else {**item, "role": message.role} for item in as_cluster_input(stored)]
    return own, list(find_left_out(stored))


def find_left_out(message: Message) -> Iterator[tuple[str, str]]:
    """Yield the code and the reason of each kind of content that `as_cluster_input` leaves out or marks."""
    if any(block["toolResult"].get("status") == "error" for block in message.content if "toolResult" in block):
        yield "TOOL_ERROR_MARKED", "a text before the output states that the tool failed"
    blocks = [
        item
        for block in message.content
        for item in (block["toolResult"].get("content") or () if "toolResult" in block else [block])
        if "toolUse" not in item
    ]
    if any(_typed(block) is None for block in blocks):
        reason = "reasoning and other blocks that only Bedrock Converse has can't be delivered, and are left out"
        yield "MEMORY_STEPS_LEFT_OUT", reason
    media = [block[kind] for block in blocks for kind in model.MEDIA_KINDS if kind in block]
    if any(medium.get("name") for medium in media):
        yield "DOCUMENT_NAME_DROPPED", "the cluster takes documents without their names"
    if any("bucketOwner" in medium["source"].get("s3Location", {}) for medium in media):
        yield "BUCKET_OWNER_DROPPED", "the cluster takes S3 addresses without the bucket's account"


def _typed(block: Block) -> Block | None:
    """Return a block in the spelling of the unified input; None if it has none."""
    kind, value = next(iter(block.items()))
    if kind == "text":
        return {"type": "text", "text": value}
    if kind == "json":
        return {"type": "text", "text": json.dumps(value, ensure_ascii=False)}
    if kind not in model.MEDIA_KINDS:
        return None
    match value["source"]:
        case {"bytes": data}:
            source = {"type": "base64", "format": value["format"], "data": data}
        case {"s3Location": {"uri": uri}}:
            source = {"type": "url", "format": value["format"], "data": uri}
        case {"url": url}:
            source = {"type": "url", "format": value["format"], "data": url}
        case _:
            return None
    return {"type": kind, "source": source}


# Places

_PLACE = re.compile(r"input\[([0-9]+)\]")
Place = Callable[[str], str]


def place_map(bases: Sequence[Place]) -> Place:
    """Return a function from places in a written `input` to places that the client knows.

    bases: for each message of the `input`, what the rest of a place (``.content[0]``) becomes.
    """

    def place(at: str) -> str:
        match = _PLACE.match(at)
        if match is None or int(match[1]) >= len(bases):
            return at
        return bases[int(match[1])](at[match.end() :])

    return place


def relocate(agent_input: AgentInput, place: Place) -> AgentInput:
    """Return the input with other places in it."""
    messages = tuple(
        model.Message(message.role, tuple(_relocated(block, place) for block in message.content), place(message.at))
        for message in agent_input.messages
    )
    return AgentInput(agent_input.type, messages)


def _relocated(block: model.ContentBlock, place: Place) -> model.ContentBlock:
    if isinstance(block, ToolResult):
        content = tuple(replace(part, at=place(part.at)) for part in block.content)
        return replace(block, content=content, at=place(block.at))
    return replace(block, at=place(block.at))

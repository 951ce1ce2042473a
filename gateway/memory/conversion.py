"""From the unified input to the messages that a session stores, and back to an `input`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from gateway.errors import InvalidInput, Problem
from gateway.memory.model import Block, Message, Metadata, Role
from gateway.unified import model
from gateway.unified.model import AgentInput, Base64, ConverseBlock, Json, Media, Text, ToolResult, ToolUse
from gateway.unified.roles import RoleMeaning, meaning_of


class NewMessage(msgspec.Struct, frozen=True):
    """A message of the input, as it is stored. index: its position in the client's input."""

    index: int
    message: Message


class NewInput(msgspec.Struct, frozen=True):
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
        case ToolUse(id=id, name=name, input=value, signature=signature):
            signed = {"reasoningSignature": signature} if signature else {}
            return {"toolUse": {"toolUseId": id or f"call-{new_id}", "name": name, "input": value, **signed}}
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
    else:
        owner = {"bucketOwner": block.source.bucket_owner} if block.source.bucket_owner else {}
        # Converse's form needs a format.
        by_location = block.source.scheme == "s3" and block.format
        source = (
            {"s3Location": {"uri": block.source.url, **owner}} if by_location else {"url": block.source.url, **owner}
        )
    format = {"format": block.format} if block.format else {}
    name = {"name": block.name} if block.name else {}
    return {block.kind: {**format, **name, "source": source}}


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
    return replace(agent_input, messages=messages)


def _relocated(block: model.ContentBlock, place: Place) -> model.ContentBlock:
    if isinstance(block, ToolResult):
        content = tuple(replace(part, at=place(part.at)) for part in block.content)
        return replace(block, content=content, at=place(block.at))
    return replace(block, at=place(block.at))

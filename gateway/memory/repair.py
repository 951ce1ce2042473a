"""Stored messages that can't be sent as they are. Pure.

A run that was killed leaves tool calls without a result and results without a call. A call without a result gets one,
of status ``error``, that says that the run was interrupted. All providers accept that. They would refuse the call
alone, and without the call the model would not know that the tool may have acted. A result without its call can't be
sent to any provider, so it is left out. `make_readable` says which content is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.memory.model import Block, Message
from gateway.notices import Notice
from gateway.providers.responses import member, text

INTERRUPTED = "The run was interrupted before this tool's result was recorded. It is not known whether the tool ran."
_CODE = "MEMORY_REPAIRED"


class Placed(msgspec.Struct, frozen=True):
    """A message and its place, ``memory[3]``."""

    message: Message
    at: str


def repair(stored: Sequence[Placed], following: Sequence[Message]) -> tuple[list[Placed], tuple[Notice, ...]]:
    """Return the stored messages with each tool call answered once in the turn after it, and what was changed.

    Messages without content are left out. following: the new messages, which may answer the last calls.
    """
    repaired: list[Placed] = []
    notices: list[Notice] = []
    stored = [_with_readable(placed, notices) for placed in stored if placed.message.content]
    position = 0
    while position < len(stored):
        start, position = position, _end_of_run(stored, position, assistant=True)
        calls = stored[start:position]
        start, position = position, _end_of_run(stored, position, assistant=False)
        open_calls = {id: placed.at for placed in calls for id in _ids(placed.message, "toolUse")}
        results: list[Placed] = []
        for placed in stored[start:position]:
            kept = _without_orphans(placed, open_calls, notices)
            if kept.message.content:
                results.append(kept)
        if position == len(stored):
            for id in _answered(following):
                open_calls.pop(id, None)
        repaired += calls
        if open_calls:
            at = next(reversed(open_calls.values()))
            blocks = tuple(_interrupted(id) for id in open_calls)
            repaired.append(Placed(Message("user", blocks), at))
            reason = "a tool call of the session has no result, and is sent with one that says so"
            notices += (Notice(_CODE, reason, at) for at in dict.fromkeys(open_calls.values()))
        repaired += results
    return repaired, tuple(notices)


def _with_readable(placed: Placed, notices: list[Notice]) -> Placed:
    message = make_readable(placed.message)
    if message is placed.message:
        return placed
    notices.append(Notice(_CODE, "content of the session that can't be sent is replaced", placed.at))
    return replace(placed, message=message)


def _end_of_run(stored: Sequence[Placed], position: int, assistant: bool) -> int:
    while position < len(stored) and (stored[position].message.role == "assistant") == assistant:
        position += 1
    return position


def _ids(message: Message, kind: str) -> list[str]:
    return [_id(block, kind) for block in message.content if block.get(kind) is not None]


def _id(block: Block, kind: str) -> str:
    return text(member(block, kind, "toolUseId"))


def _without_orphans(placed: Placed, open_calls: dict[str, str], notices: list[Notice]) -> Placed:
    """Return a message without the results that answer no open call; take the calls that it answers from the open."""
    kept: list[Block] = []
    for block in placed.message.content:
        if block.get("toolResult") is None or open_calls.pop(_id(block, "toolResult"), None) is not None:
            kept.append(block)
        else:
            notices.append(Notice(_CODE, "a tool result of the session answers no call, and is left out", placed.at))
    message = placed.message
    changed = Message(message.role, tuple(kept), message.metadata)
    return placed if len(kept) == len(message.content) else replace(placed, message=changed)


def _answered(following: Sequence[Message]) -> list[str]:
    """Return the ids of the calls that the messages before the next assistant's answer."""
    ids: list[str] = []
    for message in following:
        if message.role == "assistant":
            break
        ids += _ids(message, "toolResult")
    return ids


def _interrupted(id: str) -> Block:
    return {"toolResult": {"toolUseId": id, "status": "error", "content": [{"text": INTERRUPTED}]}}


_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_INT64 = range(-(2**63), 2**63)
_LEVELS = 100
"""Most levels of nesting in a block, so that a request with it keeps within the limit for input."""


def make_readable(message: Message) -> Message:
    """Return the message with what can't be sent replaced, or the same one if there is nothing.

    U+0000 and lone surrogates become U+FFFD, integers beyond 64 bits their digits as text, what is nested too deeply
    JSON text, arguments of a tool call that are not an object the member ``input`` of one, and a tool's JSON null text.
    """
    content = tuple(_as_read(_readable(block, _LEVELS)) for block in message.content)
    return message if content == message.content else msgspec.structs.replace(message, content=content)


def _readable(value: Any, levels: int) -> Any:
    match value:
        case str():
            return value if value.isascii() and "\0" not in value else _UNSAFE.sub("\ufffd", value)
        case int() if value not in _INT64:
            return str(value)
        case dict() | list() if not levels:
            return msgspec.json.encode(value).decode()
        case dict():
            return {_readable(key, levels): _readable(item, levels - 1) for key, item in value.items()}
        case list():
            return [_readable(item, levels - 1) for item in value]
        case _:
            return value


def _as_read(block: Block) -> Block:
    match block:
        case {"toolUse": {"input": dict()}}:
            return block
        case {"toolUse": dict(use)}:
            given = use.get("input")
            return {"toolUse": {**use, "input": {} if given in (None, "") else {"input": given}}}
        case {"json": None}:
            return {"text": "null"}
        case {"toolResult": {"content": list(content)} as result}:
            return {"toolResult": {**result, "content": [_as_read(part) for part in content]}}
        case _:
            return block

"""What of a session is sent with a request. Pure.

- The newest messages that fit the operator's limits.
- Messages that can't be sent as they are, repaired. A run that was killed leaves tool calls without a result and
  results without a call. A call without a result gets one, of status ``error``, that says that the run was interrupted.
  All providers accept that. They would refuse the call alone, and without the call the model would not know that the
  tool may have acted. A result without its call can't be sent to any provider, so it is left out. `make_readable` says
  which content is replaced.
- As many media as the LLM's API takes in one request. What the client itself sends now is never cut. Of what is only
  remembered, the oldest media become texts that name them; the session keeps them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.codes import Notice
from gateway.config.memory import Window
from gateway.memory.model import Block, Message, StoredMessage
from gateway.providers.capabilities import RequestLimits
from gateway.providers.responses import member, text
from gateway.unified.model import MEDIA_KINDS

_MEDIUM_TOKENS = 1500
MEDIA = frozenset(MEDIA_KINDS)
"""The members of blocks that hold media."""
_FRAME = 64
"""Bytes of JSON around the data of a medium."""


def live_messages(messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    """Return the messages of the conversation as it is now: without failed turns, and without other branches.

    ML Commons leaves out a turn without an answer as well (docs/evidence/facts.md, "Answers and memory").
    """
    failed = {stored.turn for stored in messages if stored.message.metadata.failed}
    live: list[StoredMessage] = []
    end, turn = float("inf"), 0
    for stored in reversed(messages):
        about = stored.message.metadata
        if stored.turn in failed or (stored.turn != turn and stored.seq >= end):
            continue
        live.append(stored)
        turn = stored.turn
        if about.after is not None:
            end = min(end, about.after)
    return live[::-1]


def window_start(messages: Sequence[StoredMessage], limits: Window, more: bool = False) -> int | None:
    """Return the position of the first message to send; ``len(messages)`` if not even the last turn fits.

    A window begins with a user's message that is not a tool's result, and never between a tool call and its result.
    more: the session has older messages. The result is None if those may fit as well.
    """
    best = len(messages)
    tokens = size = 0
    turns: set[int] = set()
    possible = set(_starts([stored.message for stored in messages]))
    if not more and messages:
        possible.add(0)
    for position in range(len(messages) - 1, -1, -1):
        stored = messages[position]
        more_size, more_tokens = measure(stored.message)
        size += more_size
        tokens += more_tokens
        turns.add(stored.turn)
        if _exceeds(len(turns), limits.turns) or _exceeds(tokens, limits.tokens) or _exceeds(size, limits.bytes):
            return best
        if position in possible:
            best = position
    return None if more else best


def _exceeds(count: int, limit: int) -> bool:
    return 0 < limit < count


def _starts(messages: Sequence[Message]) -> Iterator[int]:
    """Yield the positions where a window can begin, the last one first."""
    earliest_call = len(messages)
    calls = _calls_of_results(messages)
    for position in range(len(messages) - 1, -1, -1):
        earliest_call = min(earliest_call, calls.get(position, earliest_call))
        message = messages[position]
        has_result = any(block.get("toolResult") is not None for block in message.content)
        if message.role == "user" and not has_result and position <= earliest_call:
            yield position


def _calls_of_results(messages: Sequence[Message]) -> dict[int, int]:
    """Return, for each message with tool results, the position of the first call that they answer; -1 if unknown."""
    last_call: dict[str, int] = {}
    found: dict[int, int] = {}
    for position, message in enumerate(messages):
        for block in message.content:
            if block.get("toolUse") is not None:
                last_call[text(member(block, "toolUse", "toolUseId"))] = position
            elif block.get("toolResult") is not None:
                call = last_call.get(text(member(block, "toolResult", "toolUseId")), -1)
                found[position] = min(call, found.get(position, call))
    return found


def measure(message: Message) -> tuple[int, int]:
    """Return a message's bytes of JSON and its estimated tokens: one for each 4 bytes of text, 1,500 for a medium."""
    parts = [_measure_block(block) for block in message.content]
    return sum(size for size, _ in parts), sum(tokens for _, tokens in parts)


def _measure_block(block: Block) -> tuple[int, int]:
    for kind, value in block.items():
        if kind in MEDIA and isinstance(value, dict):
            source = value.get("source")
            data = source.get("bytes", "") if isinstance(source, dict) else ""
            return len(data) + _FRAME, _MEDIUM_TOKENS
        if kind == "toolResult" and isinstance(value, dict):
            inner = [_measure_block(part) for part in value.get("content") or () if isinstance(part, dict)]
            return sum(size for size, _ in inner) + _FRAME, sum(tokens for _, tokens in inner)
    try:
        size = len(msgspec.json.encode(block))
    except UnicodeEncodeError:  # other programs store lone surrogates
        size = len(json.dumps(block))
    return size, size // 4


INTERRUPTED = "The run was interrupted before this tool's result was recorded. It is not known whether the tool ran."
_REPAIRED = "MEMORY_REPAIRED"


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
            notices += (Notice(_REPAIRED, reason, at) for at in dict.fromkeys(open_calls.values()))
        repaired += results
    return repaired, tuple(notices)


def _with_readable(placed: Placed, notices: list[Notice]) -> Placed:
    message = make_readable(placed.message)
    if message is placed.message:
        return placed
    notices.append(Notice(_REPAIRED, "content of the session that can't be sent is replaced", placed.at))
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
            notices.append(
                Notice(_REPAIRED, "a tool result of the session answers no call, and is left out", placed.at)
            )
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


_LEFT_OUT = "MEMORY_MEDIA_LEFT_OUT"


class _Medium(msgspec.Struct, frozen=True):
    """A medium in a message. data: its base64, or where it is. at: its place. path: the positions of its block, and of
    its part in a tool's result."""

    kind: str
    data: str
    size: int
    path: tuple[int, ...]
    at: str


def within_limits(
    stored: Sequence[Placed], sent: Sequence[Message], new: Sequence[Message], limits: RequestLimits
) -> tuple[list[Placed], tuple[Notice, ...]]:
    """Return the stored messages with as many media as fit beside those of `new`, and what was left out.

    sent: messages of the client that the session has: their media stay. new: those that it does not have.
    """
    fixed = Counter(medium.data for message in sent for medium in _media(Placed(message, "")))
    counts: Counter[str] = Counter()
    size = 0
    removable: list[tuple[int, _Medium]] = []
    everything = list(enumerate([*stored, *(Placed(message, "") for message in new)]))
    for number, placed in reversed(everything):  # the newest of equal media are those that the client sent
        for medium in _media(placed):
            counts[medium.kind] += 1
            size += medium.size
            if number >= len(stored):
                continue
            if fixed[medium.data]:
                fixed[medium.data] -= 1
            else:
                removable.append((number, medium))
    removable.sort(key=lambda item: item[0])
    left_out: dict[int, list[_Medium]] = {}
    notices: list[Notice] = []
    for number, medium in removable:
        most = limits.media.get(medium.kind, 0)
        too_many, too_large = 0 < most < counts[medium.kind], 0 < limits.bytes < size
        if too_many or (too_large and medium.size):
            counts[medium.kind] -= 1
            size -= medium.size
            left_out.setdefault(number, []).append(medium)
            limit = f"{most} of this kind" if too_many else f"{limits.bytes:,} bytes of media"
            reason = f"a text stands for this {medium.kind} of an earlier turn: the LLM takes {limit} in a request"
            notices.append(Notice(_LEFT_OUT, reason, medium.at))
    kept = [_without(placed, left_out[n]) if n in left_out else placed for n, placed in enumerate(stored)]
    return kept, tuple(notices)


def _media(placed: Placed) -> Iterator[_Medium]:
    for position, block in enumerate(placed.message.content):
        at = f"{placed.at}.content[{position}]"
        if (kind := _kind(block)) is not None:
            yield _Medium(kind, *_data(block[kind]), (position,), at)
        result = block.get("toolResult")
        parts = result.get("content") if isinstance(result, dict) else None
        for inner, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and (kind := _kind(part)) is not None:
                yield _Medium(kind, *_data(part[kind]), (position, inner), f"{at}.toolResult.content[{inner}]")


def _kind(block: Block) -> str | None:
    return next((kind for kind in block if kind in MEDIA and isinstance(block[kind], dict)), None)


def _data(medium: Any) -> tuple[str, int]:
    """Return a medium's base64 and its length, or a text that says where it is, and 0."""
    source = medium.get("source")
    data = source.get("bytes") if isinstance(source, dict) else None
    return (data, len(data)) if isinstance(data, str) else (repr(source), 0)


def _without(placed: Placed, media: Sequence[_Medium]) -> Placed:
    content = list(placed.message.content)
    for medium in media:
        position, *inner = medium.path
        block = content[position]
        if not inner:
            content[position] = _named(block, medium.kind)
            continue
        parts = list(block["toolResult"]["content"])
        parts[inner[0]] = _named(parts[inner[0]], medium.kind)
        content[position] = {**block, "toolResult": {**block["toolResult"], "content": parts}}
    return replace(placed, message=msgspec.structs.replace(placed.message, content=tuple(content)))


def _named(block: Block, kind: str) -> Block:
    """Return a text that names a medium: its kind, its name, and its format."""
    medium = block[kind]
    name = f" {medium['name']!r}" if isinstance(medium.get("name"), str) else ""
    format = f", {medium['format']}" if isinstance(medium.get("format"), str) else ""
    return {"text": f"(Here was the {kind}{name}{format}. It is not sent again.)"}

"""How much of a session is sent with a request: the newest messages that fit the operator's limits. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import msgspec

from gateway.config.memory import Window
from gateway.memory.model import Block, Message, StoredMessage
from gateway.providers.responses import member, text

_MEDIUM_TOKENS = 1500
MEDIA = frozenset({"image", "video", "document", "audio"})
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

"""Copies sessions from one store to another, or from an export (`gateway.memory.management.export_lines`).

A copy that was interrupted continues where it ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from gateway.memory.model import Message, Metadata, Owner, Role, Session, SessionKey, Turn
from gateway.memory.reading import read_turn, read_turns
from gateway.memory.store import SessionNotFound, Store, StoreError

TurnsFrom = Callable[[int], AsyncGenerator[Turn, None]]
"""Returns a session's turns from a number on; the first one is 1."""


class OtherSession(StoreError):
    """The target has other turns under the id of the session that is copied."""


async def copy_session(source: Store, target: Store, session: Session) -> int:
    """Copy the turns of `session` that the target does not have; return how many.

    Owner, id, turn ids, messages with their metadata, system text and pin are kept. The target sets the times of the
    session itself; those of the messages are kept.

    Raises:
        OtherSession: neither of the two sessions is a beginning of the other, or the target's ends within a turn.
        SessionNotFound: the session was deleted.
        StoreError: as `Store.append` and `Store.load`.
    """
    key = session.key
    now = await source.session(key)  # the system text of the last turn is that of this moment
    if now is None:
        raise SessionNotFound(f"There is no session {key.id}.")
    total, last_system = now.turns, now.system

    async def turns(first: int) -> AsyncGenerator[Turn, None]:
        start: int | None = None if first == 1 else 0
        async for messages in read_turns(source, key, first):
            start = messages[0].seq if start is None else start  # the oldest messages may be missing
            number = messages[0].turn
            if number > total:
                return
            system = last_system if number == total else None
            kept = tuple(without_start(stored.message, start) for stored in messages)
            yield Turn(messages[0].turn_id, kept, system)

    written = await append_missing(target, key, turns, total)
    if now.pinned:
        await target.pin(key, True)
    return written


async def append_turns(target: Store, key: SessionKey, turns: Sequence[Turn]) -> int:
    """Append those of `turns` that the target's session does not have yet, as `append_missing`; return how many."""

    async def from_number(first: int) -> AsyncGenerator[Turn, None]:
        for turn in turns[first - 1 :]:
            yield turn

    return await append_missing(target, key, from_number, len(turns))


async def append_missing(target: Store, key: SessionKey, turns: TurnsFrom, total: int) -> int:
    """Append the turns that the target's session does not have yet; return how many. total: how many turns there are.

    None are appended if the target's session has them all, and perhaps went on after them.

    Raises:
        OtherSession: the last turn that both should have has another id in the target, or fewer messages.
        StoreError: as `Store.append`.
    """
    present = await target.session(key)
    count = present.turns if present is not None else 0
    if common := min(count, total):
        held = await read_turn(target, key, common)
        expected = await _first(turns(common))
        if held is None or expected is None or held[0].turn_id != expected.id:
            raise OtherSession(
                f"The target has a session {key.id} whose turns are others. To replace it, delete it there first."
            )
        if count <= total and len(held) < len(expected.messages):  # a turn of Strands grows until its answer is there
            raise OtherSession(
                f"Turn {common} of session {key.id} was not complete when it was written to the target. "
                "Delete the session there, and run this again."
            )
    written = 0
    async for turn in turns(count + 1):
        await target.append(key, turn, count + written)
        written += 1
    return written


async def _first(turns: AsyncGenerator[Turn, None]) -> Turn | None:
    async with aclosing(turns):
        return await anext(turns, None)


class MalformedExport(ValueError):
    """A line is not one of an export. The text says which, and what was expected."""


class ExportedSession(Struct, frozen=True):
    """A session as it was exported. turns: all of it; the last one has the session's system text."""

    key: SessionKey
    pinned: bool
    turns: list[Turn]


class _Session(Struct):
    id: str
    agent_id: str
    tenant: str = ""
    caller: str = ""
    system: str = ""
    pinned: bool = False


class _Message(Struct):
    seq: int
    turn_id: str
    role: Role
    content: list[dict[str, Any]]
    metadata: Metadata = Metadata()


class _Line(Struct):
    session: _Session | None = None
    message: _Message | None = None


_DECODER = msgspec.json.Decoder(_Line)


def read_exported(lines: Iterable[bytes]) -> Iterator[ExportedSession]:
    """Yield the sessions of an export, each when its last line was read.

    Raises:
        MalformedExport: a line is not one of an export.
    """
    session: _Session | None = None
    messages: list[_Message] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = _DECODER.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise MalformedExport(f"line {number} is not one of an export: {error}") from None
        if read.session is not None:
            if session is not None:
                yield _session(session, messages)
            session, messages = read.session, []
        elif read.message is not None and session is not None:
            messages.append(read.message)
        else:
            expected = '{"message": …}' if session is not None else '{"session": …}'
            raise MalformedExport(f"line {number} is not one of an export: expected {expected}")
    if session is not None:
        yield _session(session, messages)


def without_start(message: Message, first: int) -> Message:
    """Return a message of a session whose first `first` messages are missing, as it is in one that begins there."""
    after = message.metadata.after
    if not first or after is None:
        return message
    return msgspec.structs.replace(
        message, metadata=msgspec.structs.replace(message.metadata, after=max(0, after - first))
    )


def _session(session: _Session, messages: list[_Message]) -> ExportedSession:
    turns: list[tuple[str, list[Message]]] = []
    first = messages[0].seq if messages else 0
    for one in messages:
        if not turns or turns[-1][0] != one.turn_id:
            turns.append((one.turn_id, []))
        turns[-1][1].append(without_start(Message(one.role, tuple(one.content), one.metadata), first))
    last = len(turns) - 1
    made = [Turn(id, tuple(found), session.system if n == last else None) for n, (id, found) in enumerate(turns)]
    return ExportedSession(
        SessionKey(Owner(session.agent_id, session.tenant, session.caller), session.id), session.pinned, made
    )

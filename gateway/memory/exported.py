"""Reads sessions that were exported as JSON lines (`gateway.memory.management.export_lines`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from gateway.memory.model import Message, Metadata, Owner, Role, SessionKey, Turn


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

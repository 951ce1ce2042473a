"""A store of sessions that keeps everything in dictionaries. It does what `gateway.memory.store.Store` states."""

from __future__ import annotations

from itertools import count
from typing import ClassVar

from msgspec.structs import replace

from gateway.memory.model import Message, Owner, Page, Session, SessionKey, SessionPage, StoredMessage, Turn
from gateway.memory.store import NEWEST, SessionConflict, SessionNotFound, UnknownPosition
from gateway.memory.window import measure


class InMemoryStore:
    """See `Store`. Time is a counter, so that no two writes have the same one."""

    name: ClassVar[str] = "in memory"

    def __init__(self) -> None:
        self.open = False
        self._clock = count(1_750_000_000)
        self._sessions: dict[SessionKey, Session] = {}
        self._messages: dict[SessionKey, list[StoredMessage]] = {}

    async def start(self) -> None:
        self.open = True

    async def close(self) -> None:
        self.open = False

    async def probe(self, size: int) -> None:
        pass

    async def session(self, key: SessionKey) -> Session | None:
        return self._sessions.get(key)

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        now = float(next(self._clock))
        session = self._sessions.get(key) or Session(key, 0, 0, now, now)
        stored = self._messages.get(key, [])
        if any(message.turn_id == turn.id for message in stored):
            return session
        if session.turns != turns:
            raise SessionConflict("another writer has appended", session.turns)
        added = [_stored(len(stored) + index, turns + 1, turn.id, one) for index, one in enumerate(turn.messages)]
        system = session.system if turn.system is None else turn.system
        self._messages[key] = [*stored, *added]
        session = replace(session, turns=turns + 1, messages=len(stored) + len(added), updated=now, system=system)
        self._sessions[key] = session
        return session

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100, most_bytes: int = 0) -> Page:
        if key not in self._sessions:
            raise SessionNotFound(f"there is no session {key.id}")
        found = [message for message in self._messages[key] if message.seq < before]
        page = found[max(len(found) - limit, 0) :]
        while most_bytes and len(page) > 1 and sum(measure(stored.message)[0] for stored in page) > most_bytes:
            page = page[1:]
        return Page(tuple(page), len(found) > len(page))

    async def sessions(self, owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        found = [session for session in self._sessions.values() if owner in (None, session.key.owner)]
        found.sort(key=lambda session: session.updated, reverse=True)
        if after and not after.isdecimal():
            raise UnknownPosition(f"{after!r} is not the `next` of a page of sessions")
        start = int(after or 0)
        end = start + limit
        return SessionPage(tuple(found[start:end]), str(end) if end < len(found) else "")

    async def delete(self, key: SessionKey) -> bool:
        self._messages.pop(key, None)
        return self._sessions.pop(key, None) is not None

    async def pin(self, key: SessionKey, pinned: bool) -> Session:
        if key not in self._sessions:
            raise SessionNotFound(f"there is no session {key.id}")
        self._sessions[key] = replace(self._sessions[key], pinned=pinned)
        return self._sessions[key]


def _stored(seq: int, turn: int, turn_id: str, message: Message) -> StoredMessage:
    return StoredMessage(seq, turn, turn_id, message)

"""A store that keeps sessions in this process, for the tests of what uses one."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import msgspec

from gateway.memory.model import Owner, Page, Session, SessionKey, SessionPage, StoredMessage, Turn
from gateway.memory.store import NEWEST, SessionConflict, SessionNotFound, StoreUnavailable


class InMemoryStore:
    """Implements `gateway.memory.store.Store`.

    down: every method fails. starts, loads: how often it was opened, and the limits of `load`. gate: awaited by
    `append`, if there is one.
    """

    name: ClassVar[str] = "in_memory"

    def __init__(self) -> None:
        self.held: dict[SessionKey, tuple[Session, list[StoredMessage]]] = {}
        self.down = False
        self.starts = self.closes = 0
        self.loads: list[int] = []
        self.gate: asyncio.Event | None = None

    async def start(self) -> None:
        self._check()
        self.starts += 1

    async def close(self) -> None:
        self.closes += 1

    async def session(self, key: SessionKey) -> Session | None:
        self._check()
        return self.held[key][0] if key in self.held else None

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        if self.gate is not None:
            await self.gate.wait()
        self._check()
        session, messages = self.held.get(key, (Session(key, 0, 0, 0.0, 0.0), []))
        if any(stored.turn_id == turn.id for stored in messages):
            return session
        if session.turns != turns:
            raise SessionConflict("another turn was added", session.turns)
        first = len(messages)
        added = [StoredMessage(first + n, turns + 1, turn.id, message) for n, message in enumerate(turn.messages)]
        system = session.system if turn.system is None else turn.system
        session = msgspec.structs.replace(session, turns=turns + 1, messages=first + len(added), system=system)
        self.held[key] = (session, [*messages, *added])
        return session

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100) -> Page:
        self._check()
        if key not in self.held:
            raise SessionNotFound("no such session")
        self.loads.append(limit)
        older = [stored for stored in self.held[key][1] if stored.seq < before]
        return Page(tuple(older[-limit:]), len(older) > limit)

    async def sessions(self, owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        self._check()
        return SessionPage(tuple(session for key, (session, _) in self.held.items() if owner in (None, key.owner)))

    async def delete(self, key: SessionKey) -> bool:
        self._check()
        return self.held.pop(key, None) is not None

    async def pin(self, key: SessionKey, pinned: bool) -> Session:
        self._check()
        if key not in self.held:
            raise SessionNotFound("no such session")
        session, messages = self.held[key]
        session = msgspec.structs.replace(session, pinned=pinned)
        self.held[key] = (session, messages)
        return session

    def _check(self) -> None:
        if self.down:
            raise StoreUnavailable("the store is down")

"""Reads and continues the record of a session in AgentCore Memory (`gateway.memory.stores.agentcore_record`)."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import msgspec

from gateway.memory.model import SessionKey, Turn
from gateway.memory.stores import agentcore_ids as ids
from gateway.memory.stores.agentcore_client import NewEvent, Operation
from gateway.memory.stores.agentcore_record import REMEMBERED_TURNS, Entry, Pin, Record, read, to_payload


class RecordLog:
    """The records of all sessions. clock: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    async def read(self, call: Operation, key: SessionKey) -> Record:
        """Return the record of a session, which is empty if there never was one."""
        return read(await call.events(ids.actor(ids.RECORDS, key.owner), ids.session(key)), key)

    async def write(self, call: Operation, entry: Entry) -> None:
        """Write an entry. `decided` says whether it counts."""
        token = ids.token(entry.key.owner, entry.key.id, entry.parent, entry.index)
        await self._create(call, entry.key, entry, token, entry.time)

    async def decided(self, call: Operation, entry: Entry) -> Record:
        """Return the record once it shows which entry has the index of `entry`: this one, or another writer's."""
        attempt = 0
        while True:
            attempt += 1
            record = await self.read(call, entry.key)
            if record.head is not None and record.head.index >= entry.index:
                return record
            await call.pause(attempt)

    async def pin(self, call: Operation, key: SessionKey, pinned: bool) -> Record:
        """Pin the session, or no longer. Return the record once it shows that; or one without a session."""
        record = await self.read(call, key)
        if record.live is None:
            return record
        pin = Pin(record.live.first, record.pin.index + 1 if record.pin else 0, pinned)
        await self._create(call, key, pin, ids.token(key.id, uuid4().hex), self._clock())
        attempt = 0
        while True:
            attempt += 1
            record = await self.read(call, key)
            if record.live is None or (record.pin is not None and record.pin.index >= pin.index):
                return record
            await call.pause(attempt)

    def next_time(self, head: Entry | None) -> float:
        """Return now, or just after the entry if its writer's clock is ahead: events are ordered by their time."""
        now = int(self._clock() * 1000)
        return max(now, int(head.time * 1000) + 1 if head else 0) / 1000

    def turn_entry(self, key: SessionKey, turn: Turn, record: Record, attempt: str, last_event_id: str) -> Entry:
        """Return the next entry, which makes `turn` the last one. last_event_id: "" if it has no messages."""
        now, head, pin = self._clock(), record.head, record.pin
        made = Entry(attempt, "", 0, "turn", key, first=attempt, created=now)
        before = head if head is not None and head.kind == "turn" else made
        return msgspec.structs.replace(
            before,
            id=attempt,
            parent=head.id if head else "",
            index=head.index + 1 if head else 0,
            turns=before.turns + 1,
            messages=before.messages + len(turn.messages),
            updated=now,
            time=self.next_time(head),
            system=before.system if turn.system is None else turn.system,
            branch_name=attempt if before.last_event_id and turn.messages else before.branch_name,
            last_event_id=last_event_id or before.last_event_id,
            recent=[*before.recent, ids.short_digest(turn.id)][-REMEMBERED_TURNS:],
            pin_index=pin.index if pin else -1,
            pinned=pin.pinned if pin else False,
        )

    def deleted_entry(self, key: SessionKey, head: Entry) -> Entry:
        """Return the entry after `head` that says that the session was deleted."""
        return Entry(uuid4().hex, head.id, head.index + 1, "deleted", key, time=self.next_time(head))

    async def _create(self, call: Operation, key: SessionKey, data: Entry | Pin, token: str, timestamp: float) -> None:
        actor = ids.actor(ids.RECORDS, key.owner)
        await call.create(NewEvent(actor, ids.session(key), to_payload(data), token, timestamp))

"""Sessions in AWS Bedrock AgentCore Memory: `AgentCoreStore`.

The first turn is on the main line of events, each other one on a branch of its own that begins after the last event of
the turn before. A turn counts from when the session's record (`Record`) has an entry for it, which is written last. How
this holds with what AgentCore does and does not promise: docs/internals/agentcore-mapping.md.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

import msgspec

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.model import Owner, Page, Session, SessionKey, SessionPage, StoredMessage, Turn
from gateway.memory.store import (
    NEWEST,
    SessionConflict,
    SessionNotFound,
    StoreError,
    StoreUnavailable,
    UnknownPosition,
    UnreadableSession,
)
from gateway.memory.stores.agentcore import record as ids
from gateway.memory.stores.agentcore import turn as media
from gateway.memory.stores.agentcore.client import AgentCoreClient, Connect, NewEvent, Operation
from gateway.memory.stores.agentcore.mapping import from_payload
from gateway.memory.stores.agentcore.record import REMEMBERED_TURNS, Entry, Pin, Record, read, to_payload
from gateway.memory.stores.agentcore.turn import Chain, Found, Writer
from gateway.observe.logs import Logger, configure
from gateway.offload import Background
from gateway.recent import Recent

_Item = TypeVar("_Item")

_KEPT = 4
"""Lists of which the rest is kept."""
_POSITION = re.compile(r"[0-9]{14}\.[0-9]{3} .*", re.ASCII | re.DOTALL)


class SessionLists:
    """Lists of sessions, the last updated first.

    What a page leaves is kept for the next page, so that all pages of a list need each record once. They show the
    sessions as they were when the first page was read.

    operation: begins an operation; each record has one of its own. at_once: records that are read at a time.
    """

    def __init__(self, operation: Callable[[], Operation], at_once: int, log: Logger) -> None:
        self._operation = operation
        self._reads = asyncio.Semaphore(at_once)
        self._log = log
        self._rests: dict[tuple[Owner | None, str], list[Session]] = {}

    async def page(self, owner: Owner | None, after: str, limit: int) -> SessionPage:
        """Return a page as `Store.sessions`."""
        if after and not _POSITION.fullmatch(after):
            raise UnknownPosition(f"{after!r} is not the `next` of a page of sessions")
        rest = self._rests.pop((owner, after), None)
        same_moment = rest is not None
        if rest is None:
            rest = [session for session in await self._read(owner) if not after or _position(session) > after]
        if len(rest) <= limit:
            return SessionPage(tuple(rest), same_moment=same_moment)
        following = _position(rest[limit - 1])
        self._rests[owner, following] = rest[limit:]
        if len(self._rests) > _KEPT:
            del self._rests[next(iter(self._rests))]
        return SessionPage(tuple(rest[:limit]), following, same_moment)

    async def _read(self, owner: Owner | None) -> list[Session]:
        """Return all sessions of `owner`, or of the memory, in order."""
        if owner is not None:
            actors = [ids.actor(ids.RECORDS, owner)]
        else:
            prefix = f"{ids.RECORDS}-"
            actors = [actor for actor in await self._operation().actors() if actor.startswith(prefix)]
        named = await _all(self._names(actor) for actor in actors)
        pairs = [(actor, name) for actor, names in zip(actors, named, strict=True) for name in names]
        sessions = await _all(self._session(actor, name) for actor, name in pairs)
        found = [one for one in sessions if one is not None and owner in (None, one.key.owner)]
        return sorted(found, key=_position)

    async def _names(self, actor: str) -> list[str]:
        async with self._reads:
            return await self._operation().sessions(actor)

    async def _session(self, actor: str, name: str) -> Session | None:
        """Return a session; None if it was deleted, or can't be read, which is logged."""
        async with self._reads:
            events = await self._operation().events(actor, name)
        try:
            return read(events).session
        except UnreadableSession as error:
            self._log.warning("session not listed", session=name, reason=str(error))
            return None


async def _all(works: Iterable[Coroutine[Any, Any, _Item]]) -> list[_Item]:
    """Return the results of all `works`. If one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _position(session: Session) -> str:
    """Return a text by which sessions sort, the last updated first."""
    return f"{10**14 - session.updated * 1000:018.3f} {session.key.owner!r} {session.key.id}"


_T = TypeVar("_T")
_LOAD_ATTEMPTS = 4
_PURGE_SECONDS = 600.0
_SHORTEST_EXPIRY = 3 * 86_400
"""Seconds for which AgentCore keeps an event at least."""


class AgentCoreStore:
    """Keeps sessions in a memory of AgentCore. Settings: `memory.agentcore`.

    Of the threads, lists take half and deletions a quarter, so that requests need not wait for them.

    connect: makes boto3's client. clock: seconds since the epoch. pause: seconds before the first repetition of a call.
    log: by default, JSON on standard error.
    """

    name: ClassVar[str] = "agentcore"

    def __init__(
        self,
        settings: Settings,
        connect: Connect | None = None,
        clock: Callable[[], float] = time.time,
        pause: float = 0.2,
        log: Logger | None = None,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._clock = clock
        self._records = RecordLog(clock)
        self._pause = pause
        self._log = log or configure("warning", "json")
        self._client: AgentCoreClient | None = None
        self._lists = SessionLists(self._operation, max(1, settings.threads // 2), self._log)
        self._deletions = asyncio.Semaphore(max(1, settings.threads // 4))
        self._background = Background()
        self._last_write_succeeded = False

    async def start(self) -> None:
        """See `Store`. Nothing is called yet, so that a gateway starts without AWS."""
        if not self._settings.memory_id:
            raise StoreError("memory.agentcore.memory_id is not set: set it to the id of the memory")
        self._client = AgentCoreClient(self._settings, self._connect, self._pause)

    async def close(self) -> None:
        """See `Store`. Deletions that are under way end, within the time of one operation."""
        await self._background.close(self._settings.seconds)
        if self._client is not None:
            await self._client.close()

    async def probe(self, size: int) -> None:
        """Create an event and delete it, if the last write failed or there was none: AWS charges for each event."""
        if self._last_write_succeeded:
            return
        call, session = self._operation(), uuid4().hex
        actor = ids.actor(ids.PROBES, Owner(""))
        event, _ = await call.create(NewEvent(actor, session, [{"blob": {"probe": True}}], session, self._clock()))
        await call.delete(actor, session, event)
        self._last_write_succeeded = True

    async def session(self, key: SessionKey) -> Session | None:
        """See `Store`."""
        return (await self._records.read(self._operation(), key)).session

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        """See `Store`."""
        try:
            session = await self._append(key, turn, turns)
        except StoreUnavailable:
            self._last_write_succeeded = False
            raise
        self._last_write_succeeded = True
        return session

    async def _append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        call = self._operation()
        record = await self._records.read(call, key)
        live = record.live
        if record.session is not None and live is not None and live.holds(turn.id):
            return record.session
        have = live.turns if live else 0
        if have != turns:
            raise SessionConflict(f"the session has {have:,} turns, not {turns:,}", have)
        attempt = uuid4().hex

        async def changed() -> bool:
            return (await self._records.read(call, key)).head != record.head

        writer = Writer(call, key, turn, attempt, live, changed)
        await call.run(writer.prepare)
        try:
            last_event_id = await writer.write(self._records.next_time(record.head))
            entry = self._records.turn_entry(key, turn, record, attempt, last_event_id)
            await self._records.write(call, entry)
        except StoreUnavailable:
            raise
        except StoreError:  # such as a branch after an event that was deleted with the session
            self._in_background(self._purge(key, writer.events))
            now = await self._records.read(call, key)
            if now.head == record.head:
                raise
            if now.session is not None and now.live is not None and now.live.holds(turn.id):
                return now.session
            raise _conflict(now) from None
        record = await self._records.decided(call, entry)
        stored, live = record.at(entry.index), record.live
        holds = live is not None and live.holds(turn.id)
        lost = stored.id != attempt if stored is not None else not holds
        self._in_background(self._purge(key, writer.events) if lost else self._clean(key, record))
        if holds and record.session is not None:
            return record.session
        raise _conflict(record)

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100, most_bytes: int = 0) -> Page:
        """See `Store`."""
        call = self._operation()
        attempt = 0
        while True:
            attempt += 1
            head = (await self._records.read(call, key)).live
            if head is None:
                raise SessionNotFound(f"there is no session {key.id}")
            end = min(before, head.messages)
            start = max(0, end - limit)
            if end <= 0 or start >= end:
                return Page((), start > 0)
            chain = Chain(head, start)
            async for page in call.pages(ids.actor(ids.MESSAGES, key.owner), ids.session(key), head.branch_name):
                chain.add(page)
                if chain.complete:
                    break
            if chain.complete or self._has_expired(chain):
                wanted = [found for found in chain.found if start <= found.seq < end]
                return Page(tuple(await self._messages(call, key, wanted)), start > 0 and chain.complete)
            if attempt == _LOAD_ATTEMPTS:
                raise UnreadableSession(
                    f"AgentCore does not show event {chain.missing or 'before the first'} of {key.id}"
                )
            await call.pause(attempt)

    async def sessions(self, owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        """See `Store`."""
        return await self._lists.page(owner, after, limit)

    async def delete(self, key: SessionKey) -> bool:
        """See `Store`. It goes on if the caller is cancelled, or AgentCore throttles; the session is gone at once."""
        return await asyncio.shield(self._in_background(self._delete(key)))

    async def _delete(self, key: SessionKey) -> bool:
        call = self._operation()
        existed = False
        while not existed:
            record = await self._records.read(call, key)
            if record.head is None:
                return False
            events = await self._events(call, key, record)
            if record.live is None:
                break
            entry = self._records.deleted_entry(key, record.head)
            await self._records.write(call, entry)
            record = await self._records.decided(call, entry)
            stored = record.at(entry.index)
            existed = stored is not None and stored.id == entry.id
        purge = self._in_background(self._purge(key, events))
        await asyncio.wait([purge], timeout=max(0.0, call.remaining))
        if purge.done():
            purge.result()
        return existed

    async def pin(self, key: SessionKey, pinned: bool) -> Session:
        """See `Store`."""
        call = self._operation()
        record = await self._records.pin(call, key, pinned)
        if record.session is None:
            raise SessionNotFound(f"there is no session {key.id}")
        self._in_background(self._clean(key, record))
        return record.session

    def _operation(self) -> Operation:
        if self._client is None:
            raise StoreError("the store is not started")
        return self._client.operation()

    async def _events(self, call: Operation, key: SessionKey, record: Record) -> list[tuple[str, str]]:
        """Return what to delete with the session, as actors and ids: all of it but an entry that says it is deleted."""
        head = record.head
        assert head is not None
        found = [
            (actor, event.id)
            for actor in (ids.actor(ids.MESSAGES, key.owner), ids.actor(ids.MEDIA, key.owner))
            for event in await call.events(actor, ids.session(key), payloads=False)
            if head.kind == "turn" or event.timestamp <= head.time  # later ones are of a new session of the same id
        ]
        entries = [event for event, entry in record.entries.items() if entry is not head or head.kind == "turn"]
        return found + [(ids.actor(ids.RECORDS, key.owner), event) for event in (*entries, *record.pins)]

    # Messages

    async def _messages(self, call: Operation, key: SessionKey, found: list[Found]) -> list[StoredMessage]:
        messages, wanted = await call.run(_read_messages, found)
        if not wanted:
            return messages
        data = await asyncio.gather(*(self._medium(call, key, name, events) for name, events in wanted.items()))
        whole = dict(zip(wanted, data, strict=True))
        return await call.run(
            lambda: [msgspec.structs.replace(one, message=media.with_media(one.message, whole)) for one in messages]
        )

    async def _medium(self, call: Operation, key: SessionKey, name: str, events: list[str]) -> str:
        actor, session = ids.actor(ids.MEDIA, key.owner), ids.session(key)
        found = await asyncio.gather(*(call.event(actor, session, event) for event in events))
        parts = [media.part_of(event.payload if event else [], name, number) for number, event in enumerate(found)]
        return await call.run(media.join, parts, name)

    def _has_expired(self, chain: Chain) -> bool:
        """Whether the events that are missing may be too old: AgentCore removes each event when its time is over."""
        milliseconds = chain.missing.partition("#")[0]
        return bool(
            chain.found and milliseconds.isdecimal() and int(milliseconds) / 1000 < self._clock() - _SHORTEST_EXPIRY
        )

    # In the background

    def _in_background(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = self._background.run(work)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # `_purge` has logged it
        return task

    async def _clean(self, key: SessionKey, record: Record) -> None:
        """Delete entries that no reader needs any more."""
        await self._purge(key, [(ids.actor(ids.RECORDS, key.owner), event) for event in record.superseded()])

    async def _purge(self, key: SessionKey, events: list[tuple[str, str]]) -> None:
        """Delete events, given as actors and ids. Log how many remain: nobody reads them."""
        assert self._client is not None
        call, session, left = self._client.operation(_PURGE_SECONDS), ids.session(key), set(events)

        async def delete(actor: str, event: str) -> None:
            async with self._deletions:
                await call.delete(actor, session, event)
            left.discard((actor, event))

        try:
            results = await asyncio.gather(*(delete(*event) for event in events), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        except (StoreError, asyncio.CancelledError) as error:
            reason = str(error) or "the gateway has ended"
            self._log.warning(
                "events not deleted", agent=key.owner.agent_id, session=key.id, events=len(left), reason=reason
            )
            raise


def _conflict(record: Record) -> SessionConflict:
    have = record.live.turns if record.live else 0
    return SessionConflict(f"another writer changed the session; it has {have:,} turns now", have)


def _read_messages(found: list[Found]) -> tuple[list[StoredMessage], dict[str, list[str]]]:
    """Return the messages of events, and the events of the media that are kept apart, by hash."""
    messages = [_message(item) for item in found]
    return messages, {name: events for one in messages for name, events in media.references(one.message).items()}


def _message(found: Found) -> StoredMessage:
    event = found.event
    messages = from_payload(event.payload, event.metadata)
    if len(messages) != 1:
        raise UnreadableSession(f"event {event.id} holds {len(messages)} messages, not one")
    return StoredMessage(found.seq, found.place.turn, found.place.turn_id, messages[0])


_REMEMBERED_SECONDS = 3600.0
"""For so long after its time, an entry counts that a list no longer shows. AgentCore keeps events for days."""


class RecordLog:
    """The records of all sessions. clock: seconds since the epoch.

    The last entry of each session that was shown is remembered: a list that lacks it must not take a turn back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heads: Recent[tuple[str, Entry]] = Recent(4096)

    async def read(self, call: Operation, key: SessionKey) -> Record:
        """Return the record of a session, which is empty if there never was one."""
        events = await call.events(ids.actor(ids.RECORDS, key.owner), ids.session(key))
        known = self._heads.peek(key)
        if known is not None and known[1].time < self._clock() - _REMEMBERED_SECONDS:
            known = None
        record = read(events, key, known)
        if record.head_event is not None:
            self._heads.put(key, record.head_event)
        return record

    async def write(self, call: Operation, entry: Entry) -> None:
        """Write an entry. `decided` says whether it counts."""
        token = ids.digest(entry.key.owner, entry.key.id, entry.parent, entry.index)
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
        await self._create(call, key, pin, ids.digest(key.id, uuid4().hex), self._clock())
        attempt = 0
        while True:
            attempt += 1
            record = await self.read(call, key)
            if record.live is None or record.live.first != pin.first:
                return read(())  # deleted meanwhile, though there may be another session of the same id
            if record.pin is not None and record.pin.index >= pin.index:
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
            updated=max(now, before.updated),
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

"""Sessions on an OpenSearch cluster: messages in a memory container or in an index of the gateway's own.

In which order a session's turns come, and which of two writers wins, is decided in the gateway's own index in both
cases, because only there a document can be created on the condition that it does not exist (`documents.py`).
Every turn's record names the place of its messages, so sessions go on when a cluster is upgraded and `auto` chooses
another place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from gateway.config.memory import OpenSearchStore as Settings
from gateway.memory.model import Owner, Page, Session, SessionKey, SessionPage, StoredMessage, Turn
from gateway.memory.store import (
    NEWEST,
    SessionConflict,
    SessionNotFound,
    StoreError,
    UnreadableSession,
)
from gateway.memory.stores.opensearch.cluster import Cluster, ClusterError
from gateway.memory.stores.opensearch.documents import (
    INDEX,
    EncodedTurn,
    Head,
    Record,
    all_documents,
    decode_message,
    encode_turn,
    new_head,
    newest_within,
    references,
    turns_of_agent,
)
from gateway.memory.stores.opensearch.places import Messages, Places
from gateway.memory.stores.opensearch.turns import Turns
from gateway.observe.logs import Logger, configure
from gateway.offload import Background


class OpenSearchStore:
    """Keeps sessions on a cluster.

    url: the cluster's, if the settings have none. log: by default, JSON on standard error. clock: the seconds since the
    epoch.
    """

    name: ClassVar[str] = "opensearch"

    def __init__(
        self, settings: Settings, url: str = "", log: Logger | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._log = log or configure("warning", "json")
        self._cluster = Cluster(settings.url or url, settings)
        self._places = Places(self._cluster, settings, self._log)
        self._turns = Turns(self._cluster, self._places.sessions, self._log)
        self._messages: Messages | None = None
        self._starting = asyncio.Lock()
        self._deletions = Background()

    async def start(self) -> None:
        """Choose where messages are written; make the indices and the container. The next call tries again if it fails.

        Deletions that were interrupted are finished in the background.

        Raises:
            StoreUnavailable: the cluster can't be used.
        """
        await self._ready()
        try:
            interrupted = await self._turns.deleted()
        except StoreError as error:
            self._log.warning("deletions not finished", reason=str(error))
            return
        if interrupted:
            self._deletions.run(self._finish_deletions(interrupted))

    async def close(self) -> None:
        """Close the connections. A deletion that is under way is finished by the next `start`."""
        await self._deletions.close()
        await self._cluster.close()

    async def probe(self, size: int) -> None:
        """Write a small document to each place that a turn is written to. An index on a full disk takes none."""
        messages = await self._ready()
        await asyncio.gather(messages.probe(), self._turns.probe())

    async def session(self, key: SessionKey) -> Session | None:
        """Return the session, or None if its owner has none of this id."""
        await self._ready()
        found = await self._find(key)
        if found and await self._adopt(*found):
            found = await self._find(key)
        try:
            return await self._session(*found) if found else None
        except UnreadableSession:
            if await self._find(key) is None:  # it was deleted meanwhile
                return None
            raise

    async def _adopt(self, head: Head, last: Record) -> bool:
        """Make turns of what agents of the cluster added to the session. Return whether there was anything."""
        added = await self._places.at(last.place).added(head, last)
        for record in turns_of_agent(last, added, self._clock()):
            await self._turns.announce(head, record)
            if not await self._turns.commit(head, record):
                break  # another gateway was faster
        return bool(added)

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        """Write the turn's documents, then the record that makes them a turn."""
        messages = await self._ready()
        head = await self._live_head(key)
        held = await self._turns.holds(head, turn.id) if head else False
        [last] = await self._turns.last([head]) if head else [None]
        is_other = turns != (last.turn if last else 0)
        if head and last and (held or (is_other and await self._turns.holds(head, turn.id))):
            return await self._session(head, last)  # which may have been stored between the first two reads
        if is_other:
            raise _conflict(last, turns)
        made = head or new_head(key, self._clock())
        first = last.end if last else 0
        # In a thread, as hashing large media takes long.
        encoded = await asyncio.to_thread(encode_turn, made, turn, first, messages.place != INDEX)
        if head is None:
            head = await self._turns.make_head(made)
            if head.incarnation != made.incarnation:
                encoded = await asyncio.to_thread(encode_turn, head, turn, first, messages.place != INDEX)
        record = self._record(head, turn, last, messages.place)
        record, _ = await asyncio.gather(_write(messages, head, record, encoded), self._turns.announce(head, record))
        return await self._commit(messages, head, record)

    def _record(self, head: Head, turn: Turn, last: Record | None, place: str) -> Record:
        """Return the record of a new turn, without references to its documents."""
        number = last.turn + 1 if last else 1
        before = last.system_turn if last else 0
        return Record(
            turn=number,
            turn_id=turn.id,
            first=last.end if last else 0,
            updated=max(self._clock(), last.updated if last else head.created),
            place=place,
            messages=[],
            system_turn=before if turn.system is None else number,
            system=turn.system or "",
        )

    async def _commit(self, messages: Messages, head: Head, record: Record) -> Session:
        """Make the turn exist.

        Raises:
            SessionConflict: another turn has its number, or the session was deleted meanwhile.
        """
        if not await self._turns.commit(head, record):
            [other] = await self._turns.numbered(head, [record.turn])
            if other is None or other.messages != record.messages:
                await messages.discard(all_documents(record))
            [last] = await self._turns.last([head])
            if other is None or last is None or other.turn_id != record.turn_id:
                raise _conflict(last, record.turn - 1)
            return await self._session(head, last)
        now = await self._turns.head(head.key)
        if now is None or now.deleted or now.incarnation != head.incarnation:
            await self._sweep(head, {record.place})
            raise _conflict(None, record.turn - 1)
        return await self._session(now, record)

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100, most_bytes: int = 0) -> Page:
        """Return the newest `limit` messages with a seq below `before`, oldest first."""
        await self._ready()
        found = await self._find(key)
        if found is None:
            raise _not_found(key)
        head, last = found
        high = min(before, last.end)
        low = max(high - limit, 0)
        if high <= 0:
            return Page((), False)
        try:
            messages = await self._load(head, last, low, high, most_bytes)
        except UnreadableSession:
            if await self._find(key) is None:  # it was deleted meanwhile
                raise _not_found(key) from None
            raise
        return Page(messages, (messages[0].seq if messages else low) > 0)

    async def _load(self, head: Head, last: Record, low: int, high: int, most_bytes: int) -> tuple[StoredMessage, ...]:
        records = await self._turns.covering(head, last, low, high)
        if most_bytes:
            records = newest_within(records, most_bytes)
        blobs: dict[str, dict[str, Any]] = {}
        for place in {record.place for record in records}:
            there = [record for record in records if record.place == place]
            blobs |= await self._places.at(place).read(references(there, low, high))
        return tuple(
            decode_message(record, index, blobs)
            for record in records
            for index in range(max(low - record.first, 0), min(high, record.end) - record.first)
        )

    async def sessions(self, owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        """Return the sessions of `owner`, or all of the store, the last updated first."""
        await self._ready()
        heads, following = await self._turns.list(owner, after, limit)
        return SessionPage(tuple(await self._turns.listed(heads)), following)

    async def delete(self, key: SessionKey) -> bool:
        """Delete the session with all its messages and media. A deletion that was interrupted is finished.

        It continues if the caller is cancelled.
        """
        await self._ready()
        head = await self._turns.head(key)
        if head is None:
            return False
        [last] = await self._turns.last([head])
        await asyncio.shield(self._deletions.run(self._delete(head, last)))
        return last is not None

    async def _delete(self, head: Head, last: Record | None) -> None:
        await self._turns.mark_deleted(head)
        await self._finish_deletion(head, last)

    async def pin(self, key: SessionKey, pinned: bool) -> Session:
        """Keep the session from being deleted by age or number, or no longer."""
        await self._ready()
        found = await self._find(key)
        if found is None:
            raise _not_found(key)
        await self._turns.pin(found[0], pinned)
        session = await self.session(key)
        if session is None:
            raise _not_found(key)
        return session

    async def _ready(self) -> Messages:
        """Return the place for new messages. It is chosen again after an error, as somebody may have deleted it."""
        async with self._starting:
            if self._messages is None or self._cluster.refused:
                self._messages = await self._places.choose()
                self._cluster.refused = False
            return self._messages

    async def _find(self, key: SessionKey) -> tuple[Head, Record] | None:
        """Return the head and the last record of a session, or None."""
        head = await self._turns.head(key)
        if head is None or head.deleted:
            return None
        [last] = await self._turns.last([head])
        return (head, last) if last else None

    async def _live_head(self, key: SessionKey) -> Head | None:
        """Return the head of the session, or None. A deletion that was interrupted is finished."""
        head = await self._turns.head(key)
        if head is None or not head.deleted:
            return head
        [last] = await self._turns.last([head])
        await self._finish_deletion(head, last)
        return None

    async def _finish_deletions(self, heads: list[Head]) -> None:
        try:
            for head, last in zip(heads, await self._turns.last(heads), strict=True):
                await self._finish_deletion(head, last)
        except StoreError as error:
            self._log.warning("deletions not finished", reason=str(error))

    async def _finish_deletion(self, head: Head, last: Record | None) -> None:
        await self._sweep(head, {last.place} if last else set())
        await self._turns.delete_head(head)

    async def _sweep(self, head: Head, places: set[str]) -> None:
        """Delete all documents of the session but its head. places: where its last turn is."""
        for place in await self._places.all() | places:
            try:
                await self._places.at(place).delete(head)
            except ClusterError as error:
                if place in places or not self._places.is_unfit(place):
                    raise
                self._log.warning("container not searched for deleted messages", container=place, reason=str(error))
        await self._turns.delete_records(head)

    async def _session(self, head: Head, last: Record) -> Session:
        [session] = await self._turns.sessions([head], [last])
        if session is None:
            raise UnreadableSession(f"The system text of session {head.key.id} is missing. Delete the session")
        return session


async def _write(messages: Messages, head: Head, record: Record, encoded: EncodedTurn) -> Record:
    """Write the documents of a turn; return its record with references to them."""
    documents = [part for parts in encoded.parts.values() for part in parts]
    written = iter(await messages.write(head, documents + encoded.messages))
    parts = {sha256: [next(written) for _ in parts] for sha256, parts in encoded.parts.items()}
    return msgspec.structs.replace(record, messages=list(written), parts=parts)


def _conflict(last: Record | None, seen: int) -> SessionConflict:
    turns = last.turn if last else 0
    return SessionConflict(f"The session has {turns} turns, not {seen}", turns)


def _not_found(key: SessionKey) -> SessionNotFound:
    return SessionNotFound(f"There is no session {key.id}")

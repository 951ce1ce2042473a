"""Heads and records of sessions in the gateway's own index: what `documents.py` describes, read and written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.memory.model import Owner, Session, SessionKey
from gateway.memory.store import NEWEST, StoreUnavailable, UnknownPosition, UnreadableSession
from gateway.memory.stores.opensearch.cluster import Cluster
from gateway.memory.stores.opensearch.documents import (
    Head,
    Record,
    digest,
    head_id,
    owner_hash,
    read_head,
    read_record,
    record_id,
    session_of,
)
from gateway.memory.stores.opensearch.places import delete_incarnation, probe_index
from gateway.observe.logs import Logger

_PAGE = 64
"""Records that are read at a time."""
_PIVOTS = 8
_MOST_SESSIONS = 1_000
"""Most sessions on a page of the list, however many are asked for."""
_MICROS = 1_000_000
_DIGITS = 18
"""Most digits of a time in microseconds that OpenSearch holds as a `long`."""


class Turns:
    """The turns of all sessions, in the index named `index`. log: for sessions that can't be listed."""

    def __init__(self, cluster: Cluster, index: str, log: Logger) -> None:
        self._cluster = cluster
        self.index = index
        self._log = log

    async def probe(self) -> None:
        """See `Messages`."""
        await probe_index(self._cluster, self.index)

    async def head(self, key: SessionKey) -> Head | None:
        """Return the head of the session, or None. A head without a record is of a session that has no turn yet."""
        found = await self._cluster.get(self.index, [head_id(key)])
        return read_head(found[head_id(key)]) if found else None

    async def make_head(self, head: Head) -> Head:
        """Write the head of a new session. Return it, or the one that another writer made before."""
        if await self._create(head_id(head.key), head, "session", head):
            return head
        found = await self.head(head.key)
        if found is None:
            raise StoreUnavailable(f"The session {head.key.id} was deleted while it was made. Send the request again")
        return found

    async def last(self, heads: Sequence[Head]) -> list[Record | None]:
        """Return the last record of each session; None for a session without any.

        A head may have another number than its last record: a lower one, if its writer was killed before it wrote the
        number; or a higher one, if a record was not written or a late writer belongs to a deleted session.
        """
        expected = [max(head.turns, 1) for head in heads]
        ids = [
            record_id(head.incarnation, number)
            for head, turn in zip(heads, expected, strict=True)
            for number in (turn, turn + 1)
        ]
        found = await self._records(ids)
        pairs = zip(ids[::2], ids[1::2], strict=True)
        return [
            await self._last(head, turn, found.get(one), found.get(following))
            for head, turn, (one, following) in zip(heads, expected, pairs, strict=True)
        ]

    async def _last(self, head: Head, turn: int, record: Record | None, following: Record | None) -> Record | None:
        """Return the last record of a session. record, following: those of `turn` and of the turn after it."""
        if record is None and turn > 1:
            turn = await self._newest_from(head, turn - 1, NEWEST)
            record, following = await self.numbered(head, (turn, turn + 1))
        while following is not None:
            turn += 1
            record, following = following, (await self.numbered(head, (turn + 1,)))[0]
        return record

    async def sessions(self, heads: Sequence[Head], last: Sequence[Record | None]) -> list[Session | None]:
        """Return the sessions with these last records, each with its system text.

        None for those without turns, and for those whose system text is missing, as they are being deleted.
        """
        systems = {}
        for head, record in zip(heads, last, strict=True):
            if record and record.system_turn not in (0, record.turn):
                systems[head.incarnation] = record_id(head.incarnation, record.system_turn)
        found = await self._records(list(systems.values()))
        sessions: list[Session | None] = []
        for head, record in zip(heads, last, strict=True):
            if record is None:
                sessions.append(None)
                continue
            with_system = found.get(systems[head.incarnation]) if head.incarnation in systems else record
            sessions.append(session_of(head, record, with_system.system) if with_system else None)
        return sessions

    async def holds(self, head: Head, turn_id: str) -> bool:
        """Return whether the session has a turn with this id."""
        id_ = _number_id(head, turn_id)
        found = await self._cluster.get(self.index, [id_])
        if not found:
            return False
        [record] = await self.numbered(head, [found[id_]["body"]["turn"]])
        return record is not None and record.turn_id == turn_id

    async def numbered(self, head: Head, turns: Sequence[int]) -> list[Record | None]:
        """Return the records of these turns, None for those that do not exist."""
        ids = [record_id(head.incarnation, turn) for turn in turns]
        found = await self._records(ids)
        return [found.get(id_) for id_ in ids]

    async def covering(self, head: Head, last: Record, low: int, high: int) -> list[Record]:
        """Return the records that hold the messages from seq `low` to below `high`, in order."""
        newest = last.turn if high > last.first else await self._newest_from(head, last.turn, high - 1)
        records: list[Record] = [last] if newest == last.turn else []
        turn = newest - len(records)
        while (records[0].first if records else high) > low and turn > 0:
            page = await self.numbered(head, range(max(turn - _PAGE + 1, 1), turn + 1))
            if None in page:
                raise UnreadableSession(f"A turn of session {head.key.id} is missing. Delete the session")
            records = [record for record in page if record] + records
            turn -= len(page)
        return [record for record in records if record.end > low and record.first < high]

    async def _newest_from(self, head: Head, turn: int, seq: int) -> int:
        """Return the number of the newest turn up to `turn` that begins at the message `seq` or before; 1 if none does.

        Searches among ever fewer turns.
        """
        low, high = 1, turn
        while low < high:
            step = max((high - low) // _PIVOTS, 1)
            pivots = list(range(low + step, high + 1, step))
            for turn, record in zip(pivots, await self.numbered(head, pivots), strict=True):
                if record is None or record.first > seq:
                    high = turn - 1
                    break
                low = turn
        return low

    async def announce(self, head: Head, record: Record) -> None:
        """Write the number that the turn is going to have, unless a later attempt has written a higher one."""
        action = {
            "_index": self.index,
            "_id": _number_id(head, record.turn_id),
            "version": record.turn,
            "version_type": "external_gte",
        }
        await self._cluster.write([({"index": action}, _document(head, "turn_id", {"turn": record.turn}))])

    async def commit(self, head: Head, record: Record) -> bool:
        """Write a record; from now on the turn exists. Return False if the number is taken.

        The head gets the number in both cases: it says where readers begin to look for the last record.
        """
        create = {"create": {"_index": self.index, "_id": record_id(head.incarnation, record.turn)}}
        hint = {"body": {"turns": record.turn, "updated": record.updated}, **_times(record.updated)}
        statuses = await self._cluster.write([(create, _document(head, "turn", record)), self._update(head, hint)])
        return statuses[0] != 409

    async def pin(self, head: Head, pinned: bool) -> None:
        """Pin the session, or no longer."""
        await self._cluster.write([self._update(head, {"body": {"pinned": pinned}})])

    async def mark_deleted(self, head: Head) -> None:
        """Make the session disappear. The mark stays until all its documents are deleted."""
        await self._cluster.write([self._update(head, {"kind": "deleted", "body": {"deleted": True}})])

    async def deleted(self) -> list[Head]:
        """Return heads of sessions whose deletion has begun and has not ended, at most `_MOST_SESSIONS`."""
        await self._cluster.call("POST", f"/{self.index}/_refresh")
        query = {"query": {"term": {"kind": "deleted"}}, "size": _MOST_SESSIONS}
        hits = (await self._cluster.call("POST", f"/{self.index}/_search", query, "hits"))["hits"]["hits"]
        return [read_head(hit["_source"]) for hit in hits]

    def _update(self, head: Head, changed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the operation that changes fields of the head, and leaves the others as they are."""
        action = {"update": {"_index": self.index, "_id": head_id(head.key), "retry_on_conflict": 10}}
        return action, {"doc": changed}

    async def delete_records(self, head: Head) -> None:
        """Delete the session's records and numbers of turns."""
        await delete_incarnation(self._cluster, self.index, head.incarnation)

    async def delete_head(self, head: Head) -> None:
        """Delete the head, unless another writer has deleted it and made the session again."""
        id_ = head_id(head.key)
        while found := (await self._cluster.get_documents(self.index, [id_])).get(id_):
            if read_head(found["_source"]).incarnation != head.incarnation:
                return
            condition = {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]}
            [status] = await self._cluster.write([({"delete": {"_index": self.index, "_id": id_, **condition}}, None)])
            if status != 409:
                return

    async def list(self, owner: Owner | None, after: str, limit: int) -> tuple[list[Head], str]:
        """Return a page of heads, the last updated first, and the `after` of the next page."""
        limit = min(limit, _MOST_SESSIONS)
        await self._cluster.call("POST", f"/{self.index}/_refresh")
        filters = [{"term": {"kind": "session"}}]
        if owner is not None:
            filters.append({"term": {"owner": owner_hash(SessionKey(owner, ""))}})
        query: dict[str, Any] = {
            "query": {"bool": {"filter": filters}},
            "sort": [{"updated_micros": "desc"}, {"session": "asc"}],
            "size": limit + 1,
        }
        if after:
            query["search_after"] = _position(after)
        hits = (await self._cluster.call("POST", f"/{self.index}/_search", query, "hits"))["hits"]["hits"]
        heads = [head for hit in hits[:limit] if (head := self._listed_head(hit)) is not None]
        return heads, "{}:{}".format(*hits[limit - 1]["sort"]) if len(hits) > limit else ""

    def _listed_head(self, hit: dict[str, Any]) -> Head | None:
        try:
            return read_head(hit["_source"])
        except UnreadableSession as error:
            self._log.warning("session not listed", session=hit["_id"], reason=str(error))
            return None

    async def listed(self, heads: Sequence[Head]) -> Sequence[Session]:
        """Return the sessions of `heads` that have turns and can be read."""
        try:
            found = await self.sessions(heads, await self.last(heads))
        except UnreadableSession as error:
            if len(heads) > 1:
                return [session for head in heads for session in await self.listed([head])]
            self._log.warning("session not listed", session=heads[0].key.id, reason=str(error))
            return []
        return [session for session in found if session is not None]

    async def _records(self, ids: Sequence[str]) -> dict[str, Record]:
        found = await self._cluster.get(self.index, ids)
        return {id_: read_record(source) for id_, source in found.items()}

    async def _create(self, id_: str, head: Head, kind: str, body: Any) -> bool:
        """Write a document unless one with this id exists. Return whether it was written."""
        action = {"create": {"_index": self.index, "_id": id_}}
        [status] = await self._cluster.write([(action, _document(head, kind, body))])
        return status != 409


def _number_id(head: Head, turn_id: str) -> str:
    return f"{head.incarnation}.id.{digest(turn_id)}"


def _document(head: Head, kind: str, body: Any) -> bytes:
    fields = {
        "kind": kind,
        "session": head_id(head.key),
        "incarnation": "" if kind == "session" else head.incarnation,
        "owner": owner_hash(head.key),
        "created_time": int(time.time() * 1000),
        **_times(head.updated),
        "body": body,
    }
    return msgspec.json.encode(fields)


def _times(updated: float) -> dict[str, int]:
    return {"updated_micros": int(updated * _MICROS), "last_updated_time": int(updated * 1000)}


def _position(after: str) -> list[Any]:
    micros, _, session = after.partition(":")
    if not (micros.isascii() and micros.isdecimal() and len(micros) <= _DIGITS):
        raise UnknownPosition(f"{after!r} is not the `next` of a page of sessions")
    return [int(micros), session]

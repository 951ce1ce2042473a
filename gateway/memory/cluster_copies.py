"""Deletes what agents with gateway memory leave in the cluster's own memory.

Such an agent begins a new conversation there with each request, which holds what it was sent: the whole session, again.
Its id is in the answer. A copy is named by the path of what holds it below ``/_plugins/_ml/``: ``memory/<id>``, or
``memory_containers/<container>/<id>`` (docs/evidence/facts.md, "Answers and memory"), and before that, where it is not
on the cluster of `upstream`, by the name of its cluster and a colon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from urllib.parse import quote, unquote

import msgspec

from gateway.config.memory import Memory
from gateway.errors import AnswerTooLarge, UpstreamTimeout, UpstreamUnavailable
from gateway.memory.model import Message, SessionKey, Turn
from gateway.memory.reading import read_messages
from gateway.memory.store import SessionNotFound, Store, StoreError
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import Logger
from gateway.offload import Background
from gateway.ports import ClusterReader

_ML = "/_plugins/_ml/"
_PAUSES = (1.0, 5.0, 25.0)
"""Seconds between the attempts."""
_AT_ONCE = 4
"""Copies that are deleted at a time."""
_GONE = (200, 404)


def copy_of(profile: AgentProfile, memory_id: str, cluster: str = "") -> str:
    """Return the copy that a run of the agent left; "" for none.

    memory_id: as the cluster's answer names it. cluster: its name; "" for the one of `upstream`.
    """
    if not memory_id or not profile.memory_type:
        return ""
    place = f"{cluster}:" if cluster else ""
    if profile.memory_container:
        return f"{place}memory_containers/{quote(profile.memory_container, safe='')}/{quote(memory_id, safe='')}"
    return f"{place}memory/{quote(memory_id, safe='')}"


def with_copy(turn: Turn, copy: str) -> Turn:
    """Return a turn that says which copy of it the cluster has."""
    if not copy or not turn.messages:
        return turn
    last = turn.messages[-1]
    known = msgspec.structs.replace(last.metadata, cluster_copy=copy)
    return Turn(turn.id, (*turn.messages[:-1], Message(last.role, last.content, known)), turn.system)


class _NotDeleted(Exception):
    """The cluster did not delete a copy. passing: it may do so later."""

    def __init__(self, reason: str, passing: bool) -> None:
        super().__init__(reason)
        self.passing = passing


class ClusterCopies:
    """Deletes copies in the background.

    cluster: the one of `upstream`. own: headers of the gateway's own account there, for deletions that no client asks
    for. count: called with what became of each copy, ``deleted`` or ``left``. sleep: waits between the attempts.
    others: the other clusters by name.
    """

    def __init__(
        self,
        cluster: ClusterReader,
        settings: Memory,
        own: Mapping[str, str],
        log: Logger,
        count: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        others: Mapping[str, ClusterReader] = MappingProxyType({}),
    ) -> None:
        self._clusters = {"": cluster, **others}
        self._when = settings.cluster_copies
        self._own = own
        self._log = log
        self._count = count
        self._sleep = sleep
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._background = Background()

    def after_turn(self, copy: str, headers: Mapping[str, str], is_stored: bool = True) -> None:
        """Delete the copy of a turn that has ended, if the settings say so. headers: those that its cluster may get.

        is_stored: False for a turn that its session does not hold, so that nobody would delete it later.
        """
        if copy and (self._when == "after_turn" or (self._when == "with_session" and not is_stored)):
            self._background.run(self._delete(copy, headers))

    async def delete_session(self, store: Store, key: SessionKey, headers: Mapping[str, str] | None = None) -> bool:
        """Delete a session and, in the background, what the cluster has of it. Return whether it existed.

        headers: the credentials of the client that asks for it; None for those of the gateway.

        Raises:
            StoreError: as `Store.delete`.
        """
        copies = await self._of_session(store, key)
        existed = await store.delete(key)
        for copy in copies:
            known = self._own if headers is None else headers
            sent = {} if ":" in copy else known  # no other cluster gets the credentials for this one
            self._background.run(self._delete(copy, sent))
        return existed

    async def ended(self) -> None:
        """Wait until nothing is left to delete."""
        await self._background.ended()

    async def close(self, seconds: float = 5.0) -> None:
        """Wait so long for what is being deleted, then give up."""
        await self._background.close(seconds)

    async def _of_session(self, store: Store, key: SessionKey) -> list[str]:
        if self._when == "keep":
            return []
        found: list[str] = []
        try:
            async for stored in read_messages(store, key):
                if copy := stored.message.metadata.cluster_copy:
                    found.append(copy)
        except SessionNotFound:
            return []
        except StoreError as error:
            self._log.warning("copies in the cluster not known", session=key.id, reason=str(error))
        return list(dict.fromkeys(found))

    async def _delete(self, copy: str, headers: Mapping[str, str]) -> None:
        """Delete a copy, with several attempts. Log and count one that is left."""
        reason = "the gateway has ended"
        try:
            for pause in (*_PAUSES, None):
                try:
                    async with self._slots:
                        await self._request(copy, headers)
                    self._count("deleted")
                    return
                except _NotDeleted as error:
                    reason = str(error)
                    if pause is None or not error.passing:
                        break
                await self._sleep(pause)
            self._left(copy, reason)
        except asyncio.CancelledError:
            self._left(copy, reason)
            raise

    def _left(self, copy: str, reason: str) -> None:
        self._count("left")
        self._log.warning("conversation left in the cluster", path=_ML + copy, reason=reason)

    async def _request(self, copy: str, headers: Mapping[str, str]) -> None:
        """Delete a copy once.

        A container's session is a document beside its messages, which stay if it alone is deleted.
        """
        name, _, path = copy.rpartition(":")
        cluster = self._clusters.get(name)
        if cluster is None:
            raise _NotDeleted(f"the settings have no cluster {name}", passing=False)
        kind, *ids = path.split("/")
        if kind == "memory":
            await _send(cluster, "DELETE", _ML + path, headers)
            return
        memories = f"{_ML}memory_containers/{ids[0]}/memories"
        query = {"query": {"term": {"namespace.session_id": unquote(ids[1])}}}
        work = f"{memories}/working/_delete_by_query"
        body = await _send(cluster, "POST", work, headers, msgspec.json.encode(query))
        if _is_incomplete(body):
            raise _NotDeleted("some messages were not deleted", passing=True)
        await _send(cluster, "DELETE", f"{memories}/sessions/{ids[1]}", headers)


async def _send(
    cluster: ClusterReader, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
) -> bytes:
    sent = {**headers, "Content-Type": "application/json"} if body else headers
    try:
        response = await cluster.exchange(method, target, sent, (body,) if body else ())
    except (UpstreamUnavailable, UpstreamTimeout) as error:
        raise _NotDeleted(error.reason, passing=True) from error
    except AnswerTooLarge as error:
        raise _NotDeleted(error.reason, passing=False) from error
    if response.status not in _GONE:
        passing = response.status >= 500 or response.status in (409, 429)
        raise _NotDeleted(f"the cluster answers {response.status} to {method} {target}", passing)
    return response.body


def _is_incomplete(body: bytes) -> bool:
    """Return whether a ``_delete_by_query`` left documents that it found."""
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return False
    return isinstance(answer, dict) and bool(answer.get("failures") or answer.get("version_conflicts"))

"""Messages in a memory container of ML Commons 3.3 and later, through its REST API.

Each message is a working memory with its content in ``structured_data_blob``, and each session is also a session of the
container. The API chooses the ids of working memories and, before 3.6, has no conditional writes: the record of a turn,
in the gateway's own index (`opensearch_documents`), says which of them are the turn's and in which order.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from gateway.memory.model import PREFIX, Message, Owner, SessionKey
from gateway.memory.store import StoreError, UnreadableSession
from gateway.memory.stores.opensearch.cluster import Cluster, ClusterError
from gateway.memory.stores.opensearch.documents import Document, Head, Record, Reference, new_head
from gateway.memory.stores.opensearch.index import batches_of_ids
from gateway.memory.structured import from_structured

CONTAINERS = "/_plugins/_ml/memory_containers"
_AT_A_TIME = 8
_MOST_ADDED = 1000
"""Messages of agents that are read at a time."""
_NOTHING: dict[str, Any] = {"hits": {"hits": []}}
_DISABLED = "agentic_memory_enabled"
"""In the text of the 403 with which ML Commons answers while `plugins.ml_commons.agentic_memory_enabled` is false."""

_NO_HANDLER = "no handler found"
"""In the text of the 400 with which OpenSearch answers for a path that no plugin has."""

_UNFIT = frozenset({400, 404, 405, 500, 501})
"""Statuses that say that a cluster's containers can't do something. Others, such as 403 and 503, may change."""


class ContainerMessages:
    """Messages in the container with the id `place`."""

    def __init__(self, cluster: Cluster, place: str) -> None:
        self.place = place
        self._cluster = cluster
        self._memories = f"{CONTAINERS}/{quote(place, safe='')}/memories"
        self._slots = asyncio.Semaphore(_AT_A_TIME)

    async def write(self, head: Head, documents: Sequence[Document]) -> list[Reference]:
        """See `Messages`. The session's first message also makes the container's session."""
        if any(document.seq == 0 for document in documents):
            await self._make_session(head)
        results = await asyncio.gather(*(self._write(head, document) for document in documents), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _make_session(self, head: Head) -> None:
        """Make the container's session. From 3.6, one that exists is left as it is."""
        body = {"session_id": head.key.id, "namespace": {"agent_id": head.key.owner.agent_id}}
        await self._cluster.call("POST", f"{self._memories}/sessions", body)

    async def _write(self, head: Head, document: Document) -> Reference:
        body: dict[str, Any] = {
            "payload_type": "data" if document.seq is None else "conversational",
            "structured_data_blob": msgspec.Raw(document.blob),
            "namespace": {"agent_id": head.key.owner.agent_id, "session_id": head.key.id},
            "metadata": document.metadata,
            "tags": {"incarnation": head.incarnation},
            "infer": False,
        }
        if document.seq is not None:
            body["message_id"] = document.seq
        async with self._slots:
            answer = await self._cluster.call("POST", self._memories, msgspec.json.encode(body), "working_memory_id")
        return answer["working_memory_id"], len(document.blob)

    async def read(self, references: Sequence[Reference]) -> dict[str, dict[str, Any]]:
        """See `Messages`. What the search does not find is read by id, because a search may be behind the writes."""
        found: dict[str, dict[str, Any]] = {}
        for ids in batches_of_ids(references):
            found |= await self._search(ids)
            for id_ in ids:
                if id_ not in found:
                    found |= await self._get(id_)
        return found

    async def added(self, head: Head, last: Record) -> list[tuple[Reference, Message]]:
        """See `Messages`. An agent numbers its messages after those of the session."""
        own = {id_ for id_, _ in last.messages}
        found = []
        for id_, blob in await self._of_agents(head, last.end):
            if id_ in own:
                continue
            try:
                message = from_structured(blob["message"])
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                raise UnreadableSession(f"The working memory {id_} is no message of an agent: {error!r}") from error
            found.append(((id_, len(msgspec.json.encode(blob))), message))
        return found

    async def _of_agents(self, head: Head, start: int) -> list[tuple[str, dict[str, Any]]]:
        """Return what agents wrote in the session, with a `message_id` of `start` or more. They write no `tags`."""
        filters = [
            {"term": {"namespace.session_id": head.key.id}},
            {"range": {"message_id": {"gte": start}}},
            {"term": {"metadata.type": "structured_message"}},
        ]
        body = {"query": {"bool": {"filter": filters}}, "sort": [{"message_id": "asc"}], "size": _MOST_ADDED}
        answer = await self._call("POST", "working/_search", body, "hits") or _NOTHING
        sources = ((hit["_id"], hit["_source"]) for hit in answer["hits"]["hits"])
        return [(id_, source.get("structured_data_blob") or {}) for id_, source in sources if not source.get("tags")]

    async def _search(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        body = {"query": {"ids": {"values": ids}}, "size": len(ids), "_source": ["structured_data_blob"]}
        answer = await self._call("POST", "working/_search", body, "hits") or _NOTHING
        return {hit["_id"]: hit["_source"].get("structured_data_blob", {}) for hit in answer["hits"]["hits"]}

    async def _get(self, id_: str) -> dict[str, dict[str, Any]]:
        answer = await self._call("GET", f"working/{quote(id_, safe='')}")
        return {id_: answer.get("structured_data_blob", {})} if answer else {}

    async def discard(self, references: Sequence[Reference]) -> None:
        """See `Messages`."""
        for id_, _ in references:
            await self._call("DELETE", f"working/{quote(id_, safe='')}")

    async def delete(self, head: Head) -> None:
        """See `Messages`."""
        query = {"query": {"term": {"tags.incarnation": head.incarnation}}}
        await self._call("POST", "working/_delete_by_query", query)
        await self.discard([(id_, 0) for id_, _ in await self._of_agents(head, 0)])
        await self._call("DELETE", f"sessions/{quote(head.key.id, safe='')}")

    async def probe(self) -> None:
        """See `Messages`."""
        head = _head_of_probe()
        await self.discard([await self._write(head, _probe_document(head, None))])

    async def prove(self) -> None:
        """Make a session with a message, find it, and delete both.

        Raises:
            ClusterError: the container can't do that. `is_unfit` tells whether it may be able to later.
        """
        head = _head_of_probe()
        references = await self.write(head, [_probe_document(head, 0)])
        try:
            await self._search([id_ for id_, _ in references])
            await self.delete(head)
        finally:
            with contextlib.suppress(StoreError):  # the first error counts
                await self.discard(references)

    async def _call(self, method: str, path: str, body: Any = None, wanted: str = "") -> dict[str, Any] | None:
        """Send a request to a path below the container's memories. None: the path, or the container, does not exist."""
        try:
            return await self._cluster.call(method, f"{self._memories}/{path}", body, wanted)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise


async def make_container(cluster: Cluster, prefix: str) -> str:
    """Create a memory container, and return its id. It needs neither an LLM nor an embedding model.

    Raises:
        ClusterError: the cluster refuses. `lacks_containers` tells whether it has none.
    """
    configuration = {
        "index_prefix": prefix,
        "disable_history": True,
        "disable_session": False,  # before 3.5, a container has no sessions by default
        "retention_policy": None,  # from 3.8: not the cluster's default policy
    }
    body = {"name": prefix, "description": "Sessions of the ML Commons gateway", "configuration": configuration}
    answer = await cluster.call("POST", f"{CONTAINERS}/_create", body, "memory_container_id")
    return str(answer["memory_container_id"])


async def container_exists(cluster: Cluster, container: str) -> bool:
    """Return whether the container still exists."""
    try:
        await cluster.call("GET", f"{CONTAINERS}/{quote(container, safe='')}")
    except ClusterError as error:
        if error.status == 404:
            return False
        raise
    return True


async def delete_container(cluster: Cluster, container: str) -> None:
    """Delete a container that has no memories. Its indices stay, as other containers may share them."""
    await cluster.call("DELETE", f"{CONTAINERS}/{quote(container, safe='')}")


def _head_of_probe() -> Head:
    return new_head(SessionKey(Owner("probe"), f"{PREFIX}probe-{uuid.uuid4().hex}"), time.time())


def _probe_document(head: Head, seq: int | None) -> Document:
    return Document(f"{head.incarnation}.probe", b'{"probe":true}', seq)


def is_unfit(error: ClusterError) -> bool:
    """Return whether the cluster's memory containers don't do what a store needs, or it has none."""
    return error.status in _UNFIT or lacks_containers(error)


def lacks_containers(error: ClusterError) -> bool:
    """Return whether the cluster has memory containers switched off, or ML Commons is not installed."""
    marks = {403: _DISABLED, 400: _NO_HANDLER}
    return error.status in marks and marks[error.status] in str(error)

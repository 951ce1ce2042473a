"""The places of messages on an OpenSearch cluster: an index of the gateway's own, or a memory container.

- ``<prefix>-memory-sessions`` holds heads, records and numbers of turns (documents.py), whichever place holds the
  messages. ``<prefix>-memory-messages`` holds messages with the mapping of the RFC's working memory. Clusters of any
  version from 2.7 have both.
- In a memory container of ML Commons 3.3 and later, each message is a working memory with its content in
  ``structured_data_blob``, and each session is also a session of the container. The API chooses the ids of working
  memories and, before 3.6, has no conditional writes: the record of a turn, in the gateway's own index, says which of
  them are the turn's and in which order.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from gateway.config.memory import OpenSearchStore as Settings
from gateway.memory.model import PREFIX, Message, Owner, SessionKey
from gateway.memory.store import StoreError, StoreUnavailable, UnreadableSession
from gateway.memory.stores.opensearch.cluster import BATCH, BLOCKED, Cluster, ClusterError
from gateway.memory.stores.opensearch.documents import INDEX, Document, Head, Record, Reference, head_id, new_head
from gateway.memory.structured import from_structured
from gateway.observe.logs import Logger

_MOST_DOCUMENTS = 1_000
"""Most documents in an answer. OpenSearch gives 10,000 at most (`index.max_result_window`)."""
_KEYWORD = {"type": "keyword"}
_DATE = {"type": "date", "format": "strict_date_time||epoch_millis"}
_UNINDEXED = {"type": "object", "enabled": False}
_OWNERSHIP = {"session": _KEYWORD, "incarnation": _KEYWORD, "created_time": _DATE, "last_updated_time": _DATE}

_SESSIONS = {
    **_OWNERSHIP,
    "kind": _KEYWORD,
    "owner": _KEYWORD,
    "updated_micros": {"type": "long"},
    "body": _UNINDEXED,
}
_MESSAGES = {
    **_OWNERSHIP,
    "payload_type": _KEYWORD,
    "message_id": {"type": "integer"},
    "structured_data_blob": _UNINDEXED,
    "namespace": {"type": "flat_object"},
    "namespace_size": {"type": "integer"},
    "metadata": {"type": "flat_object"},
    "infer": {"type": "boolean"},
}


class Messages(Protocol):
    """Where messages and pieces of large texts are written."""

    place: str

    async def write(self, head: Head, documents: Sequence[Document]) -> list[Reference]:
        """Write documents; return a reference to each."""

    async def read(self, references: Sequence[Reference]) -> dict[str, dict[str, Any]]:
        """Return the ``structured_data_blob`` of the documents that exist, by id."""

    async def added(self, head: Head, last: Record) -> list[tuple[Reference, Message]]:
        """Return the messages that agents of the cluster added to the session after the record `last`."""

    async def probe(self) -> None:
        """Write a document, and delete it. It fails if the place takes no writes at present."""

    async def discard(self, references: Sequence[Reference]) -> None:
        """Delete documents of a turn that another writer was faster than."""

    async def delete(self, head: Head) -> None:
        """Delete all documents of the session's incarnation."""


class IndexMessages:
    """Messages in the gateway's own index. A turn that is sent again overwrites its documents."""

    place = INDEX

    def __init__(self, cluster: Cluster, index: str) -> None:
        self._cluster = cluster
        self._index = index

    async def write(self, head: Head, documents: Sequence[Document]) -> list[Reference]:
        """See `Messages`."""
        operations = []
        for document in documents:
            action = {"index": {"_index": self._index, "_id": document.id}}
            operations.append((action, msgspec.json.encode(_message(head, document))))
        await self._cluster.write(operations)
        return [(document.id, len(document.blob)) for document in documents]

    async def added(self, head: Head, last: Record) -> list[tuple[Reference, Message]]:
        """See `Messages`. Agents do not know this index."""
        return []

    async def read(self, references: Sequence[Reference]) -> dict[str, dict[str, Any]]:
        """See `Messages`."""
        found: dict[str, dict[str, Any]] = {}
        for ids in batches_of_ids(references):
            found |= await self._cluster.get(self._index, ids)
        return {id_: source.get("structured_data_blob", {}) for id_, source in found.items()}

    async def probe(self) -> None:
        """See `Messages`."""
        await probe_index(self._cluster, self._index)

    async def discard(self, references: Sequence[Reference]) -> None:
        """Do nothing: the turn that is sent again overwrites them, or they are deleted with the session."""

    async def delete(self, head: Head) -> None:
        """See `Messages`."""
        await delete_incarnation(self._cluster, self._index, head.incarnation)


def _message(head: Head, document: Document) -> dict[str, Any]:
    now = int(time.time() * 1000)
    namespace = {"agent_id": head.key.owner.agent_id, "session_id": head.key.id}
    fields = {
        "session": head_id(head.key),
        "incarnation": head.incarnation,
        "payload_type": "data" if document.seq is None else "conversational",
        "structured_data_blob": msgspec.Raw(document.blob),
        "namespace": namespace,
        "namespace_size": len(namespace),
        "metadata": document.metadata,
        "infer": False,
        "created_time": now,
        "last_updated_time": now,
    }
    return fields if document.seq is None else fields | {"message_id": document.seq}


def batches_of_ids(references: Sequence[Reference]) -> Iterator[list[str]]:
    """Yield ids of documents of at most `BATCH` bytes together, or of one; not too many."""
    ids: list[str] = []
    size = 0
    for id_, bytes_ in dict.fromkeys(references):
        if ids and (size + bytes_ > BATCH or len(ids) == _MOST_DOCUMENTS):
            yield ids
            ids, size = [], 0
        ids.append(id_)
        size += bytes_
    if ids:
        yield ids


async def make_indices(cluster: Cluster, sessions: str, messages: str) -> None:
    """Create the indices that do not exist.

    Raises:
        ClusterError: the cluster refuses.
    """
    await asyncio.gather(_make(cluster, sessions, _SESSIONS), _make(cluster, messages, _MESSAGES))


async def _make(cluster: Cluster, index: str, properties: dict[str, Any]) -> None:
    body = {
        "settings": {"index": {"number_of_shards": 1, "auto_expand_replicas": "0-1"}},
        "mappings": {"dynamic": False, "_meta": {"schema_version": 1}, "properties": properties},
    }
    try:
        await cluster.make(f"/{index}", body)
    except ClusterError as error:
        if error.type != BLOCKED or f"index [{index}]" not in str(error):
            raise  # else it takes no writes, as on a full disk: it exists and can be read


async def probe_index(cluster: Cluster, index: str) -> None:
    """Write a document to an index, and delete it.

    Raises:
        ClusterError: the index takes no writes.
    """
    place = {"_index": index, "_id": f"probe.{secrets.token_hex(10)}"}
    await cluster.write([({"index": place}, {"kind": "probe"}), ({"delete": place}, None)])


async def delete_incarnation(cluster: Cluster, index: str, incarnation: str) -> None:
    """Delete all documents of an incarnation from an index, so many at a time that no request takes long."""
    query = {"query": {"term": {"incarnation": incarnation}}, "size": _MOST_DOCUMENTS, "_source": False}
    while True:
        await cluster.call("POST", f"/{index}/_refresh")
        hits = (await cluster.call("POST", f"/{index}/_search", query, "hits"))["hits"]["hits"]
        if not hits:
            return
        await cluster.write([({"delete": {"_index": index, "_id": hit["_id"]}}, None) for hit in hits])


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


_CONTAINERS_SINCE = (3, 3)
_CLAIM = "container"
"""Id of the document that names the container, so that all gateways use the same one."""


class Places:
    """The places of a cluster. sessions: the index of heads and records; it also names the container."""

    def __init__(self, cluster: Cluster, settings: Settings, log: Logger) -> None:
        self.sessions = f"{settings.prefix}-memory-sessions"
        self._messages = f"{settings.prefix}-memory-messages"
        self._cluster = cluster
        self._settings = settings
        self._log = log
        self._unfit_version = ""
        """The version of the cluster whose containers were tried, and don't serve."""
        self._proved = ("", "")
        """The container that serves, and the version of the cluster on which it was proved."""

    async def choose(self) -> Messages:
        """Return the place for new messages, by `kind` and what the cluster has. Make the indices and the container.

        Raises:
            StoreUnavailable: the cluster has not what `kind` needs.
        """
        await make_indices(self._cluster, self.sessions, self._messages)
        kind = self._settings.kind
        if kind == "index":
            return self.at(INDEX)
        version = await self._version()
        if kind == "auto" and not self._may_have_containers(version):
            return self.at(INDEX)
        try:
            return self.at(await self._container(version))
        except ClusterError as error:
            if kind == "container":
                raise StoreUnavailable(
                    f"{error}. `memory.opensearch.kind: container` needs ML Commons 3.3 or later with "
                    "`plugins.ml_commons.agentic_memory_enabled`, and containers that can be searched (docs/operate/"
                    "memory.md); `index` needs neither"
                ) from None
            if not is_unfit(error):
                raise
            if not lacks_containers(error):  # which an operator may change
                self._unfit_version = version
            self._log.warning("memory kept in index", reason=str(error))
            return self.at(INDEX)

    def at(self, place: str) -> Messages:
        """Return the place that a record names."""
        if place == INDEX:
            return IndexMessages(self._cluster, self._messages)
        return ContainerMessages(self._cluster, place)

    def is_unfit(self, place: str) -> bool:
        """Return whether the place is a container on a cluster whose containers were tried, and don't serve."""
        return place != INDEX and bool(self._unfit_version)

    async def all(self) -> set[str]:
        """Return the places where messages may be."""
        claimed = await self._claimed()
        return {INDEX, claimed} if claimed else {INDEX}

    def _may_have_containers(self, version: str) -> bool:
        return _numbers(version, self._cluster.url) >= _CONTAINERS_SINCE and version != self._unfit_version

    async def _version(self) -> str:
        """Return the cluster's version, such as ``3.6.0``; "" if it does not say."""
        answer = await self._cluster.call("GET", "/")
        version = answer.get("version")
        return str(version.get("number", "")) if isinstance(version, dict) else ""

    async def _container(self, version: str) -> str:
        """Return the id of the gateways' container; make it if there is none.

        It is proved by the first use of this store, and again on another version of the cluster.
        """
        claim = await self._claim()
        container = _container_in(claim) if claim else ""
        is_made = not container or not await container_exists(self._cluster, container)
        if not is_made and (container, version) == self._proved:
            return container
        if is_made:
            container = await make_container(self._cluster, self._settings.prefix)
        try:
            await ContainerMessages(self._cluster, container).prove()
        except StoreError as error:
            if not is_made and isinstance(error, ClusterError) and error.type == BLOCKED:
                return container  # it takes no writes at present, and its sessions can be read
            if is_made:
                with contextlib.suppress(StoreError):  # the first error counts
                    await delete_container(self._cluster, container)
            raise
        if is_made and not await self._write_claim(container, claim):  # another gateway was faster
            await delete_container(self._cluster, container)
            return await self._claimed() or container
        self._proved = (container, version)
        return container

    async def _write_claim(self, container: str, earlier: dict[str, Any] | None) -> bool:
        """Name the gateways' container. Return False if another gateway named one since `earlier` was read."""
        place = {"_index": self.sessions, "_id": _CLAIM}
        action: dict[str, Any] = {"create": place}
        if earlier:
            condition = {"if_seq_no": earlier["_seq_no"], "if_primary_term": earlier["_primary_term"]}
            action = {"index": {**place, **condition}}
        claim = msgspec.json.encode({"kind": _CLAIM, "body": {"id": container}})
        [status] = await self._cluster.write([(action, claim)])
        return status != 409

    async def _claimed(self) -> str:
        """Return the id of the container that the gateways use, "" if they use none."""
        claim = await self._claim()
        return _container_in(claim) if claim else ""

    async def _claim(self) -> dict[str, Any] | None:
        """Return the document that names the container, None if there is none."""
        return (await self._cluster.get_documents(self.sessions, [_CLAIM])).get(_CLAIM)


def _container_in(claim: dict[str, Any]) -> str:
    return str(claim["_source"]["body"]["id"])


def _numbers(version: str, url: str) -> tuple[int, ...]:
    """Return a version's numbers: (3, 6, 0).

    Raises:
        StoreUnavailable: it has none.
    """
    try:
        return tuple(int(part) for part in version.split("-")[0].split("."))
    except ValueError:
        raise StoreUnavailable(f"{url} does not say its version: name the `kind` in `memory.opensearch`") from None

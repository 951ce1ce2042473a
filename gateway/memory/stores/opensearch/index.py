"""Indices of the gateway's own on an OpenSearch cluster, for clusters of any version from 2.7.

``<prefix>-memory-sessions`` holds heads, records and numbers of turns (`opensearch_documents`), whichever place holds
the messages. ``<prefix>-memory-messages`` holds messages with the mapping of the RFC's working memory.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from gateway.memory.model import Message
from gateway.memory.stores.opensearch.cluster import BATCH, BLOCKED, Cluster, ClusterError
from gateway.memory.stores.opensearch.documents import INDEX, Document, Head, Record, Reference, head_id

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
        await cluster.call("PUT", f"/{index}", body)
    except ClusterError as error:
        # An index that takes no writes, as on a full disk, exists and can be read.
        is_blocked = error.type == BLOCKED and f"index [{index}]" in str(error)
        if error.type != "resource_already_exists_exception" and not is_blocked:
            raise


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

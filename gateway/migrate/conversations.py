"""Reads the conversations of the cluster's own memory (``/_plugins/_ml/memory``), which any version keeps as text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from gateway.agents.lookup import document_path
from gateway.migrate.connection import Cluster, ClusterError, refusal
from gateway.mlcommons.memory_form import show_original

_PAGE = 1000
_FAILED = "Agent execution failed: "
"""How the response of a failed run begins (3.x). On 2.x, it has none (docs/internals/facts.md)."""


class Exchange(NamedTuple):
    """A question with its answer. created: seconds since the epoch, 0 if unknown. answer: "" if the run failed."""

    id: str
    question: str
    answer: str
    created: float


def list_conversations(cluster: Cluster) -> Iterator[str]:
    """Yield the ids of the conversations that the account may read, the last updated first.

    Raises:
        ClusterError: they can't be read.
    """
    for memory in _pages(cluster, "/_plugins/_ml/memory", "memories", ""):
        yield str(memory["memory_id"])


def read_conversation(cluster: Cluster, id: str) -> list[Exchange]:
    """Return the questions and answers of a conversation, oldest first, as they were written.

    Raises:
        ClusterError: there is no such conversation, or it can't be read.
    """
    path = document_path("memory", id, "/messages")
    return [
        Exchange(
            str(message["message_id"]),
            show_original(str(message.get("input") or "")),
            _answer(str(message.get("response") or "")),
            _seconds(message.get("create_time")),
        )
        for message in _pages(cluster, path, "messages", id)
    ]


def _answer(response: str) -> str:
    return "" if response.startswith(_FAILED) else response


def _seconds(time: Any) -> float:
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return 0.0


def _pages(cluster: Cluster, path: str, name: str, id: str) -> Iterator[dict[str, Any]]:
    start: int | None = 0
    while start is not None:
        query = f"?max_results={_PAGE}" + (f"&next_token={start}" if start else "")
        status, body = cluster.call("GET", path + query)
        if status == 404 and id:
            raise ClusterError(f"The cluster has no conversation {id} that this account may read.")
        if status != 200:
            raise refusal(status, "read conversations", "cluster:admin/opensearch/ml/memory/*", body)
        found = body.get(name)
        if not isinstance(found, list):
            raise ClusterError(f"GET {path} answered without a list of {name}.")
        yield from found
        following = body.get("next_token")
        start = following if isinstance(following, int) and following > start else None

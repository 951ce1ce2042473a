"""Lists every agent, model, model group or connector of a cluster once, while others may be registered.

What ML Commons' `_search` accepts (source, 2.19 and 3.6): it reads the search from the body only, so `scroll`, a query
parameter, is refused as unknown. A point in time can't be used either: the plugin sets the index itself, and users may
not open one on it. That leaves `sort` with `search_after`. Sorted by `_seq_no`, a document that is written while the
pages are read moves to the end: it may be returned twice, and is then yielded once, but is never missed. No account
gets hidden agents. On a multi-tenant cluster, the tenant's own documents are returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.migrate.connection import Cluster, ClusterRefused, refusal
from gateway.migrate.steps import Kind

Found = tuple[str, dict[str, Any]]

PAGE = 1000
"""Documents per request; without a size there would be ten."""

WINDOW = 10_000
"""The most documents that `from` and `size` reach (`index.max_result_window`)."""

PERMISSIONS: Mapping[Kind, str] = {
    "agents": "cluster:admin/opensearch/ml/agents/search",
    "models": "cluster:admin/opensearch/ml/models/search",
    "model_groups": "cluster:admin/opensearch/ml/model_groups/search",
    "connectors": "cluster:admin/opensearch/ml/connectors/search",
}

_SORT = [{"_seq_no": "asc"}]
_PASSES = 5


def search_all(
    cluster: Cluster,
    kind: Kind,
    query: Mapping[str, Any] | None = None,
    page: int = PAGE,
    source: Sequence[str] = (),
) -> Iterator[Found]:
    """Yield id and source of every document that matches `query` (None: all), each once.

    source: the members of each document to fetch; () for all.

    `_search` sees a registration after the next refresh, so the newest documents may be missing.

    Raises:
        ClusterRefused: the cluster refuses the search, or can't show all of them.
        ClusterUnreachable: the cluster did not respond.
    """
    seen: set[str] = set()
    search = {"query": query or {"match_all": {}}, **({"_source": list(source)} if source else {})}
    for _ in range(_PASSES):
        pages = fresh = 0
        for hits in _pages(cluster, kind, search, page):
            pages += 1
            for hit in hits:
                if hit["_id"] not in seen:
                    seen.add(hit["_id"])
                    fresh += 1
                    yield hit["_id"], hit.get("_source") or {}
        # A single page is consistent. Between two pages, a document may appear before those that were already read.
        if pages < 2 or not fresh:
            return


def _pages(cluster: Cluster, kind: Kind, search: Mapping[str, Any], page: int) -> Iterator[list[dict[str, Any]]]:
    """Read all pages once, sorted if the cluster can sort, else by offset."""
    after: list[Any] | None = None
    while True:
        body = {**search, "size": page, "sort": _SORT, **({"search_after": after} if after else {})}
        status, answer = _search(cluster, kind, body)
        # If a shard refuses, the response is a 400 for connectors, and a 500 without a reason for agents and models.
        if after is None and status in (400, 500):
            yield from _by_offset(cluster, kind, search, page)
            return
        hits = _hits(kind, status, answer)
        if hits and "sort" not in hits[-1]:
            yield from _by_offset(cluster, kind, search, page)
            return
        if hits:
            yield hits
        if len(hits) < page:
            return
        after = hits[-1]["sort"]


def _by_offset(cluster: Cluster, kind: Kind, search: Mapping[str, Any], page: int) -> Iterator[list[dict[str, Any]]]:
    """Read pages by `from` and `size`, for a store that can't sort by sequence numbers."""
    start = 0
    while True:
        size = min(page, WINDOW - start)
        status, answer = _search(cluster, kind, {**search, "from": start, "size": size})
        hits = _hits(kind, status, answer)
        if hits:
            yield hits
        start += len(hits)
        if len(hits) < size:
            return
        if start >= WINDOW:
            if _total(answer) <= WINDOW:
                return
            raise ClusterRefused(
                f"There are {_total(answer)} {words(kind)}, and this cluster shows only {WINDOW}, as it does not sort "
                "them: name the ones you mean."
            )


def _search(cluster: Cluster, kind: Kind, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    return cluster.call("POST", f"/_plugins/_ml/{kind}/_search", {"track_total_hits": True, **body})


def _hits(kind: Kind, status: int, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    if status == 404 and "index_not_found" in str(answer):
        return []  # nothing of the kind was ever registered
    if status == 400 and "no handler found" in str(answer):
        raise ClusterRefused("This cluster has no ML Commons: install the plugin opensearch-ml, or check the address.")
    found = (answer.get("hits") or {}).get("hits")
    if status != 200 or not isinstance(found, list):
        raise refusal(status, f"search its {words(kind)}", PERMISSIONS[kind], answer)
    if (answer.get("_shards") or {}).get("failed"):
        raise ClusterRefused(f"The search of {words(kind)} failed on a shard: wait until the cluster is green again.")
    return found


def words(kind: Kind) -> str:
    """Return the kind as it stands in a sentence."""
    return kind.replace("_", " ")


def _total(answer: Mapping[str, Any]) -> int:
    total = (answer.get("hits") or {}).get("total") or {}
    return int(total.get("value", 0)) if isinstance(total, Mapping) else int(total)

"""`_search` of agents, models and connectors: the part that the gateway and its tests use.

Anything else is a 501. The tests against a real cluster check that the searches which the gateway sends work there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.simulator.errors import Json
from gateway.simulator.fields import Document
from gateway.simulator.query import matcher, not_simulated
from gateway.simulator.store import INDEX, Store

_WINDOW = 10_000
_KEYS = frozenset({"query", "from", "size", "sort", "search_after", "_source", "track_total_hits"})
_SORT = [{"_seq_no": "asc"}]
"""The only order that is simulated. A document that is written again moves to the end."""
_SHARDS = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}


def search(resources: Store, kind: str, body: Mapping[str, Any]) -> Json:
    """Answer ``_plugins/_ml/{kind}s/_search``.

    Raises:
        RestFailure: 501 for what is not simulated.
    """
    _check(body)
    matches = matcher(body.get("query", {"match_all": {}}))
    found = [document for document in resources.searchable(kind).values() if matches(document)]
    start, size, is_sorted = body.get("from", 0), body.get("size", 10), "sort" in body
    shown = found
    if is_sorted:
        (after,) = body.get("search_after", [-1])
        shown = sorted((one for one in found if one.number > after), key=lambda document: document.number)
    hits = [_hit(document, body.get("_source"), is_sorted) for document in shown[start : start + size]]
    return answer(hits, len(found))


def _check(body: Mapping[str, Any]) -> None:
    for name in body:
        if name not in _KEYS:
            raise not_simulated(f"[{name}] in a search")
    if body.get("sort", _SORT) != _SORT or ("search_after" in body and "sort" not in body):
        raise not_simulated("search sorted by anything but [_seq_no]")
    if not isinstance(body.get("_source", []), list):
        raise not_simulated("[_source] that is no list")
    if body.get("from", 0) + body.get("size", 10) > _WINDOW:
        raise not_simulated(f"search of more than {_WINDOW} documents")


def _hit(document: Document, names: list[str] | None, is_sorted: bool) -> Json:
    source = document.source if names is None else _pick(document.source, names)
    entry = hit(INDEX[document.kind], document.id, source, document.number)
    return {**entry, "_score": None, "sort": [document.number]} if is_sorted else entry


def _pick(source: Mapping[str, Any], names: list[str]) -> Json:
    """Return the members of `source` at the dotted paths `names`."""
    picked: Json = {}
    for name in names:
        first, _, rest = name.partition(".")
        value = source.get(first)
        if rest and isinstance(value, Mapping):
            picked[first] = {**picked.get(first, {}), **_pick(value, [rest])}
        elif value is not None and not rest:
            picked[first] = value
    return picked


def hit(index: str, name: str, source: Mapping[str, Any], number: int = 1) -> Json:
    """Return one hit. number: its sequence number."""
    ids = {"_index": index, "_id": name, "_version": 1, "_seq_no": number, "_primary_term": 1}
    return {**ids, "_score": 1.0, "_source": source}


def answer(hits: list[Json], total: int) -> Json:
    """Return a whole answer with `hits`."""
    best = hits[0]["_score"] if hits else None
    counted = {"total": {"value": total, "relation": "eq"}, "max_score": best, "hits": hits}
    return {"took": 1, "timed_out": False, "_shards": {**_SHARDS}, "hits": counted}

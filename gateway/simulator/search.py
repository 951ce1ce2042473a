"""`_search` of agents, models and connectors: its body, its hits, its failures, and points in time.

As a real 3.6.0 answers: `scroll`, `size`, `sort` and the like are no parameters of these paths (400), a point in time
opened on the index works in the body, ``_source: false`` shows all, and what the shards refuse is a 500 for agents and
models but a 400 for connectors. Scores of texts are not simulated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cmp_to_key
from typing import Any

from gateway.simulator import fields
from gateway.simulator.errors import Answer, Json, RestFailure
from gateway.simulator.fields import Document
from gateway.simulator.memory import new_id
from gateway.simulator.query import UnreadableDate, matcher
from gateway.simulator.resources import INDEX, NODE, Resources

_WINDOW = 10_000
_SIMULATED = "query from size sort search_after _source pit track_total_hits version seq_no_primary_term"
_KEYS = frozenset(_SIMULATED.split())
_KNOWN = """aggs aggregations highlight collapse rescore suggest fields stored_fields docvalue_fields script_fields
post_filter min_score explain profile slice timeout terminate_after track_scores indices_boost ext"""
_NOT_SIMULATED = frozenset(_KNOWN.split())
_TOKENS = {
    str: "VALUE_STRING",
    bool: "VALUE_BOOLEAN",
    dict: "START_OBJECT",
    list: "START_ARRAY",
    type(None): "VALUE_NULL",
}
_HEADINGS = {"agent": "Fail to search agent", "model": "Fail to search model version"}
_MISSING_LAST = {fields.DATE: 2**63 - 1, fields.NUMBER: 2**63 - 1}


class _Failure(Exception):
    """What the shards refuse; `kind` is the exception's name in REST."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class Searches:
    """Searching in a cluster's documents; keeps the points in time."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._points: dict[str, list[Document]] = {}

    def search(self, kind: str, body: Mapping[str, Any]) -> Json:
        """The answer of ``_plugins/_ml/{kind}s/_search``.

        Raises:
            Answer: the body was refused.
        """
        _check_keys(body)
        try:
            return _answer(kind, body, self._point(body["pit"]["id"]) if "pit" in body else self._now(kind))
        except _Failure as failure:
            raise _failed(kind, failure) from None
        except UnreadableDate:
            raise _failed(kind, _Failure("parse_exception", "failed to parse date field")) from None

    def _now(self, kind: str) -> list[Document]:
        return list(self._resources.searchable(kind).values())

    def _point(self, point_id: str) -> list[Document]:
        if point_id not in self._points:
            raise _Failure("search_context_missing_exception", f"No search context found for id [{point_id}]")
        return self._points[point_id]

    def open_point(self, index: str, keep_alive: str | None) -> Json:
        """``POST /{index}/_search/point_in_time``: what is searchable now stays so under the id."""
        if keep_alive is None:
            reason = "Validation Failed: 1: keep alive not specified;"
            raise RestFailure(400, "action_request_validation_exception", reason)
        kind = next((kind for kind, name in INDEX.items() if name == index), None)
        if kind is None:
            named = {"resource.type": "index_or_alias", "resource.id": index, "index": index, "index_uuid": "_na_"}
            raise RestFailure(404, "index_not_found_exception", f"no such index [{index}]", **named)
        point_id = new_id() * 4
        self._points[point_id] = self._now(kind)
        return {"pit_id": point_id, "_shards": _SHARDS, "creation_time": self._resources.millis()}

    def close_points(self, body: Mapping[str, Any]) -> Json:
        """``DELETE /_search/point_in_time``."""
        given = body.get("pit_id") or []
        ids = given if isinstance(given, list) else [given]
        return {"pits": [{"successful": self._points.pop(name, None) is not None, "pit_id": name} for name in ids]}


def hit(index: str, name: str, source: Mapping[str, Any], score: float | None = 1.0, number: int = 1) -> Json:
    """One hit as these paths show it. number: its sequence number."""
    ids = {"_index": index, "_id": name, "_version": 1, "_seq_no": number, "_primary_term": 1}
    return {**ids, "_score": score, "_source": source}


def answer(hits: list[Json], total: int) -> Json:
    """A whole answer around hits."""
    best = hits[0]["_score"] if hits else None
    counted = {"total": {"value": total, "relation": "eq"}, "max_score": best, "hits": hits}
    return {"took": 1, "timed_out": False, "_shards": {**_SHARDS}, "hits": counted}


_SHARDS = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}


def _check_keys(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in _NOT_SIMULATED:
            raise RestFailure(501, "not_simulated", f"the simulator has no [{name}] in a search")
        if name not in _KEYS:
            token = _TOKENS.get(type(value), "VALUE_NUMBER")
            raise RestFailure(400, "parsing_exception", f"Unknown key for a {token} in [{name}].", line=1, col=1)
    for name in ("from", "size"):
        if body.get(name, 0) < 0:
            reason = f"[{name}] parameter cannot be negative, found [{body[name]}]"
            raise RestFailure(400, "illegal_argument_exception", reason)


def _answer(kind: str, body: Mapping[str, Any], documents: list[Document]) -> Json:
    start, size = body.get("from", 0), body.get("size", 10)
    if start + size > _WINDOW:
        raise _Failure("illegal_argument_exception", _TOO_LARGE.format(_WINDOW, start + size))
    wanted = matcher(body["query"]) if "query" in body else None
    found = [document for document in documents if wanted is None or wanted(document)]
    # Agents and models are filtered by a clause of the plugin's own, which scores nothing.
    score = 0.0 if wanted is None and kind != "connector" else 1.0
    keys = [_SortKey.read(kind, given, documents) for given in _as_list(body.get("sort"))]
    ordered = _ordered(found, keys, body.get("search_after"))
    show = _source_filter(kind, body.get("_source"))
    hits = []
    for document, values in ordered[start : start + size]:
        index, shown = INDEX[document.kind], show(document.source)
        entry = hit(index, document.id, shown, None if keys else score, document.number)
        hits.append({**entry, "sort": values} if keys else entry)
    result = answer(hits, len(found))
    if body.get("track_total_hits") is False:
        del result["hits"]["total"]
    return {"pit_id": body["pit"]["id"], **result} if "pit" in body else result


# Order


class _SortKey:
    """One field to sort by."""

    def __init__(self, path: str, descending: bool, kind: str) -> None:
        self.path, self.descending, self.kind = path, descending, kind

    @classmethod
    def read(cls, kind: str, given: Any, documents: list[Document]) -> _SortKey:
        path, options = next(iter(given.items())) if isinstance(given, Mapping) else (given, {})
        options = {"order": options} if isinstance(options, str) else options
        descending = str(options.get("order", "desc" if path == "_score" else "asc")).lower() == "desc"
        if path in ("_doc", "_score"):
            return cls(path, descending, fields.NUMBER)
        found = next((document for document in documents if document.field(path).values), None)
        if found is None and not fields.is_mapped(kind, path) and "unmapped_type" not in options:
            raise _Failure("query_shard_exception", f"No mapping found for [{path}] in order to sort on")
        held = found.field(path).kind if found else fields.MAPPINGS[kind].get(path, fields.KEYWORD)
        if held == fields.TEXT or held.startswith("text"):
            raise _Failure("illegal_argument_exception", _TEXT_SORT.format(path))
        return cls(path, descending, held)

    def value(self, document: Document, position: int) -> Any:
        """The document's value, as a hit shows it; what is missing comes last."""
        if self.path in ("_doc", "_score"):
            return position if self.path == "_doc" else 1.0
        values = document.field(self.path).values
        if not values:
            missing = _MISSING_LAST.get(self.kind)
            return -missing - 1 if missing is not None and self.descending else missing
        return (max if self.descending else min)(values)

    def compare(self, one: Any, other: Any) -> int:
        """Below zero when `one` comes first."""
        if one == other or one is None or other is None:
            return int(one is None) - int(other is None)
        first = (one > other) if self.descending else (one < other)
        return -1 if first else 1


def _ordered(found: list[Document], keys: list[_SortKey], after: list[Any] | None) -> list[tuple[Document, list[Any]]]:
    rows = [(document, [key.value(document, position) for key in keys]) for position, document in enumerate(found)]

    def compare(one: Sequence[Any], other: Sequence[Any]) -> int:
        steps = (key.compare(first, second) for key, first, second in zip(keys, one, other, strict=True))
        return next((step for step in steps if step), 0)

    order = cmp_to_key(compare)
    rows.sort(key=lambda row: order(row[1]))
    if after is None:
        return rows
    if not keys:
        raise _Failure("illegal_argument_exception", "Sort must contain at least one field.")
    if len(after) != len(keys):
        reason = f"search_after has {len(after)} value(s) but sort has {len(keys)}."
        raise _Failure("illegal_argument_exception", reason)
    return [row for row in rows if compare(after, row[1]) < 0]


# What a hit shows


def _source_filter(kind: str, given: Any) -> Callable[[Mapping[str, Any]], Any]:
    """A `_source` of the body as a function; true and false both show all (the plugin overrides them)."""
    if isinstance(given, Mapping):
        includes = _as_list(given.get("includes", given.get("include")))
        excludes = _as_list(given.get("excludes", given.get("exclude")))
    else:
        includes, excludes = [] if given is None or isinstance(given, bool) else _as_list(given), []

    def show(source: Mapping[str, Any]) -> Any:
        return _kept("", source, _patterns(includes), _patterns(excludes))

    return show


def _patterns(names: Iterable[str]) -> list[re.Pattern[str]]:
    return [re.compile(re.escape(name).replace(r"\*", ".*") + r"(\..*)?") for name in names]


def _kept(path: str, node: Any, includes: list[re.Pattern[str]], excludes: list[re.Pattern[str]]) -> Any:
    if isinstance(node, list):
        kept = [_kept(path, item, includes, excludes) for item in node]
        return [item for item in kept if item is not None and (item != {} or not includes)] or None
    if not isinstance(node, Mapping):
        shown = not includes or any(pattern.fullmatch(path) for pattern in includes)
        return node if shown else None
    result = {}
    for name, value in node.items():
        inner = f"{path}.{name}" if path else name
        if any(pattern.fullmatch(inner) for pattern in excludes):
            continue
        whole = not includes or any(pattern.fullmatch(inner) for pattern in includes)
        kept = _kept(inner, value, [] if whole else includes, excludes)
        if kept is not None and (whole or kept != {}):
            result[name] = kept
    return result


# Failures


def _failed(kind: str, failure: _Failure) -> Answer:
    """The plugin words what shards refuse anew for agents and models, and passes it on for connectors."""
    known = failure.kind == "illegal_argument_exception"
    if kind in _HEADINGS:
        return RestFailure(500, "status_exception", failure.reason if known else _HEADINGS[kind])
    cause: Json = {"type": failure.kind, "reason": failure.reason}
    where = {"shard": 0, "index": INDEX[kind], "node": NODE, "reason": cause}
    error: Json = {"root_cause": [cause], "type": "search_phase_execution_exception", "reason": "all shards failed"}
    error |= {"phase": "query", "grouped": True, "failed_shards": [where], "caused_by": cause}
    missing = failure.kind == "search_context_missing_exception"
    status = 404 if missing else 400
    return Answer(status, {"error": error, "status": status})


def _as_list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


_TOO_LARGE = (
    "Result window is too large, from + size must be less than or equal to: [{}] but was [{}]. See the scroll api for "
    "a more efficient way to request large data sets. This limit can be set by changing the [index.max_result_window] "
    "index level setting."
)
_TEXT_SORT = (
    "Text fields are not optimised for operations that require per-document field data like aggregations and sorting, "
    "so these operations are disabled by default. Please use a keyword field instead. Alternatively, set "
    "fielddata=true on [{}] in order to load field data by uninverting the inverted index. Note that this can use "
    "significant memory."
)

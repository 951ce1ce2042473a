"""The query DSL, as far as agents, models and connectors are looked for with it.

A query a real cluster knows and this one doesn't is a 501, so that no test rests on it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.simulator import fields
from gateway.simulator.errors import RestFailure
from gateway.simulator.fields import Document

_KNOWN = """boosting dis_max distance_feature function_score fuzzy geo_distance has_child has_parent hybrid intervals
knn match_bool_prefix match_phrase_prefix more_like_this multi_match nested neural percolate query_string regexp script
script_score simple_query_string span_term terms_set wildcard wrapper"""
_NOT_SIMULATED = frozenset(_KNOWN.split())
_SECONDS = {"s": 1, "m": 60, "h": 3600, "H": 3600, "d": 86400, "w": 604800}
_NOW = re.compile(r"now(?:([+-])(\d+)([smhHdw]))?")

Matcher = Callable[[Document], bool]


class UnreadableDate(ValueError):
    """A range over a date with a bound that is none: the shards fail, not the parser."""


def matcher(query: Any) -> Matcher:
    """A query as a predicate.

    Raises:
        RestFailure: 400 for what the parser refuses; 501 for what is not simulated.
        UnreadableDate: a bound of a range is no date.
    """
    if not isinstance(query, Mapping) or not query:
        raise RestFailure(400, "illegal_argument_exception", "query malformed, empty clause found at [1:1]")
    (name, body), *more = query.items()
    if more:
        raise _parsing(f"[{name}] malformed query, expected [END_OBJECT] but found [FIELD_NAME]")
    if name in _NOT_SIMULATED:
        raise RestFailure(501, "not_simulated", f"the simulator has no [{name}] query")
    if name not in _QUERIES:
        raise _parsing(f"unknown query [{name}]")
    return _QUERIES[name](body)


def _parsing(reason: str) -> RestFailure:
    return RestFailure(400, "parsing_exception", reason, line=1, col=1)


def _bool(body: Mapping[str, Any]) -> Matcher:
    unknown = body.keys() - {"must", "filter", "must_not", "should", "minimum_should_match", "boost", "_name"}
    if unknown:
        raise _parsing(f"[bool] query does not support [{min(unknown)}]")
    clauses = {name: _clauses(body.get(name)) for name in ("must", "filter", "must_not", "should")}
    required = [*clauses["must"], *clauses["filter"]]
    optional = clauses["should"]
    least = int(body.get("minimum_should_match", 0 if required or not optional else 1))

    def run(document: Document) -> bool:
        if not all(clause(document) for clause in required) or any(clause(document) for clause in clauses["must_not"]):
            return False
        return not optional or sum(clause(document) for clause in optional) >= least

    return run


def _clauses(given: Any) -> list[Matcher]:
    return [matcher(query) for query in (given if isinstance(given, list) else [given] if given is not None else [])]


def _ids(body: Mapping[str, Any]) -> Matcher:
    given = body.get("values")
    wanted = set(given if isinstance(given, list) else [given])
    return lambda document: document.id in wanted


def _exists(body: Mapping[str, Any]) -> Matcher:
    if "field" not in body:
        raise _parsing("[exists] must be provided with a [field]")
    return lambda document: bool(document.field(body["field"]).values)


def _term(body: Mapping[str, Any]) -> Matcher:
    path, value, options = _one_field("term", body, "value")
    if isinstance(value, list):
        raise _parsing("[term] query does not support array of values")
    return _any_term(path, [value], options.get("case_insensitive", False))


def _terms(body: Mapping[str, Any]) -> Matcher:
    named = [(name, value) for name, value in body.items() if name not in ("boost", "_name")]
    path, values = named[0]
    if not isinstance(values, list):
        raise _parsing(f"[terms] query does not support [{path}]")
    return _any_term(path, values)


def _any_term(path: str, values: list[Any], fold: bool = False) -> Matcher:
    def run(document: Document) -> bool:
        held = terms_of(document, path)
        if fold:
            return not {text.lower() for text in held}.isdisjoint(fields.as_term(value).lower() for value in values)
        return not held.isdisjoint(fields.as_term(value) for value in values)

    return run


def terms_of(document: Document, path: str) -> set[str]:
    """The terms the index holds of a field."""
    kind, values = document.field(path)
    if kind == fields.TEXT:
        return {word for value in values for word in fields.words(value)}
    return {fields.as_term(value) for value in values}


def _match(body: Mapping[str, Any]) -> Matcher:
    path, value, options = _one_field("match", body, "query")
    text = fields.as_term(value)
    every = str(options.get("operator", "or")).lower() == "and"

    def run(document: Document) -> bool:
        held = terms_of(document, path)
        if document.field(path).kind != fields.TEXT:
            return text in held
        asked = set(fields.words(text))
        return bool(asked) and (asked <= held if every else not asked.isdisjoint(held))

    return run


def _match_phrase(body: Mapping[str, Any]) -> Matcher:
    path, value, _ = _one_field("match_phrase", body, "query")
    text = fields.as_term(value)
    asked = fields.words(text)

    def run(document: Document) -> bool:
        kind, values = document.field(path)
        if kind != fields.TEXT:
            return text in map(fields.as_term, values)
        return bool(asked) and any(_holds_run(fields.words(value), asked) for value in values)

    return run


def _holds_run(held: list[str], asked: list[str]) -> bool:
    return any(held[start : start + len(asked)] == asked for start in range(len(held) - len(asked) + 1))


def _prefix(body: Mapping[str, Any]) -> Matcher:
    path, value, _ = _one_field("prefix", body, "value")
    return lambda document: any(term.startswith(value) for term in terms_of(document, path))


def _range(body: Mapping[str, Any]) -> Matcher:
    path, bounds, _ = _one_field("range", body, "")
    checks = [(name, bound) for name, bound in bounds.items() if name in _BOUNDS and bound is not None]
    dates = path.endswith("_time")
    limits = [(_BOUNDS[name], _millis(bound) if dates else bound) for name, bound in checks]

    def run(document: Document) -> bool:
        kind, values = document.field(path)
        if kind == fields.FLAT:
            return False
        return any(all(holds(_comparable(value, limit), limit) for holds, limit in limits) for value in values)

    return run


def _comparable(value: Any, limit: Any) -> Any:
    return str(value) if isinstance(limit, str) else value


_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gte": lambda value, limit: value >= limit,
    "from": lambda value, limit: value >= limit,
    "gt": lambda value, limit: value > limit,
    "lte": lambda value, limit: value <= limit,
    "to": lambda value, limit: value <= limit,
    "lt": lambda value, limit: value < limit,
}


def _millis(bound: Any) -> float:
    """A date of a range: milliseconds, an ISO date, or `now` with one step (``now-5m``)."""
    text = str(bound)
    now = _NOW.fullmatch(text)
    if now:
        step = int(now[2] or 0) * _SECONDS[now[3] or "s"] * 1000
        return time.time() * 1000 + (-step if now[1] == "-" else step)
    try:
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UnreadableDate(text) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000


def _one_field(name: str, body: Mapping[str, Any], value_key: str) -> tuple[str, Any, Mapping[str, Any]]:
    """The field, its value, and the options beside it (``{"f": "v"}`` or ``{"f": {"value": "v", …}}``)."""
    if len(body) != 1:
        first, second = [*body, "", ""][:2]
        raise _parsing(f"[{name}] query doesn't support multiple fields, found [{first}] and [{second}]")
    ((path, given),) = body.items()
    if value_key and isinstance(given, Mapping):
        return path, given.get(value_key), given
    return path, given, {}


_QUERIES: Mapping[str, Callable[[Any], Matcher]] = {
    "match_all": lambda body: lambda document: True,
    "match_none": lambda body: lambda document: False,
    "constant_score": lambda body: matcher(body.get("filter")),
    "bool": _bool,
    "ids": _ids,
    "exists": _exists,
    "term": _term,
    "terms": _terms,
    "match": _match,
    "match_phrase": _match_phrase,
    "prefix": _prefix,
    "range": _range,
}

"""The part of the query DSL that the gateway and its tests send. Any other query is a 501, so no test relies on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.simulator.errors import RestFailure
from gateway.simulator.fields import TEXT, Document, as_term, words

Matcher = Callable[[Document], bool]


def matcher(query: Mapping[str, Any]) -> Matcher:
    """Turn a query into a predicate.

    Raises:
        RestFailure: 501 for what is not simulated.
    """
    (name, body), *more = query.items()
    if more or name not in _QUERIES:
        raise not_simulated(f"[{name}] query")
    return _QUERIES[name](body)


def not_simulated(what: str) -> RestFailure:
    """Return the error for a feature of a real cluster that is not simulated."""
    return RestFailure(501, "not_simulated", f"the simulator has no {what}")


def _bool(body: Mapping[str, Any]) -> Matcher:
    if body.keys() != {"should"}:
        raise not_simulated(f"[bool] query with {sorted(body)}")
    clauses = [matcher(query) for query in body["should"]]
    return lambda document: any(clause(document) for clause in clauses)


def _ids(body: Mapping[str, Any]) -> Matcher:
    wanted = set(body["values"])
    return lambda document: document.id in wanted


def _exists(body: Mapping[str, Any]) -> Matcher:
    return lambda document: bool(document.field(body["field"]).values)


def _term(body: Mapping[str, Any]) -> Matcher:
    ((path, value),) = body.items()
    return lambda document: as_term(value) in document.field(path).terms


def _match(body: Mapping[str, Any]) -> Matcher:
    ((path, text),) = body.items()

    def run(document: Document) -> bool:
        field = document.field(path)
        return not field.terms.isdisjoint(words(text) if field.kind == TEXT else [text])

    return run


def _match_phrase(body: Mapping[str, Any]) -> Matcher:
    ((path, text),) = body.items()
    wanted = words(text)

    def run(document: Document) -> bool:
        field = document.field(path)
        if field.kind != TEXT:
            return text in field.terms
        return any(_contains(words(value), wanted) for value in field.values)

    return run


def _contains(terms: list[str], wanted: list[str]) -> bool:
    return any(terms[start : start + len(wanted)] == wanted for start in range(len(terms) - len(wanted) + 1))


_QUERIES: Mapping[str, Callable[[Any], Matcher]] = {
    "match_all": lambda body: lambda document: True,
    "bool": _bool,
    "ids": _ids,
    "exists": _exists,
    "term": _term,
    "match": _match,
    "match_phrase": _match_phrase,
}

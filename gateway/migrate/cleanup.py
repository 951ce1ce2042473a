"""Find and remove leftovers: what unfinished registrations and quick executes left on the cluster.

A leftover is a tagged model or connector that no agent and no model uses, a tagged model group without models, a tagged
agent whose model does not exist any more, or the agent of a quick execute, if it was not written for a while: newer
documents may belong to a registration that is still running. A document without the gateway's tag is never changed.
Everything is read again before each removal, so that what came into use meanwhile stays.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.agents.documents import needed
from gateway.agents.lookup import document_path
from gateway.migrate.connection import Cluster, ClusterError, ClusterUnreachable, answer_of
from gateway.migrate.search import search_all
from gateway.migrate.steps import Kind, mark_of
from gateway.migrate.writer import explain_if_unused, named_users
from gateway.register.documents import REGISTRATION_PARAMETER
from gateway.register.quick import QUICK_PARAMETER

OLD = 600.0
"""Seconds without a write after which a document counts as a leftover."""

_ORDER: tuple[Kind, ...] = ("agents", "models", "model_groups", "connectors")
_TRIES, _PAUSE = 20, 0.5
_TRY_AGAIN = frozenset({("models", 400), ("model_groups", 409)})
"""A model can't be deleted while it is being undeployed, nor its group while a search still finds the model."""


class Leftover(msgspec.Struct, frozen=True):
    """One leftover. age: seconds since it was last written.

    outcome: of its removal: ``removed``, ``kept`` (it is in use again, does not exist any more, or the cluster takes
    models of other connectors for its users) or ``failed``. error: why it could not be removed.
    """

    kind: Kind
    id: str
    name: str
    tag: str
    age: float
    reason: str
    outcome: str = ""
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON data."""
        entry = {"kind": self.kind, "id": self.id, "name": self.name, "tag": self.tag, "age_seconds": round(self.age)}
        removal = {"outcome": self.outcome, "error": self.error}
        return {**entry, "reason": self.reason, **{name: text for name, text in removal.items() if text}}


def leftovers(cluster: Cluster, older_than: float = OLD) -> list[Leftover]:
    """Find all leftovers: agents first, then models, model groups and connectors.

    Raises:
        ClusterRefused: a kind of document can't be searched, so it is unknown what is in use.
        ClusterUnreachable: the cluster did not answer.
    """
    documents = {kind: dict(search_all(cluster, kind)) for kind in _ORDER}
    found = [one for one in _unused(cluster, documents) if one.age >= older_than]
    found += [one for one in _empty_groups(documents, found) if one.age >= older_than]
    return sorted(found, key=lambda one: (_ORDER.index(one.kind), one.name, one.id))


def remove(
    cluster: Cluster,
    found: list[Leftover],
    older_than: float = OLD,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Leftover]:
    """Remove leftovers one by one and yield each with its outcome.

    Raises:
        ClusterRefused, ClusterUnreachable: as `leftovers`, which is repeated before each removal.
    """
    for one in found:
        still = {(other.kind, other.id) for other in leftovers(cluster, older_than)}
        if (one.kind, one.id) not in still or not _same(cluster, one):
            yield replace(one, outcome="kept")
            continue
        yield _remove(cluster, one, sleep)


def _unused(cluster: Cluster, documents: Mapping[Kind, Mapping[str, Any]]) -> Iterator[Leftover]:
    removable = set()
    for id_, agent in documents["agents"].items():
        reason = _abandoned(cluster, agent, documents["models"])
        if reason and _tag("agents", agent):
            removable.add(id_)
            yield _leftover("agents", id_, agent, reason)
    # Only agents that stay count as users. An id counts anywhere in them: in an LLM, a tool, a list of connectors.
    staying = (agent for id_, agent in documents["agents"].items() if id_ not in removable)
    used = " ".join(map(json.dumps, [*staying, *(m.get("connector_id") for m in documents["models"].values())]))
    for kind in ("models", "connectors"):
        for id_, source in documents[kind].items():
            if _tag(kind, source) and id_ not in used:
                reason = "no agent uses it" if kind == "models" else "no agent and no model uses it"
                yield _leftover(kind, id_, source, reason)


def _empty_groups(documents: Mapping[Kind, Mapping[str, Any]], found: Iterable[Leftover]) -> Iterator[Leftover]:
    """Yield the tagged model groups that have no models but those in `found`."""
    gone = {one.id for one in found}
    groups = {id_: str(model.get("model_group_id")) for id_, model in documents["models"].items()}
    used = {group for id_, group in groups.items() if id_ not in gone}
    for id_, source in documents["model_groups"].items():
        if _tag("model_groups", source) and id_ not in used:
            reason = "its models are leftovers" if id_ in groups.values() else "no model is in it"
            yield _leftover("model_groups", id_, source, reason)


def _leftover(kind: Kind, id_: str, source: Mapping[str, Any], reason: str) -> Leftover:
    return Leftover(
        kind, id_, str(source.get("name") or ""), _tag(kind, source), time.time() - _written(source), reason
    )


def _abandoned(cluster: Cluster, agent: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """Return why a tagged agent is a leftover, or "" if it is not."""
    parameters = agent.get("parameters")
    if not isinstance(parameters, Mapping) or REGISTRATION_PARAMETER not in parameters:
        return ""
    if QUICK_PARAMETER in parameters:
        return "it was made for a quick execute"
    # A model that the search does not show may be hidden or new: ask the cluster for it.
    gone = [id_ for id_ in needed(agent) if id_ not in models and _missing(cluster, "models", id_)]
    return f"its model {gone[0]} does not exist any more" if gone else ""


def _tag(kind: Kind, source: Mapping[str, Any]) -> str:
    """Return the gateway's tag on a document, or ""."""
    if kind == "agents":
        parameters = source.get("parameters")
        tag = parameters.get(REGISTRATION_PARAMETER) if isinstance(parameters, Mapping) else None
        return tag if isinstance(tag, str) else ""
    return mark_of(kind, source)


def _written(source: Mapping[str, Any]) -> float:
    """Return when a document was last written, in seconds since the epoch; if unknown, it counts as new."""
    stamps = [source.get(name) for name in ("created_time", "last_updated_time")]
    known = [stamp / 1000 for stamp in stamps if isinstance(stamp, int | float)]
    return max(known, default=float("inf"))


def _missing(cluster: Cluster, kind: Kind, id_: str) -> bool:
    return cluster.call("GET", document_path(kind, id_))[0] == 404


def _same(cluster: Cluster, one: Leftover) -> bool:
    """Return True if the document still exists, with its tag."""
    status, document = cluster.call("GET", document_path(one.kind, one.id))
    return status == 200 and _tag(one.kind, document) == one.tag


def _remove(cluster: Cluster, one: Leftover, sleep: Callable[[float], None]) -> Leftover:
    """Remove a leftover and return it with its outcome."""
    try:
        status, answer = _delete(cluster, one, sleep)
        if status in (200, 404):
            return replace(one, outcome="removed")
        why = explain_if_unused(cluster, one.id, named_users(answer)) if one.kind == "connectors" else ""
        if why:
            return replace(one, outcome="kept", error=why)
        error = answer_of(status, answer)
    except ClusterError as failure:
        if _is_gone(cluster, one):
            return replace(one, outcome="removed")
        error = str(failure)
    return replace(one, outcome="failed", error=error)


def _delete(cluster: Cluster, one: Leftover, sleep: Callable[[float], None]) -> tuple[int, dict[str, Any]]:
    """Delete a leftover, if need be several times. Return the last answer.

    Raises:
        ClusterUnreachable: the cluster did not answer.
    """
    for _ in range(_TRIES):
        if one.kind == "models":
            cluster.call("POST", document_path("models", one.id, "/_undeploy"))
        status, answer = cluster.call("DELETE", document_path(one.kind, one.id))
        if (one.kind, status) not in _TRY_AGAIN:
            break
        sleep(_PAUSE)
    return status, answer


def _is_gone(cluster: Cluster, one: Leftover) -> bool:
    try:
        return _missing(cluster, one.kind, one.id)
    except ClusterUnreachable:
        return False

"""What registrations and quick executes of the gateway's left behind: found by their tag, and removed.

Left behind is a tagged model or connector that no agent and no model names any more, a tagged agent whose model is
gone, and the agent of a quick execute, once nothing was written to it for a while: what is younger may belong to a
registration under way. A document without the gateway's tag is never touched. Before each removal everything is read
again, so that what came into use meanwhile stays.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.agents.documents import needed
from gateway.agents.lookup import document_path
from gateway.migrate.connection import Cluster, ClusterUnreachable, answer_of
from gateway.migrate.search import Kind, search_all
from gateway.register.documents import REGISTRATION_PARAMETER, TAG
from gateway.register.quick import QUICK_PARAMETER

OLD = 600.0
"""Seconds without a write after which a document is no longer of a registration under way."""

_TAGGED = re.compile(rf"(?:^|\W){TAG} ([0-9a-f]{{32}})$")
_ORDER: tuple[Kind, ...] = ("agents", "models", "connectors")
_TRIES, _PAUSE = 20, 0.5
"""A model that is being undeployed can't be deleted yet."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """One document that is left behind. age: seconds since it was last written. outcome: after a removal was tried,
    ``removed``, ``kept`` (it is in use again, or gone) or ``failed``; error: why it failed."""

    kind: Kind
    id: str
    name: str
    tag: str
    age: float
    reason: str
    outcome: str = ""
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON data."""
        told = {"kind": self.kind, "id": self.id, "name": self.name, "tag": self.tag, "age_seconds": round(self.age)}
        return {**told, "reason": self.reason, **({"outcome": self.outcome} if self.outcome else {}), **self._failure()}

    def _failure(self) -> dict[str, str]:
        return {"error": self.error} if self.error else {}


def leftovers(cluster: Cluster, older_than: float = OLD, now: Callable[[], float] = time.time) -> list[Leftover]:
    """All that is left behind, agents first, then models, then connectors.

    Raises:
        ClusterRefused: agents, models or connectors can't be searched, so what is in use is not known.
        ClusterUnreachable: no answer came.
    """
    documents = {kind: dict(search_all(cluster, kind)) for kind in _ORDER}
    found = [one for one in _unused(cluster, documents, now()) if one.age >= older_than]
    return sorted(found, key=lambda one: (_ORDER.index(one.kind), one.name, one.id))


def remove(
    cluster: Cluster,
    found: list[Leftover],
    older_than: float = OLD,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Leftover]:
    """Removes them one by one; each with its outcome.

    Raises:
        ClusterRefused, ClusterUnreachable: as `leftovers`, from reading again.
    """
    for one in found:
        still = {(other.kind, other.id) for other in leftovers(cluster, older_than, now)}
        if (one.kind, one.id) not in still or not _same(cluster, one):
            yield replace(one, outcome="kept")
            continue
        error = _removed(cluster, one, sleep)
        yield replace(one, outcome="failed" if error else "removed", error=error)


def _unused(cluster: Cluster, documents: Mapping[Kind, Mapping[str, Any]], now: float) -> Iterator[Leftover]:
    def left(kind: Kind, id_: str, tag: str, reason: str) -> Leftover:
        source = documents[kind][id_]
        return Leftover(kind, id_, str(source.get("name") or ""), tag, now - _written(source), reason)

    going = set()
    for id_, agent in documents["agents"].items():
        tag, reason = _tag("agents", agent), _abandoned(cluster, agent, documents["models"])
        if tag and reason:
            going.add(id_)
            yield left("agents", id_, tag, reason)
    # Only what stays keeps others in use. An id counts wherever it stands: in an LLM, a tool, a list of connectors.
    staying = (agent for id_, agent in documents["agents"].items() if id_ not in going)
    used = " ".join(map(json.dumps, [*staying, *(m.get("connector_id") for m in documents["models"].values())]))
    for kind in ("models", "connectors"):
        for id_, source in documents[kind].items():
            if (tag := _tag(kind, source)) and id_ not in used:
                yield left(kind, id_, tag, "no agent uses it" if kind == "models" else "no agent and no model uses it")


def _abandoned(cluster: Cluster, agent: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """Why a tagged agent is left behind; "" for one that isn't."""
    parameters = agent.get("parameters")
    if not isinstance(parameters, Mapping) or REGISTRATION_PARAMETER not in parameters:
        return ""
    if QUICK_PARAMETER in parameters:
        return "it was made for a quick execute"
    # A model that the search doesn't show may be hidden, or just made: only the cluster's word counts.
    gone = [id_ for id_ in needed(agent) if id_ not in models and _missing(cluster, "models", id_)]
    return f"its model {gone[0]} is gone" if gone else ""


def _tag(kind: Kind, source: Mapping[str, Any]) -> str:
    """The gateway's tag on a document, "" where there is none."""
    if kind == "agents":
        parameters = source.get("parameters")
        tag = parameters.get(REGISTRATION_PARAMETER) if isinstance(parameters, Mapping) else None
        return tag if isinstance(tag, str) else ""
    found = _TAGGED.search(str(source.get("description") or ""))
    return found[1] if found else ""


def _written(source: Mapping[str, Any]) -> float:
    """When a document was last written, in seconds since the epoch; where it doesn't tell, it counts as just now."""
    stamps = [source.get(name) for name in ("created_time", "last_updated_time")]
    known = [stamp / 1000 for stamp in stamps if isinstance(stamp, int | float)]
    return max(known, default=float("inf"))


def _missing(cluster: Cluster, kind: Kind, id_: str) -> bool:
    return cluster.call("GET", document_path(kind, id_))[0] == 404


def _same(cluster: Cluster, one: Leftover) -> bool:
    """Whether it is still there, with its tag."""
    status, document = cluster.call("GET", document_path(one.kind, one.id))
    return status == 200 and _tag(one.kind, document) == one.tag


def _removed(cluster: Cluster, one: Leftover, sleep: Callable[[float], None]) -> str:
    """Removes it; why that failed, "" when it is gone."""
    said = ""
    try:
        for _ in range(_TRIES):
            if one.kind == "models":
                cluster.call("POST", document_path("models", one.id, "/_undeploy"))
            status, answer = cluster.call("DELETE", document_path(one.kind, one.id))
            if status in (200, 404):
                return ""
            said = answer_of(status, answer)
            if one.kind != "models" or status != 400:
                return said
            sleep(_PAUSE)
    except ClusterUnreachable as error:
        return "" if _is_gone(cluster, one) else str(error)
    return said


def _is_gone(cluster: Cluster, one: Leftover) -> bool:
    try:
        return _missing(cluster, one.kind, one.id)
    except ClusterUnreachable:
        return False

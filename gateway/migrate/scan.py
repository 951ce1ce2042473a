"""Reads agents with their models and connectors, each document once, as the gateway would read them.

No agent is dropped: one that can't be read is reported with the reason and what to do. Agents are read by `GET`, as the
gateway does, and not from the search's hits: if the account may not `GET` an agent, the gateway may not either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from gateway.agents.documents import (
    SETTINGS_PATH,
    Batch,
    DocumentKind,
    Found,
    may_have_unified_api,
    needed,
    needed_connector,
    read_agents,
    read_profile,
    run,
)
from gateway.agents.errors import lookup_error
from gateway.agents.lookup import document_path, read_unified_api
from gateway.agents.rules import Rule
from gateway.errors import UnresolvedAgent
from gateway.migrate.assess import TYPES, Scan, Scanned, Unreadable
from gateway.migrate.connection import Cluster, ClusterRefused
from gateway.migrate.reading import agents_of_connectors, beginning_with
from gateway.migrate.search import search_all
from gateway.mlcommons.generations import AgentType

Progress = Callable[[str, int, int], None]
"""Called with what was read: ``("agents", done, total)``."""

THREADS = 8


def scan(
    cluster: Cluster,
    version: tuple[int, ...],
    given: Sequence[str] = (),
    rules: Iterable[Rule] = (),
    progress: Progress = lambda kind, done, total: None,
) -> Scan:
    """Read the agents that are given, or all of them if none is.

    given: ids, names or beginnings of ids that only one agent has, and connectors and models for all their agents.

    Raises:
        ClusterError: no agent uses a connector or model that is given.
        ClusterRefused: the agents can't be searched.
        ClusterUnreachable: the cluster did not respond.
    """
    given = agents_of_connectors(cluster, given)
    ids = tuple(given) or tuple(id_ for id_, _ in search_all(cluster, "agents"))
    fetch = _Fetch(cluster, progress)
    run(read_agents(ids, follow=True), fetch)
    missing = [id_ for id_ in given if fetch.read["agents"][id_].status == 404]
    if not given:  # leave out agents that were deleted since the search
        ids = tuple(id_ for id_ in ids if fetch.read["agents"][id_].status != 404)
    found, unknown = _find_by_name(cluster, missing) if missing else ({}, {})
    if found:
        run(read_agents(found.values(), follow=True), fetch)
    agents, models, connectors = fetch.read["agents"], fetch.read["models"], fetch.read["connectors"]
    unified_api, notes = _unified_api(cluster, version)
    others = _bodies(agents)
    users, more = _users(cluster, models)
    if not given:
        notes = (*notes, "no search returns hidden agents; name them by id to see them")

    def scanned(id_: str) -> Scanned:
        if id_ in unknown:
            return Scanned(id_, "", "", None, unknown[id_])
        return _scanned(id_, agents[id_], models, connectors, version, tuple(rules), unified_api, others)

    everyone = sorted(
        map(scanned, dict.fromkeys(found.get(id_, id_) for id_ in ids)), key=lambda agent: (agent.name, agent.id)
    )
    shown = {agent.id for agent in everyone}
    documents = {id_: body for id_, body in _bodies(agents).items() if id_ in shown}
    return Scan(
        version, unified_api, tuple(everyone), _bodies(models), _bodies(connectors), users, (*notes, *more), documents
    )


class _Read(msgspec.Struct, frozen=True):
    """The response to a `GET`. body: None if it is not a document."""

    status: int
    answer: Mapping[str, Any]

    @property
    def body(self) -> Mapping[str, Any] | None:
        return self.answer if self.status == 200 and self.answer else None


_Documents = Mapping[str, _Read]


class _Fetch:
    """Reads documents in several threads. read: the answers by kind and id, the failed ones among them."""

    def __init__(self, cluster: Cluster, progress: Progress) -> None:
        self._cluster = cluster
        self._progress = progress
        self.read: dict[str, dict[str, _Read]] = {}

    def __call__(self, batch: Batch) -> Found:
        """Return the documents of the batch that could be read."""
        answers: dict[str, _Read] = {}
        with ThreadPoolExecutor(THREADS, f"read-{batch.kind}") as pool:
            try:
                for id_, answer in zip(batch.ids, pool.map(partial(self._get, batch.kind), batch.ids), strict=True):
                    answers[id_] = answer
                    self._progress(batch.kind, len(answers), len(batch.ids))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        self.read.setdefault(batch.kind, {}).update(answers)
        return _bodies(answers)

    def _get(self, kind: DocumentKind, id_: str) -> _Read:
        return _Read(*self._cluster.call("GET", document_path(kind, id_)))


def _find_by_name(cluster: Cluster, names: Sequence[str]) -> tuple[dict[str, str], dict[str, Unreadable]]:
    """Return name → id of the agents whose names are unique, and why each of the other names stands for no agent."""
    try:
        everyone = [(id_, source.get("name")) for id_, source in search_all(cluster, "agents", source=("name",))]
    except ClusterRefused as refused:
        reason = f"there is no agent with this id, and names can't be searched: {refused}"
        return {}, dict.fromkeys(names, Unreadable("AGENT_UNREADABLE", reason, "check the id"))
    found: dict[str, str] = {}
    unknown: dict[str, Unreadable] = {}
    for name in names:
        ids = sorted(id_ for id_, other in everyone if other == name)
        what = "have this name"
        if not ids:
            ids, what = beginning_with(name, (id_ for id_, _ in everyone)), "have an id that begins so"
        if len(ids) == 1:
            found[name] = ids[0]
        elif ids:
            reason = f"{len(ids)} agents {what}: {', '.join(ids)}"
            unknown[name] = Unreadable("AGENT_UNREADABLE", reason, "give the id of one of them")
        else:
            reason = "there is no agent with this id or name"
            unknown[name] = Unreadable("AGENT_UNREADABLE", reason, "run this without names to list all agents")
    return found, unknown


def _scanned(
    id_: str,
    agent: _Read,
    models: _Documents,
    connectors: _Documents,
    version: tuple[int, ...],
    rules: tuple[Rule, ...],
    unified_api: bool | None,
    others: Mapping[str, Mapping[str, Any]],
) -> Scanned:
    document = agent.body or {}
    name, type_ = str(document.get("name") or ""), str(document.get("type") or "").lower()
    if type_ and AgentType.of(type_) not in TYPES:
        reason = f"the gateway does not know how agents of type {type_} take their input"
        return Scanned(id_, name, type_, None, Unreadable("AGENT_TYPE_UNKNOWN", reason, "send it no `input`"))
    try:
        _check(id_, agent, models, connectors)
        bodies = _bodies(models), _bodies(connectors)
        profile = read_profile(id_, document, *bodies, version, rules, unified_api, others)
    except UnresolvedAgent as error:
        code = "AGENT_UNREADABLE" if agent.body is None else "AGENT_UNRESOLVED"
        reason = "; ".join(f"{problem.place}: {problem.reason}" for problem in error.problems) or error.reason
        return Scanned(id_, name, type_, None, Unreadable(code, reason, error.hint or _RESTORE))
    return Scanned(id_, name, type_, profile)


_RESTORE = "register what is missing again, or remove the agent"


def _check(id_: str, agent: _Read, models: _Documents, connectors: _Documents) -> None:
    """Check that every document could be read or does not exist, which `read_profile` reports.

    Raises:
        FailedLookup: the cluster refused one.
    """
    if agent.body is None:
        raise lookup_error("agents", id_, agent.status, agent.answer)
    for model_id in needed(agent.body):
        model = models[model_id]
        if model.body is None:
            _refused("models", model_id, model)
        elif connector_id := needed_connector(model.body):
            _refused("connectors", connector_id, connectors[connector_id])


def _refused(kind: DocumentKind, id_: str, read: _Read) -> None:
    if read.body is None and read.status != 404:
        raise lookup_error(kind, id_, read.status, read.answer)


def _bodies(documents: _Documents) -> dict[str, Mapping[str, Any]]:
    return {id_: read.body for id_, read in documents.items() if read.body is not None}


def _unified_api(cluster: Cluster, version: tuple[int, ...]) -> tuple[bool | None, tuple[str, ...]]:
    """Read the setting as `gateway.agents.resolver` does; return it with notes for the reader."""
    if not may_have_unified_api(version):
        return False, ()
    status, settings = cluster.call("GET", SETTINGS_PATH)
    if status == 200:
        return read_unified_api(settings), ()
    return None, (f"the cluster's settings can't be read ({status}): the unified agent API is assumed to be on",)


def _users(cluster: Cluster, models: _Documents) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return connector id → the models that name it, among all models of the cluster if those can be searched."""
    notes: tuple[str, ...] = ()
    named = {id_: needed_connector(body) for id_, body in _bodies(models).items()}
    if any(named.values()):
        try:
            everyone = search_all(cluster, "models", source=("connector_id",))
            named |= {id_: needed_connector(source) for id_, source in everyone}
        except ClusterRefused as refused:
            notes = (f"only these agents' models are counted as sharing a connector: {refused}",)
    users: dict[str, list[str]] = {}
    for model_id, connector_id in named.items():
        if connector_id:
            users.setdefault(connector_id, []).append(model_id)
    return {connector_id: tuple(sorted(ids)) for connector_id, ids in users.items()}, notes

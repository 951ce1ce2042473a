"""Reads agents with their models and connectors, each document once, as the gateway would read them.

An upgrade needs all that shares a connector, too. A scan drops no agent: one that can't be read is reported with the
reason and what to do. Agents are read by `GET`, as the gateway does, and not from the search's hits: if the account may
not `GET` an agent, the gateway may not either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.agents.documents import (
    SETTINGS_PATH,
    Batch,
    Document,
    DocumentKind,
    Found,
    Rule,
    may_have_unified_api,
    needed,
    needed_connector,
    read_agents,
    read_profile,
    run,
)
from gateway.agents.lookup import document_path, lookup_error, read_unified_api
from gateway.errors import UnresolvedAgent
from gateway.migrate.assess import TYPES, Scan, Scanned, Unreadable
from gateway.migrate.connection import Cluster, ClusterError, ClusterRefused, answer_of
from gateway.migrate.search import search_all
from gateway.migrate.steps import Kind, part
from gateway.migrate.upgrade import Documents, users
from gateway.mlcommons.generations import AgentType

_THREADS = 8


def agent_ids(
    cluster: Cluster,
    named: Sequence[str],
    has_no_name: Callable[[Document], bool] = lambda agent: False,
    listing: str = "mlc-gateway agents",
) -> list[str]:
    """Return the ids of the agents `named` by id, name or the beginning of an id, or of all agents.

    ``connectors/ID`` and ``models/ID``, as an upgrade names connectors, are all agents that use these. Hidden agents
    are found by their whole id only.

    has_no_name: True for an agent that a name does not mean. listing: the command that lists the agents.

    Raises:
        ClusterError: no agent has that id or name, or several have that name.
    """
    named = agents_of_connectors(cluster, named)
    if named and all(_exists(cluster, id_) for id_ in named):
        return list(named)
    by_name: dict[str, list[str]] = {}
    ids = []
    for id_, source in search_all(cluster, "agents"):
        ids.append(id_)
        if not has_no_name(source):
            by_name.setdefault(str(source.get("name", "")), []).append(id_)
    return [_one(name, ids, by_name, cluster, listing) for name in named] if named else ids


def existing_agent(cluster: Cluster, name: str) -> str:
    """Return the id of the agent that is called so, or whose id is `name` or begins so.

    An id that no agent has stays as it is, for what a deleted agent left behind; so does any, if the account may not
    search agents.

    Raises:
        ClusterError: several agents are called so, or have such an id.
    """
    try:
        return agent_ids(cluster, [name])[0]
    except (NoSuchAgent, ClusterRefused):
        return name


class NoSuchAgent(ClusterError):
    """No agent has this id or name."""


def agents_of_connectors(cluster: Cluster, named: Sequence[str]) -> list[str]:
    """Return `named` with the ids of the agents that use it in place of each ``connectors/ID`` and ``models/ID``.

    The ID may be the beginning of one. ``agents/ID`` becomes the ID.

    Raises:
        ClusterError: there is no such connector or model, or no agent uses it; or this can't be searched.
    """
    ids: list[str] = []
    for name in named:
        kind, slash, id_ = name.partition("/")
        if not slash or kind not in ("agents", "connectors", "models") or not id_:
            ids.append(name)
        elif kind == "agents":
            ids.append(id_)
        else:
            ids += _users_of(cluster, kind, id_)
    return list(dict.fromkeys(ids))


def _users_of(cluster: Cluster, kind: str, id_: str) -> tuple[str, ...]:
    """Return the ids of the agents that use a connector (``connectors``) or a model (``models``)."""
    models = dict(search_all(cluster, "models", source=("connector_id",)))
    known = (
        set(models)
        if kind == "models"
        else {str(one["connector_id"]) for one in models.values() if one.get("connector_id")}
    )
    found = [id_] if id_ in known else beginning_with(id_, known)
    if len(found) > 1:
        raise ClusterError(f"{len(found)} ids of {kind} begin with {id_}: give more of one: {', '.join(found)}")
    if not found:
        raise ClusterError(f"No model uses a connector {id_}." if kind == "connectors" else f"There is no model {id_}.")
    using = found if kind == "models" else [one for one, doc in models.items() if doc.get("connector_id") == found[0]]
    documents = Documents((), dict(search_all(cluster, "agents")), {}, {})
    if not (agents := users(documents, using)):
        raise ClusterError(f"No agent uses {kind}/{found[0]}.")
    return agents


def _exists(cluster: Cluster, id_: str) -> bool:
    return cluster.call("GET", document_path("agents", id_))[0] == 200


def _one(name: str, ids: list[str], by_name: dict[str, list[str]], cluster: Cluster, listing: str) -> str:
    found = [name] if name in ids or _exists(cluster, name) else by_name.get(name, [])
    if not found and len(found := beginning_with(name, ids)) > 1:
        raise ClusterError(f"{len(found)} agents' ids begin with {name}: give more of one: {', '.join(found)}")
    if len(found) > 1:
        raise ClusterError(f"{len(found)} agents are called {name}: name one by its id: {', '.join(found)}")
    if not found:
        raise NoSuchAgent(f"There is no agent {name}: `{listing}` lists those there are.")
    return found[0]


def beginning_with(start: str, ids: Iterable[str]) -> list[str]:
    """Return the ids that begin with `start`, in their order; none for a `start` that is too short to be meant so."""
    return sorted(id_ for id_ in ids if id_.startswith(start)) if len(start) >= _SHORTEST else []


_SHORTEST = 4
"""Characters of the beginning of an id that may stand for it."""


def read_documents(
    cluster: Cluster, version: tuple[int, ...], wanted: Iterable[str], rules: Iterable[Rule] = ()
) -> Documents:
    """Read the agents `wanted`, their models and connectors, every model that shares one of these connectors, and every
    agent that uses one of these models.

    A missing document is left out; `Documents.profile` reports a missing model or connector.

    Raises:
        ClusterError: the cluster can't be reached, or refuses to show a document.
    """
    fetch = _Fetch(cluster)
    asked = tuple(wanted)
    models = run(read_agents(asked), fetch).models
    shared = frozenset(filter(None, map(needed_connector, models.values())))
    found = search_all(cluster, "models") if shared else ()
    sharing = [*models, *(id_ for id_, doc in found if doc.get("connector_id") in shared)]
    sources = Documents(version, dict(search_all(cluster, "agents")), {}, {})
    # All that the other agents use is read too: without it their calls can't be rendered.
    read = run(read_agents((*asked, *users(sources, sharing)), sharing), fetch)
    return Documents(version, read.agents, read.models, read.connectors, tuple(rules), unified_api(cluster, version))


def with_run_agents(cluster: Cluster, documents: Documents, wanted: Iterable[str]) -> Documents:
    """Return `documents` with the agents that the flows `wanted` run, as the gateway reads them.

    Raises:
        ClusterError: as `read_documents`.
    """
    read = run(read_agents(wanted, follow=True), _Fetch(cluster))
    models, connectors = {**documents.models, **read.models}, {**documents.connectors, **read.connectors}
    return replace(documents, models=models, connectors=connectors, others=read.others)


def unified_api(cluster: Cluster, version: tuple[int, ...]) -> bool | None:
    """Return whether the cluster's unified agent API is on; None if the cluster does not say."""
    return _unified_api(cluster, version)[0]


def _unified_api(cluster: Cluster, version: tuple[int, ...]) -> tuple[bool | None, int]:
    """Return the same, with the status of the answer that says it; 200 if no question is needed."""
    if not may_have_unified_api(version):
        return False, 200
    status, settings = cluster.call("GET", SETTINGS_PATH)
    return (read_unified_api(settings) if status == 200 else None), status


def read_part(cluster: Cluster, place: str) -> Any:
    """Read the current part at a step's `place`.

    Raises:
        Missing: the document does not exist.
        ClusterError: it can't be read.
    """
    kind, id_ = place.split("/")[:2]
    status, document = cluster.call("GET", document_path(kind, id_))
    if status != 200 or not document:
        failure = Missing if status == 404 else ClusterError
        raise failure(f"{kind}/{id_} can't be read ({answer_of(status, document)})")
    return part(place, document)


class Missing(ClusterError):
    """The cluster has no such document."""


def get_all(cluster: Cluster, kind: Kind, ids: Sequence[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Read documents in several threads. Yield id, status and answer of each, in the order of `ids`.

    Raises:
        ClusterUnreachable: the cluster did not answer.
    """
    with ThreadPoolExecutor(_THREADS, f"read-{kind}") as pool:
        try:
            answers = pool.map(lambda id_: cluster.call("GET", document_path(kind, id_)), ids)
            yield from ((id_, *answer) for id_, answer in zip(ids, answers, strict=True))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _Fetch:
    """Reads documents, each once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, str], dict[str, Any] | None] = {}

    def __call__(self, batch: Batch) -> Found:
        new = [id_ for id_ in batch.ids if (batch.kind, id_) not in self._known]
        for id_, status, document in get_all(self._cluster, batch.kind, new):
            is_left_out = status == 404 or (batch.optional and status == 403)
            if not (status == 200 and document) and not is_left_out:
                raise ClusterError(f"{batch.kind}/{id_} can't be read ({answer_of(status, document)})")
            self._known[batch.kind, id_] = document if status == 200 else None
        found = {id_: self._known[batch.kind, id_] for id_ in batch.ids}
        return {id_: document for id_, document in found.items() if document}


# A scan

Progress = Callable[[str, int, int], None]
"""Called with what was read: ``("agents", done, total)``."""


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
    fetch = _Scanner(cluster, progress)
    run(read_agents(ids, follow=True), fetch)
    missing = [id_ for id_ in given if fetch.read["agents"][id_].status == 404]
    if not given:  # leave out agents that were deleted since the search
        ids = tuple(id_ for id_ in ids if fetch.read["agents"][id_].status != 404)
    found, unknown = _find_by_name(cluster, missing) if missing else ({}, {})
    if found:
        run(read_agents(found.values(), follow=True), fetch)
    agents, models, connectors = fetch.read["agents"], fetch.read["models"], fetch.read["connectors"]
    unified, status = _unified_api(cluster, version)
    notes: tuple[str, ...] = ()
    if status != 200:
        notes = (f"the cluster's settings can't be read ({status}): the unified agent API is assumed to be on",)
    others = _bodies(agents)
    users, more = _users(cluster, models)
    if not given:
        notes = (*notes, "no search returns hidden agents; name them by id to see them")

    def scanned(id_: str) -> Scanned:
        if id_ in unknown:
            return Scanned(id_, "", "", None, unknown[id_])
        return _scanned(id_, agents[id_], models, connectors, version, tuple(rules), unified, others)

    everyone = sorted(
        map(scanned, dict.fromkeys(found.get(id_, id_) for id_ in ids)), key=lambda agent: (agent.name, agent.id)
    )
    shown = {agent.id for agent in everyone}
    documents = {id_: body for id_, body in _bodies(agents).items() if id_ in shown}
    return Scan(
        version, unified, tuple(everyone), _bodies(models), _bodies(connectors), users, (*notes, *more), documents
    )


class _Read(msgspec.Struct, frozen=True):
    """The response to a `GET`. body: None if it is not a document."""

    status: int
    answer: Mapping[str, Any]

    @property
    def body(self) -> Mapping[str, Any] | None:
        return self.answer if self.status == 200 and self.answer else None


_Documents = Mapping[str, _Read]


class _Scanner:
    """Reads documents in several threads. read: the answers by kind and id, the failed ones among them."""

    def __init__(self, cluster: Cluster, progress: Progress) -> None:
        self._cluster = cluster
        self._progress = progress
        self.read: dict[str, dict[str, _Read]] = {}

    def __call__(self, batch: Batch) -> Found:
        """Return the documents of the batch that could be read."""
        answers: dict[str, _Read] = {}
        for id_, status, answer in get_all(self._cluster, batch.kind, batch.ids):
            answers[id_] = _Read(status, answer)
            self._progress(batch.kind, len(answers), len(batch.ids))
        self.read.setdefault(batch.kind, {}).update(answers)
        return _bodies(answers)


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

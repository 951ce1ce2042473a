"""Reads from a cluster what an upgrade needs (agents, their connectors, all that shares these), and conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from gateway.agents.documents import (
    SETTINGS_PATH,
    Batch,
    Document,
    Found,
    may_have_unified_api,
    needed_connector,
    read_agents,
    run,
)
from gateway.agents.lookup import document_path, read_unified_api
from gateway.agents.rules import Rule
from gateway.memory.model import Message
from gateway.memory.structured import from_structured
from gateway.migrate.connection import Cluster, ClusterError, ClusterRefused, answer_of, refusal
from gateway.migrate.search import WINDOW, search_all
from gateway.migrate.steps import part
from gateway.migrate.upgrade import Documents, users
from gateway.mlcommons.memory_form import show_original

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
    if not may_have_unified_api(version):
        return False
    status, settings = cluster.call("GET", SETTINGS_PATH)
    return read_unified_api(settings) if status == 200 else None


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


class _Fetch:
    """Reads documents in several threads, each once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, str], dict[str, Any] | None] = {}

    def __call__(self, batch: Batch) -> Found:
        new = [id_ for id_ in batch.ids if (batch.kind, id_) not in self._known]
        with ThreadPoolExecutor(_THREADS) as pool:
            answers = list(pool.map(lambda id_: self._cluster.call("GET", document_path(batch.kind, id_)), new))
        for id_, (status, document) in zip(new, answers, strict=True):
            is_left_out = status == 404 or (batch.optional and status == 403)
            if not (status == 200 and document) and not is_left_out:
                raise ClusterError(f"{batch.kind}/{id_} can't be read ({answer_of(status, document)})")
            self._known[batch.kind, id_] = document if status == 200 else None
        found = {id_: self._known[batch.kind, id_] for id_ in batch.ids}
        return {id_: document for id_, document in found.items() if document}


_PAGE = 1000
_FAILED = "Agent execution failed: "
"""How the response of a failed run begins (3.x). On 2.x, it has none (docs/evidence/facts.md)."""


class Exchange(NamedTuple):
    """A question with its answer. created: seconds since the epoch, 0 if unknown. answer: "" if the run failed."""

    id: str
    question: str
    answer: str
    created: float


class StoredByAgent(NamedTuple):
    """A message in a memory container. id: of its working memory. created: seconds since the epoch; 0 if unknown."""

    id: str
    message: Message
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


def list_container_sessions(cluster: Cluster, container: str) -> list[str]:
    """Return the ids of the sessions in a memory container that the account may read, the last updated first.

    Raises:
        ClusterError: they can't be read.
    """
    hits = _search_container(cluster, container, "sessions", {"match_all": {}}, [{"last_updated_time": "desc"}])
    return [id for id, _ in hits]


def read_container_session(cluster: Cluster, container: str, session: str) -> list[StoredByAgent]:
    """Return the messages of a session in a memory container as agents of type ``conversational_v2`` keep them.

    Raises:
        ClusterError: it can't be read.
    """
    query = {"bool": {"filter": [
        {"term": {"namespace.session_id": session}}, {"term": {"metadata.type": "structured_message"}},
    ]}}  # fmt: skip
    found = []
    for id, source in _search_container(cluster, container, "working", query, [{"message_id": "asc"}]):
        try:
            message = from_structured(source["structured_data_blob"]["message"])
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ClusterError(f"The working memory {id} is no message of an agent: {error!r}") from error
        created = source.get("created_time")
        found.append(StoredByAgent(id, message, created / 1000 if isinstance(created, int | float) else 0.0))
    return found


def _search_container(
    cluster: Cluster, container: str, kind: str, query: dict[str, Any], sort: list[dict[str, str]]
) -> list[tuple[str, dict[str, Any]]]:
    path = document_path("memory_containers", container, f"/memories/{kind}/_search")
    status, body = cluster.call("POST", path, {"query": query, "sort": sort, "size": WINDOW})
    if status != 200:
        raise refusal(status, "read memories", "cluster:admin/opensearch/ml/memory_containers/memory/search", body)
    hits = body.get("hits", {}).get("hits", [])
    if len(hits) == WINDOW:
        raise ClusterError(f"The container {container} has more than {WINDOW:,} of these: name sessions by id.")
    return [(str(hit["_id"]), hit["_source"]) for hit in hits]


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

"""Reads what an upgrade needs: the agents asked for, their connectors, and all that shares them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gateway.agents.documents import needed, needed_connector, read_unified_api
from gateway.agents.lookup import document_path
from gateway.agents.resolver import SETTINGS_PATH
from gateway.agents.rules import Rule
from gateway.migrate.connection import Cluster, ClusterError, answer_of
from gateway.migrate.search import search_all
from gateway.migrate.steps import part
from gateway.migrate.upgrade import Documents, users

_THREADS = 8
_FIRST_UNIFIED = (3, 5)


def agent_ids(cluster: Cluster, named: Sequence[str]) -> list[str]:
    """The ids of the agents `named` by id or name, or of all agents; hidden ones are found by id alone.

    Raises:
        ClusterError: no agent has that id or name, or several have that name.
    """
    if named and all(_exists(cluster, id_) for id_ in named):
        return list(named)
    by_name: dict[str, list[str]] = {}
    ids = []
    for id_, source in search_all(cluster, "agents"):
        ids.append(id_)
        by_name.setdefault(str(source.get("name", "")), []).append(id_)
    return [_one(name, ids, by_name, cluster) for name in named] if named else ids


def _exists(cluster: Cluster, id_: str) -> bool:
    return cluster.call("GET", document_path("agents", id_))[0] == 200


def _one(name: str, ids: list[str], by_name: dict[str, list[str]], cluster: Cluster) -> str:
    found = [name] if name in ids or _exists(cluster, name) else by_name.get(name, [])
    if len(found) > 1:
        raise ClusterError(f"{len(found)} agents are called {name}: name one by its id: {', '.join(found)}")
    if not found:
        raise ClusterError(f"There is no agent {name}: `mlc-gateway agents` lists those there are.")
    return found[0]


def read_documents(
    cluster: Cluster, version: tuple[int, ...], wanted: Iterable[str], rules: Iterable[Rule] = ()
) -> Documents:
    """The agents `wanted`, the models and connectors behind them, every model that shares one of these connectors,
    and every agent that uses one of these models.

    A document that is missing is left out; `Documents.profile` tells what is missing.

    Raises:
        ClusterError: the cluster can't be reached, or refuses to show a document.
    """
    agents = _get(cluster, "agents", wanted)
    models = _get(cluster, "models", (id_ for doc in agents.values() for id_ in needed(doc)))
    shared = frozenset(filter(None, map(needed_connector, models.values())))
    if shared:
        found = search_all(cluster, "models")
        models |= _get(cluster, "models", (id_ for id_, doc in found if doc.get("connector_id") in shared), models)
    sources = Documents(version, dict(search_all(cluster, "agents")), {}, {})
    agents |= _get(cluster, "agents", users(sources, models), agents)
    # What else these agents use has to be read too, or their calls could not be rendered.
    models |= _get(cluster, "models", (id_ for doc in agents.values() for id_ in needed(doc)), models)
    connectors = _get(cluster, "connectors", filter(None, map(needed_connector, models.values())))
    return Documents(version, agents, models, connectors, tuple(rules), unified_api(cluster, version))


def unified_api(cluster: Cluster, version: tuple[int, ...]) -> bool | None:
    """Whether the cluster's unified agent API is on; None where it does not tell."""
    if version < _FIRST_UNIFIED:
        return False
    status, settings = cluster.call("GET", SETTINGS_PATH)
    return read_unified_api(settings) if status == 200 else None


def read_part(cluster: Cluster, place: str) -> Any:
    """The part at a step's `place` as it is now.

    Raises:
        ClusterError: it can't be read.
    """
    kind, id_ = place.split("/")[:2]
    status, document = cluster.call("GET", document_path(kind, id_))
    if status != 200 or not document:
        raise ClusterError(f"{kind}/{id_} can't be read ({answer_of(status, document)})")
    return part(place, document)


def _get(cluster: Cluster, kind: str, ids: Iterable[str], known: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    wanted = [id_ for id_ in dict.fromkeys(ids) if id_ not in known]
    with ThreadPoolExecutor(_THREADS) as pool:
        answers = list(pool.map(lambda id_: cluster.call("GET", document_path(kind, id_)), wanted))
    found = {}
    for id_, (status, document) in zip(wanted, answers, strict=True):
        if status == 200 and document:
            found[id_] = document
        elif status != 404:
            raise ClusterError(f"{kind}/{id_} can't be read ({answer_of(status, document)})")
    return found

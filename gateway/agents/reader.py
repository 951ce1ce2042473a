"""Reads agents with their models and connectors, without I/O.

`read_agents` is a generator: it yields the documents it needs, batch by batch, and is sent those that exist. The
gateway drives it on the event loop (`gateway.agents.resolver`), the migration with threads (`run`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Literal

import msgspec

from gateway.agents.documents import Document, needed, needed_connector, run_agents, tool_connectors

DocumentKind = Literal["agents", "models", "connectors"]

SETTINGS_PATH = "/_cluster/settings?include_defaults=true&filter_path=*.plugins.ml_commons.unified_agent_api_enabled"
"""Without `flat_settings`: with it the keys hold dots and no such filter finds them (recorded, 3.4.0 to 3.8.0)."""

_FIRST_UNIFIED = (3, 5)


class Batch(msgspec.Struct, frozen=True):
    """Documents to read, which don't depend on each other. ids: each once; there may be none.

    optional: those that the caller may not read are left out, as if they did not exist.
    """

    kind: DocumentKind
    ids: tuple[str, ...]
    optional: bool = False


Found = Mapping[str, Document]
"""The documents of a batch by id. One that does not exist is left out."""


class AgentDocuments(msgspec.Struct, frozen=True):
    """What was read, by id. others: agents that the flows among `agents` run."""

    agents: Found
    models: Found
    connectors: Found
    others: Found = msgspec.field(default_factory=dict)


AgentReader = Generator[Batch, Found, AgentDocuments]


def read_agents(agent_ids: Iterable[str], model_ids: Iterable[str] = (), *, follow: bool = False) -> AgentReader:
    """Read the agents, their models and `model_ids`, and the connectors of all these models and of the agents' tools.

    follow: also the agents that AgentTools of flows run, but none behind those.
    """
    agents = yield _batch("agents", agent_ids)
    run = dict.fromkeys(id_ for document in agents.values() for id_ in run_agents(document)) if follow else ()
    others = (yield Batch("agents", tuple(run), optional=True)) if run else {}
    of_agents = (id_ for document in (*agents.values(), *others.values()) for id_ in needed(document))
    models = yield _batch("models", (*of_agents, *model_ids))
    connectors = yield _batch("connectors", filter(None, map(needed_connector, models.values())))
    of_tools = (id_ for document in (*agents.values(), *others.values()) for id_ in tool_connectors(document))
    if more := tuple(dict.fromkeys(id_ for id_ in of_tools if id_ not in connectors)):
        connectors = {**connectors, **(yield Batch("connectors", more, optional=True))}
    return AgentDocuments(agents, models, connectors, others)


def run(reader: AgentReader, fetch: Callable[[Batch], Found]) -> AgentDocuments:
    """Return what `reader` reads with `fetch`."""
    try:
        batch = next(reader)
        while True:
            batch = reader.send(fetch(batch))
    except StopIteration as end:
        documents: AgentDocuments = end.value
        return documents


def may_have_unified_api(version: tuple[int, ...]) -> bool:
    """Return True if the cluster has the unified agent API, so that `SETTINGS_PATH` says whether it is on."""
    return version >= _FIRST_UNIFIED


def _batch(kind: DocumentKind, ids: Iterable[str]) -> Batch:
    return Batch(kind, tuple(dict.fromkeys(ids)))

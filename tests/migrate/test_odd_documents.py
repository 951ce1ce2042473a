"""Documents that nobody would write: every agent is in the table all the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.agents import ClusterInfo, as_report
from gateway.migrate.assess import assess
from gateway.migrate.cleanup import leftovers
from gateway.migrate.proof import KINDS
from gateway.migrate.reading import scan
from tests.conftest import examples
from tests.delivery.simulated_cluster import cluster_of

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=8),
    st.sampled_from(
        ["${parameters.prompt}", "${parameters.x:-", '{"a":', "flow", "conversational_v2", "[", "}]", [], {}]
    ),
    st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.sampled_from(["type", "model_id", "prompt", "input"]), st.text(max_size=5), max_size=2),
)


class Documents:
    """A cluster of documents."""

    def __init__(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        self.documents = documents

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        _, _, _, kind, id_ = path.split("/")
        if id_ == "_search":
            documents = {} if body and "search_after" in body else self.documents[kind]  # all are on the first page
            hits = [{"_id": name, "_source": found, "sort": [0]} for name, found in documents.items()]
            return 200, {"_shards": {"failed": 0}, "hits": {"total": {"value": len(hits)}, "hits": hits}}
        found = self.documents[kind].get(unquote(id_))
        return (200, dict(found)) if found else (404, {"error": {"reason": "not found"}, "status": 404})


@cache
def _real(version: str) -> dict[str, dict[str, Any]]:
    """A few agents with all that stands behind them, as GET shows them."""
    resources = cluster_of(version).core.resources
    names = ("flow-d", "conv-a", "cflow-f", "fc-bedrock_tutorial", "flow-openai_tutorial", "per-bedrock_upgraded")
    agents = {id_: resources.agent(id_) for name, id_ in cluster_of(version).agents.items() if name in names}
    models = {id_: resources.model(id_) for id_ in resources.models}
    return {
        "agents": agents,
        "models": models,
        "model_groups": {id_: resources.group(id_) for id_ in resources.groups},
        "connectors": {id_: resources.connector(id_) for id_ in resources.connectors},
    }


def _paths(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [*([at] if at else []), *(path for name, value in members for path in _paths(value, (*at, name)))]


@examples(60)
@given(st.data(), st.sampled_from([(2, 19, 0), (3, 4, 0)]))
def test_every_agent_has_its_entry(data: st.DataObject, version: tuple[int, ...]) -> None:
    documents = deepcopy(_real(".".join(map(str, version))))
    kinds = data.draw(
        st.lists(st.sampled_from(["agents", "models", "model_groups", "connectors"]), min_size=1, max_size=3)
    )
    for kind in kinds:
        document = documents[kind][data.draw(st.sampled_from(sorted(documents[kind])))]
        path = data.draw(st.sampled_from(_paths(document)))
        node: Any = document
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = data.draw(ODD)
    cluster = Documents(documents)
    found = assess(scan(cluster, version))
    assert sorted(one.agent.id for one in found) == sorted(documents["agents"])
    assert all((list(one.abilities) == list(KINDS)) != (one.agent.unreadable is not None) for one in found)
    json.dumps(as_report(ClusterInfo("c", "u", version, None), found, KINDS))
    assert leftovers(cluster, 0) == []

"""Which documents are read for agents, and in which order."""

from __future__ import annotations

from typing import Any

from gateway.agents.documents import AgentDocuments, Batch, may_have_unified_api, read_agents, run

AGENTS: dict[str, Any] = {
    "conv": {"type": "conversational", "llm": {"model_id": "m1"}},
    "flow": {"type": "flow", "tools": [{"type": "MLModelTool", "parameters": {"model_id": "m2"}}]},
}
for runner, run_by_it in (("root", ("flow", "gone")), ("root of root", ("root",))):
    AGENTS[runner] = {
        "type": "flow",
        "tools": [{"type": "AgentTool", "parameters": {"agent_id": id_}} for id_ in run_by_it],
    }
MODELS: dict[str, Any] = {"m1": {"connector_id": "c1"}, "m2": {"connector": {}}, "m3": {"connector_id": "c1"}}
STORED = {"agents": AGENTS, "models": MODELS, "connectors": {"c1": {"actions": []}}}


def read(*ids: str, models: tuple[str, ...] = (), follow: bool = False) -> tuple[AgentDocuments, list[Batch]]:
    batches: list[Batch] = []

    def fetch(batch: Batch) -> dict[str, Any]:
        batches.append(batch)
        return {id_: STORED[batch.kind][id_] for id_ in batch.ids if id_ in STORED[batch.kind]}

    return run(read_agents(ids, models, follow=follow), fetch), batches


def test_an_agent_then_its_models_then_their_connectors() -> None:
    found, batches = read("conv", "flow", "conv")
    assert batches == [Batch("agents", ("conv", "flow")), Batch("models", ("m1", "m2")), Batch("connectors", ("c1",))]
    assert found == AgentDocuments(
        {id_: AGENTS[id_] for id_ in ("conv", "flow")},
        {id_: MODELS[id_] for id_ in ("m1", "m2")},
        {"c1": {"actions": []}},
    )


def test_more_models_than_the_agents_name() -> None:
    _, batches = read("conv", models=("m3", "m1"))
    assert batches[1:] == [Batch("models", ("m1", "m3")), Batch("connectors", ("c1",))]


def test_agents_that_a_flow_runs_and_none_behind_those() -> None:
    found, batches = read("root", follow=True)
    assert batches[1:] == [
        Batch("agents", ("flow", "gone"), optional=True),
        Batch("models", ("m2",)),
        Batch("connectors", ()),
    ]
    assert (set(found.agents), set(found.others)) == ({"root"}, {"flow"})
    found, batches = read("root of root", follow=True)
    assert [batch.ids for batch in batches] == [("root of root",), ("root",), (), ()]
    assert set(found.others) == {"root"}
    assert [batch.ids for batch in read("root")[1]] == [("root",), (), ()]


def test_a_document_that_does_not_exist_is_left_out() -> None:
    found, batches = read("gone")
    assert found == AgentDocuments({}, {}, {})
    assert [batch.ids for batch in batches] == [("gone",), (), ()]


def test_clusters_that_may_have_the_unified_agent_api() -> None:
    assert not may_have_unified_api((3, 4, 9))
    assert may_have_unified_api((3, 5, 0))

from __future__ import annotations

from typing import Any

import pytest

from gateway.agents.documents import Rule
from gateway.migrate.assess import Scan, Scanned, Unreadable
from gateway.migrate.connection import ClusterRefused
from gateway.migrate.reading import scan
from gateway.simulator.fixtures import CLASSIC, connector_body
from tests.migrate.conftest import Deployment, StartDeployment
from tests.migrate.test_connection import connected

AGENTS, MODELS, CONNECTORS = "/_plugins/_ml/agents/", "/_plugins/_ml/models/", "/_plugins/_ml/connectors/"


def scanned(deployment: Deployment, *ids: str, **options: Any) -> Scan:
    cluster = connected("--url", deployment.url)
    return scan(cluster, cluster.version, ids, **options)


def one(found: Scan, name: str) -> Scanned:
    return next(agent for agent in found.agents if name in (agent.name, agent.id))


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
def test_every_agent_as_the_gateway_reads_it(start_deployment: StartDeployment, version: str) -> None:
    deployment = start_deployment(version)
    found = scanned(deployment)
    assert sorted(agent.id for agent in found.agents) == sorted(deployment.cluster.core.resources.agents)
    assert [agent.name for agent in found.agents] == sorted(agent.name for agent in found.agents)
    assert not [agent.unreadable for agent in found.agents if agent.unreadable]
    assert (found.version, found.unified_api) == (tuple(map(int, version.split("."))), False)
    for agent in found.agents:
        assert agent.profile is not None
        assert (agent.profile.id, agent.profile.name, agent.profile.type) == (agent.id, agent.name, agent.type)


def test_each_document_is_read_once(deployment: Deployment) -> None:
    scanned(deployment)
    reads = [call for call in deployment.cluster.calls if call.startswith("GET /_plugins")]
    assert len(reads) == len(set(reads))
    resources = deployment.cluster.core.resources
    assert len(reads) == len(resources.agents) + len(resources.models) + len(resources.connectors)
    assert {call.split()[0] for call in deployment.cluster.calls} == {"GET", "POST"}
    assert {call for call in deployment.cluster.calls if call.startswith("POST")} == {
        "POST /_plugins/_ml/agents/_search",
        "POST /_plugins/_ml/models/_search",
    }


def test_named_agents_only(deployment: Deployment) -> None:
    wanted = [deployment.agents["flow-a"], deployment.agents["conv-d"]]
    found = scanned(deployment, *wanted, wanted[0])
    assert [agent.name for agent in found.agents] == ["conv-d", "flow-a"]
    assert "POST /_plugins/_ml/agents/_search" not in deployment.cluster.calls


def test_what_can_not_be_read_is_told_with_the_reason(deployment: Deployment) -> None:
    resources, refusals = deployment.cluster.core.resources, deployment.cluster.refusals
    models = {document["name"]: id_ for id_, document in resources.models.items()}
    del resources.models[models["model-b"]]
    gone = resources.models[models["model-d"]]["connector_id"]
    del resources.connectors[gone]
    hidden = resources.models[models["model-e"]]["connector_id"]
    refusals |= {
        f"GET {AGENTS}{deployment.agents['flow-a']}": 403,
        f"GET {AGENTS}{deployment.agents['cflow-a']}": 500,
        f"GET {MODELS}{models['model-c']}": 403,
        f"GET {CONNECTORS}{hidden}": 401,
    }
    resources.agents[deployment.agents["flow-h"]]["type"] = "oracle"
    resources.agents[deployment.agents["conv-h"]]["tools"] = "none"
    found = scanned(deployment)
    assert len(found.agents) == len(resources.agents)
    unreadable_agents = {agent.name or agent.id: agent.unreadable for agent in found.agents if agent.unreadable}

    def why(name: str) -> tuple[str, str, str]:
        unreadable = unreadable_agents[name]
        return unreadable.code, unreadable.reason, unreadable.help

    assert why(deployment.agents["flow-a"])[0] == "AGENT_UNREADABLE"
    assert "cluster:admin/opensearch/ml/agents/get" in why(deployment.agents["flow-a"])[2]
    assert "500" in why(deployment.agents["cflow-a"])[1]
    code, reason, remedy = why("flow-b")
    assert (code, "does not exist" in reason, remedy) == (
        "AGENT_UNRESOLVED",
        True,
        "register what is missing again, or remove the agent",
    )
    assert models["model-b"] in reason
    assert (why("conv-d")[0], gone in why("conv-d")[1]) == ("AGENT_UNRESOLVED", True)
    assert "cluster:admin/opensearch/ml/models/get" in why("cflow-c")[2]
    assert "cluster:admin/opensearch/ml/connectors/get" in why("conv-e")[2]
    assert (why("flow-h")[0], "oracle" in why("flow-h")[1]) == ("AGENT_TYPE_UNKNOWN", True)
    assert why("conv-h")[0] == "AGENT_UNRESOLVED"
    expected = {deployment.agents["flow-a"], deployment.agents["cflow-a"], "flow-h", "conv-h"}
    assert set(unreadable_agents) == expected | {
        f"{kind}-{name}" for kind in ("flow", "cflow", "conv") for name in "bdce"
    }


def test_an_agent_by_its_name(deployment: Deployment) -> None:
    id_ = deployment.agents["flow-a"]
    agents = scanned(deployment, "flow-a", deployment.agents["conv-a"], id_).agents
    assert [(agent.id, agent.name) for agent in agents] == [(deployment.agents["conv-a"], "conv-a"), (id_, "flow-a")]
    assert not any(agent.unreadable for agent in agents)


def test_a_name_of_several_agents(deployment: Deployment) -> None:
    resources = deployment.cluster.core.resources
    resources.agents[deployment.agents["flow-b"]]["name"] = "flow-a"
    (agent,) = scanned(deployment, "flow-a").agents
    ids = sorted(deployment.agents[name] for name in ("flow-a", "flow-b"))
    reason = f"2 agents have this name: {', '.join(ids)}"
    assert agent.unreadable == Unreadable("AGENT_UNREADABLE", reason, "give the id of one of them")


def test_an_agent_that_is_not_there(deployment: Deployment) -> None:
    (agent,) = scanned(deployment, "nobody").agents
    reason, help = "there is no agent with this id or name", "run this without names to list all agents"
    assert (agent.id, agent.unreadable) == ("nobody", Unreadable("AGENT_UNREADABLE", reason, help))


def test_an_id_that_is_not_there_without_the_right_to_search(deployment: Deployment) -> None:
    deployment.cluster.refusals["POST /_plugins/_ml/agents/_search"] = 403
    (agent,) = scanned(deployment, "nobody").agents
    assert agent.unreadable is not None
    assert agent.unreadable.reason.startswith("there is no agent with this id, and names can't be searched: ")
    assert agent.unreadable.help == "check the id"


def test_without_the_right_to_search_there_is_no_table(deployment: Deployment) -> None:
    deployment.cluster.refusals["POST /_plugins/_ml/agents/_search"] = 403
    with pytest.raises(ClusterRefused, match="ml/agents/search"):
        scanned(deployment)


def test_sharing_is_counted_over_all_models(deployment: Deployment) -> None:
    core = deployment.cluster.core
    connector_id = core.resources.models[next(iter(core.resources.models))]["connector_id"]
    for number in range(2):
        core.resources.register_model(
            {"name": f"more-{number}", "function_name": "remote", "connector_id": connector_id}, True
        )
    assert len(scanned(deployment).users[connector_id]) == 3
    deployment.cluster.refusals["POST /_plugins/_ml/models/_search"] = 403
    found = scanned(deployment)
    assert len(found.users[connector_id]) == 1
    assert any("ml/models/search" in note for note in found.notes)


def test_rules_tell_the_provider(deployment: Deployment) -> None:
    agent_id = deployment.agents["flow-c"]
    rule = Rule("flow-*", "bedrock/converse")
    profile = one(scanned(deployment, agent_id, rules=(rule,)), "flow-c").profile
    assert profile is not None
    assert (profile.provider, profile.provider_source) == ("bedrock/converse", "rule")


def test_progress_is_reported_document_by_document(deployment: Deployment) -> None:
    steps_reported: list[tuple[str, int, int]] = []
    scanned(deployment, progress=lambda *step: steps_reported.append(step))
    for kind in ("agents", "models", "connectors"):
        steps = [(done, total) for name, done, total in steps_reported if name == kind]
        assert steps == [(number, len(steps)) for number in range(1, len(steps) + 1)]


def test_a_connector_inside_its_model(deployment: Deployment) -> None:
    resources = deployment.cluster.core.resources
    connector = connector_body("x", CLASSIC["a"], deployment.cluster.llm_url)
    model = resources.register_model({"name": "inside", "function_name": "remote", "connector": connector}, True)
    tool = {"type": "MLModelTool", "parameters": {"model_id": model["model_id"], "prompt": "${parameters.question}"}}
    agent_id = deployment.register({"name": "inside", "type": "flow", "tools": [tool]})
    found = one(scanned(deployment), agent_id)
    assert found.profile is not None
    assert found.profile.models[0].connector.id == ""

"""Deleting agents: what was made for one is reported, and removed on request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.faulty_cluster import Fault
from tests.register.deployment import ENABLE_MCP, ML, Deployment, deploy
from tests.simulator.test_search import CONNECTOR

VERSIONS = ("2.19.0", "3.4.0")
MCP = {"url": "https://tools.example.org/sse"}
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=A/20260101/eu-west-1/es/aws4_request, SignedHeaders=host"}


async def made(deployment: Deployment, **more: Any) -> str:
    status, document = await deployment.register(deployment.body(**more))
    assert status == 200, document
    return str(document["agent_id"])


async def deleted(
    deployment: Deployment, agent_id: str, query: str = ""
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    return await deployment.call("DELETE", f"{ML}/agents/{agent_id}{query}")


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_cascade_the_agent_goes_and_the_rest_is_told(version: str) -> None:
    async with deploy(version) as deployment:
        agent_id = await made(deployment)
        [model_id] = deployment.simulator.core.resources.models
        [group_id] = deployment.simulator.core.resources.groups
        status, document, headers = await deleted(deployment, agent_id)
        assert (status, document["result"]) == (200, "deleted")
        assert headers["X-MLC-Cleanup"] == (
            f"kept model {model_id}, model group {group_id}; delete with ?cascade=true to remove them, too; by hand: "
            f"POST {ML}/models/{model_id}/_undeploy, DELETE {ML}/models/{model_id}, "
            f"DELETE {ML}/model_groups/{group_id}"
        )
        assert deployment.counts == (0, 1, 0)


@pytest.mark.parametrize("version", VERSIONS)
async def test_with_cascade_all_goes(version: str) -> None:
    async with deploy(version) as deployment:
        mcp = {"mcp": MCP} if version == "3.4.0" else {}
        if mcp:
            deployment.simulator.core.settings.change(ENABLE_MCP)
        agent_id = await made(deployment, **mcp)
        assert (await deployment.execute(agent_id, "hello"))[0] == 200
        [model_id] = deployment.simulator.core.resources.models
        [group_id] = deployment.simulator.core.resources.groups
        connectors = list(deployment.simulator.core.resources.connectors)
        status, document, headers = await deleted(deployment, agent_id, "?cascade=true")
        assert (status, document["_id"], document["result"]) == (200, agent_id, "deleted")
        removed = [f"model {model_id}", f"model group {group_id}", *(f"connector {id}" for id in connectors)]
        assert headers["X-MLC-Cleanup"] == "; ".join(f"removed {one}" for one in removed)
        assert deployment.counts == (0, 0, 0)
        assert deployment.simulator.core.resources.groups == {}


async def test_a_planners_executor_goes_with_it() -> None:
    async with deploy("3.4.0") as deployment:
        agent_id = await made(deployment, type="plan_execute_and_reflect")
        assert deployment.counts == (2, 1, 0)
        assert (await deleted(deployment, agent_id, "?cascade=true"))[0] == 200
        assert deployment.counts == (0, 0, 0)


async def test_an_executor_of_the_clients_own_stays() -> None:
    async with deploy("3.4.0") as deployment:
        executor = await made(deployment)
        parameters = {"executor_agent_id": executor}
        planner = await made(deployment, type="plan_execute_and_reflect", name="planner", parameters=parameters)
        assert (await deleted(deployment, planner, "?cascade=true"))[0] == 200
        assert list(deployment.simulator.core.resources.agents) == [executor]
        assert deployment.counts == (1, 1, 0)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_model_that_another_agent_uses_stays(version: str) -> None:
    async with deploy(version) as deployment:
        agent_id = await made(deployment)
        [model_id] = deployment.simulator.core.resources.models
        [group_id] = deployment.simulator.core.resources.groups
        tool = {"type": "MLModelTool", "parameters": {"model_id": model_id, "prompt": "x"}}
        _, other = await deployment.register({"name": "mine", "type": "flow", "tools": [tool]})
        _, _, headers = await deleted(deployment, agent_id, "?cascade=true")
        kept_model = f"kept model {model_id}, used by agent {other['agent_id']}"
        assert headers["X-MLC-Cleanup"] == f"{kept_model}; kept model group {group_id}, used by model {model_id}"
        assert deployment.counts == (1, 1, 0)


async def test_a_group_with_other_models_stays() -> None:
    async with deploy("3.4.0") as deployment:
        agent_id = await made(deployment)
        [model_id] = deployment.simulator.core.resources.models
        [group_id] = deployment.simulator.core.resources.groups
        model = {**deployment.simulator.core.resources.models[model_id], "connector": CONNECTOR}
        other = deployment.simulator.core.resources.register_model(model, deploy=False)["model_id"]
        _, _, headers = await deleted(deployment, agent_id, "?cascade=true")
        assert (
            headers["X-MLC-Cleanup"] == f"removed model {model_id}; kept model group {group_id}, used by model {other}"
        )
        assert list(deployment.simulator.core.resources.groups) == [group_id]


async def test_a_group_of_the_clients_own_stays() -> None:
    async with deploy("3.4.0") as deployment:
        agent_id = await made(deployment)
        [model_id] = deployment.simulator.core.resources.models
        group_id = deployment.simulator.core.resources.register_group({"name": "mine"})["model_group_id"]
        deployment.simulator.core.resources.models[model_id]["model_group_id"] = group_id
        _, _, headers = await deleted(deployment, agent_id, "?cascade=true")
        assert headers["X-MLC-Cleanup"] == f"removed model {model_id}"
        assert group_id in deployment.simulator.core.resources.groups


@pytest.mark.parametrize("as_text", [True, False])
async def test_an_mcp_connector_that_another_agent_names_stays(as_text: bool) -> None:
    async with deploy("3.4.0") as deployment:
        deployment.simulator.core.settings.change(ENABLE_MCP)
        agent_id = await made(deployment, mcp=[MCP, {**MCP, "name": "second"}])
        shared, own = deployment.simulator.core.resources.connectors
        named: Any = [{"mcp_connector_id": shared}]
        parameters = {"mcp_connectors": json.dumps(named) if as_text else named}
        _, other = await deployment.register({"name": "mine", "type": "flow", "tools": [], "parameters": parameters})
        _, _, headers = await deleted(deployment, agent_id, "?cascade=true")
        expected = headers["X-MLC-Cleanup"].split("; ")[2:]
        assert expected == [f"kept connector {shared}, used by agent {other['agent_id']}", f"removed connector {own}"]
        assert list(deployment.simulator.core.resources.connectors) == [shared]


async def test_among_too_many_agents_with_mcp_connectors_one_stays_and_is_told() -> None:
    async with deploy("3.4.0") as deployment:
        deployment.simulator.core.settings.change(ENABLE_MCP)
        agent_id = await made(deployment, mcp=MCP)
        [connector_id] = deployment.simulator.core.resources.connectors
        parameters = {"mcp_connectors": "[]"}
        for number in range(200):
            body = {"name": f"f{number}", "type": "flow", "tools": [], "parameters": parameters}
            deployment.simulator.core.resources.register_agent(body)
        _, _, headers = await deleted(deployment, agent_id, "?cascade=true")
        by_hand = f"DELETE {ML}/connectors/{connector_id}"
        expected = f"kept connector {connector_id}, as it is not known who else uses it; by hand: {by_hand}"
        assert headers["X-MLC-Cleanup"].split("; ", 2)[2] == expected


@pytest.mark.parametrize("query", ["?cascade=true", "?cascade=false"])
async def test_an_agent_of_others_goes_alone(query: str) -> None:
    async with deploy() as deployment:
        _, document = await deployment.register({"name": "mine", "type": "flow", "tools": [{"type": "CatIndexTool"}]})
        status, _, headers = await deleted(deployment, document["agent_id"], query)
        assert status == 200
        expected = {"X-MLC-Cleanup": "nothing was made for this agent"} if query.endswith("true") else {}
        assert expected.items() <= headers.items()
        assert deployment.counts == (0, 0, 0)


async def test_notes_that_are_no_notes_of_the_gateways_do_no_harm() -> None:
    async with deploy() as deployment:
        for noted in ("", "{", "[]", '{"model_id": 7, "mcp_connector_ids": 3}', '{"model_id": "../x?y"}'):
            body = {
                "name": "f",
                "type": "flow",
                "parameters": {"mlc_gateway": noted},
                "tools": [{"type": "CatIndexTool"}],
            }
            _, document = await deployment.register(body)
            status, _, _ = await deleted(deployment, document["agent_id"], "?cascade=true")
            assert status == 200
        assert not [seen for seen in deployment.front.seen if "/x?" in seen.path]


@pytest.mark.parametrize("query", ["?cascade=yes", "?cascade=true&cascade=true", "?cascade"])
async def test_other_values_are_refused(query: str) -> None:
    async with deploy() as deployment:
        status, document, _ = await deleted(deployment, "x", query)
        assert (status, document["error"]["details"]["field"]) == (400, "?cascade")
        assert deployment.front.seen == []


async def test_what_can_not_be_removed_is_told() -> None:
    async with deploy() as deployment:
        agent_id = await made(deployment)
        [model_id] = deployment.simulator.core.resources.models
        [group_id] = deployment.simulator.core.resources.groups
        deployment.front.faults.append(Fault("error", "DELETE", f"{ML}/models/", times=9))
        _, _, headers = await deleted(deployment, agent_id, "?cascade=true")
        by_hand = f"POST {ML}/models/{model_id}/_undeploy, DELETE {ML}/models/{model_id}"
        left, group = headers["X-MLC-Cleanup"].rsplit("; ", 1)
        assert left == f"model {model_id} is left behind: injected by the test; by hand: {by_hand}"
        assert group == f"kept model group {group_id}, used by model {model_id}"


async def test_where_nobody_can_tell_who_uses_the_model_it_stays() -> None:
    async with deploy() as deployment:
        agent_id = await made(deployment)
        deployment.front.faults.append(Fault("error", "POST", f"{ML}/agents/_search", times=9))
        _, _, headers = await deleted(deployment, agent_id, "?cascade=true")
        assert headers["X-MLC-Cleanup"].startswith("kept model ")
        assert deployment.counts == (0, 1, 0)


@pytest.mark.parametrize("query", ["", "?cascade=true"])
async def test_an_agent_that_is_not_there_is_the_clusters_to_tell(query: str) -> None:
    async with deploy() as deployment:
        await made(deployment)
        status, document, _ = await deleted(deployment, "nobody", query)
        assert (status, document["status"]) == (404, 404)


async def test_a_signed_deletion_passes_and_a_signed_cascade_is_refused() -> None:
    async with deploy() as deployment:
        agent_id = await made(deployment)
        before = len(deployment.front.seen)
        status, document, _ = await deployment.call("DELETE", f"{ML}/agents/{agent_id}?cascade=true", headers=SIGNED)
        assert (status, document["error"]["type"]) == (400, "SignatureConflict")
        assert len(deployment.front.seen) == before
        assert (await deployment.call("DELETE", f"{ML}/agents/{agent_id}", headers=SIGNED))[0] == 200
        assert len(deployment.front.seen) == before + 1


async def test_a_failed_deletion_removes_nothing_else() -> None:
    async with deploy() as deployment:
        agent_id = await made(deployment)
        deployment.front.faults.append(Fault("error", "DELETE", f"{ML}/agents/"))
        status, document, headers = await deleted(deployment, agent_id, "?cascade=true")
        assert status == 500
        assert json.dumps(document).count("injected by the test") == 2
        assert "X-MLC-Cleanup" not in headers
        assert deployment.counts == (1, 1, 0)

"""Agents that the cluster can't have as requested: the gateway keeps their sessions, and answers for V2 agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.agents.documents import read_profile
from gateway.memory.stores.sqlite import SqliteStore
from gateway.mlcommons.profile import AgentProfile
from gateway.simulator.settings import UNIFIED_API
from tests.conftest import StartGateway
from tests.execute.stub_cluster import Cluster, server_of
from tests.register.deployment import ML, REGISTER, Deployment, deploy

JSON = {"Content-Type": "application/json"}
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=AKID/20260101/us-east-1/es/aws4_request, Signature=0"}
VERSIONS = ("2.19.0", "3.4.0", "3.6.0", "3.8.0")
AGENTIC = {"type": "agentic_memory", "memory_container_id": "c1"}
IMAGE = {"type": "image", "source": {"type": "base64", "format": "png", "data": "iVBORw0KGgo="}}


def profile(deployment: Deployment, agent_id: str) -> AgentProfile:
    resources = deployment.simulator.core.resources
    version = tuple(map(int, deployment.simulator.core.version.split(".")))
    return read_profile(agent_id, resources.agents[agent_id], resources.models, resources.connectors, version)


async def own_model(deployment: Deployment) -> str:
    """Return the id of a model that is registered already."""
    status, _ = await deployment.register()
    assert status == 200
    return next(iter(deployment.simulator.core.resources.models))


@pytest.mark.parametrize("version", VERSIONS)
async def test_marks_change_nothing_that_the_llm_receives(version: str) -> None:
    received = []
    for kind in ("conversational", "conversational_v2"):
        async with deploy(version) as deployment:
            status, document = await deployment.register(deployment.body(type=kind, tools=[]))
            assert status == 200, document
            found = profile(deployment, document["agent_id"])
            is_v2 = kind == "conversational_v2"
            assert (found.gateway_memory, found.unified_output) == (is_v2, is_v2)
            for sent in ("hello", [{"type": "text", "text": "what is this?"}, IMAGE]):
                status, answer = await deployment.execute(document["agent_id"], sent)
                assert status == 200, answer
            received.append(deployment.simulator.received)
    assert received[0] == received[1]
    assert len(received[0]) == 2
    assert "gw_" not in json.dumps(received)


@pytest.mark.parametrize(
    ("version", "type_", "marks"),
    [
        ("2.19.0", "conversational", {"gw_memory": "sessions"}),
        ("2.19.0", "conversational_v2", {"gw_memory": "sessions", "gw_output": "unified"}),
        ("3.4.0", "conversational", {"gw_memory": "sessions"}),
        ("3.6.0", "conversational/v2", {"gw_memory": "sessions", "gw_output": "unified"}),
    ],
)
async def test_an_agent_with_a_model_of_its_own(version: str, type_: str, marks: dict[str, str]) -> None:
    async with deploy(version) as deployment:
        llm = {
            "model_id": await own_model(deployment),
            "parameters": {"response_filter": "$.output.message.content[0].text"},
        }
        body = {"name": "mine", "type": type_, "llm": llm, "tools": [{"type": "ListIndexTool"}], "memory": AGENTIC}
        status, document, headers = await deployment.call("POST", REGISTER, body)
        assert status == 200, document
        assert "GATEWAY_MEMORY" in headers["X-MLC-Gateway-Notice"]
        agent = deployment.simulator.core.resources.agents[document["agent_id"]]
        assert (agent["type"].lower(), agent["memory"]["type"]) == ("conversational", "conversation_index")
        assert {name: value for name, value in agent["parameters"].items() if name.startswith("gw_")} == marks
        assert (await deployment.execute(document["agent_id"], "hello"))[0] == 200


@pytest.mark.parametrize("kind", ["conversational", "conversational_v2"])
@pytest.mark.parametrize("has_model_block", [False, True])
@pytest.mark.parametrize(("version", "unified"), [(version, False) for version in VERSIONS] + [("3.8.0", True)])
@pytest.mark.slow
async def test_a_memory_without_a_container_means_the_same_on_each_version(
    version: str, unified: bool, has_model_block: bool, kind: str
) -> None:
    """From 3.5 on the cluster would register it, and then refuse every run (docs/evidence/facts.md)."""
    async with deploy(version) as deployment:
        core = deployment.simulator.core
        if unified:
            core.settings.change({"persistent": {UNIFIED_API: "true"}})
        memory = {"type": "agentic_memory"}
        if has_model_block:
            body = deployment.body(type=kind, tools=[{"type": "ListIndexTool"}], memory=memory)
        else:
            llm = {
                "model_id": await own_model(deployment),
                "parameters": {"response_filter": "$.output.message.content[0].text"},
            }
            body = {"name": "mine", "type": kind, "llm": llm, "tools": [{"type": "ListIndexTool"}], "memory": memory}
        status, document, headers = await deployment.call("POST", REGISTER, body)
        assert status == 200, document
        assert "GATEWAY_MEMORY" in headers["X-MLC-Gateway-Notice"]
        found = profile(deployment, document["agent_id"])
        assert (found.type, found.memory_type, found.gateway_memory) == ("conversational", "conversation_index", True)
        assert found.unified_output is (kind == "conversational_v2")
        status, answer = await deployment.execute(document["agent_id"], "hello")
        assert status == 200, answer


async def test_a_run_without_registration_keeps_no_session(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite3"
    rule = {"agent": "*", "memory": "gateway"}
    async with deploy(over={"memory": {"sqlite": {"path": str(path)}}, "agents": {"rules": [rule]}}) as deployment:
        body = {
            "model": deployment.model(),
            "type": "conversational_v2",
            "memory": AGENTIC,
            "tools": [],
            "input": "hello",
        }
        status, answer, headers = await deployment.call("POST", f"{ML}/agents/_execute", body)
        assert status == 200, answer
        assert {"V2_AS_LEGACY", "MEMORY_AS_CONVERSATION_INDEX"} <= set(headers["X-MLC-Gateway-Notice"].split(", "))
    store = SqliteStore(path)
    await store.start()
    assert (await store.sessions()).sessions == ()
    await store.close()


BODIES: list[dict[str, Any]] = [
    {"name": "a", "type": "conversational_v2", "llm": {"model_id": "m"}, "memory": AGENTIC, "x": [1, {}]},
    {"name": "a", "type": "conversational", "tools": "none", "memory": AGENTIC},
    {"name": "a", "type": "flow", "description": "conversational_v2"},
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body["type"])
async def test_a_cluster_that_has_them_gets_the_registration_as_it_came(
    start_gateway: StartGateway, body: dict[str, Any]
) -> None:
    cluster = Cluster()
    cluster.answers = [(200, {"agent_id": "made"})]
    async with server_of(cluster) as server:
        gateway = await start_gateway(f"http://127.0.0.1:{server.port}")
        data = json.dumps(body, indent=3).encode()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            for headers in (JSON, {**JSON, **SIGNED}):
                async with client.post(REGISTER, data=data, headers=headers) as response:
                    assert (response.status, await response.json()) == (200, {"agent_id": "made"})
            cluster.lookup_status = 403  # what the cluster supports can't be read
            async with client.post(REGISTER, data=data, headers=JSON) as response:
                assert response.status == 200
        assert cluster.bodies == [data] * 3

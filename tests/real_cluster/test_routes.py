"""Routes before a real 3.6.0, which is both clusters: conversations, memory paths, and who may run agents."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from tests.conftest import StartGateway

from .agents import Agent, Api
from .llm import LLM

pytestmark = pytest.mark.real_cluster

ML = "/_plugins/_ml"
NOBODY = f"{ML}/agents/mlc-gateway-may-run/_execute"


def test_a_run_of_an_agent_that_there_is_not_is_a_404(api: Api, agents: dict[str, Agent]) -> None:
    """`gateway.routing.profiles` takes that for a caller who may run agents."""
    assert agents
    status, answer = api.call("POST", NOBODY, {"parameters": {}})
    assert status == 404, answer


async def test_a_conversation_stays_and_its_ids_lead_back(
    real_cluster: str, agents: dict[str, Agent], llm: LLM, start_gateway: StartGateway
) -> None:
    old, new = agents["openai_flow_upgraded"].agent_id, agents["openai_conv_tools_upgraded"].agent_id
    target = {"agent": new, "cluster": "new", "weight": 1}
    over = {
        "clusters": {"new": {"url": real_cluster}},
        "agents": {"routes": [{"agent": old, "targets": [{"agent": old, "weight": 0}, target]}]},
    }
    gateway = await start_gateway(real_cluster, None, over)

    async def send(method: str, path: str, body: Any = None) -> tuple[Any, Any]:
        url = f"http://127.0.0.1:{gateway.data_port}{ML}{path}"
        async with aiohttp.ClientSession() as client, client.request(method, url, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return answer, response.headers

    llm.replies("Hello Nia.", "Nia.")
    begun, headers = await send("POST", f"/agents/{old}/_execute", {"input": "My name is Nia."})
    assert (headers["X-MLC-Agent"], headers["X-MLC-Cluster"]) == (new, "new")
    outputs = {output["name"]: output.get("result") for output in begun["inference_results"][0]["output"]}
    memory_id = outputs["memory_id"]
    assert memory_id.startswith("gwr-")
    llm.taken()
    body = {"input": "What is my name?", "parameters": {"memory_id": memory_id}}
    again, headers = await send("POST", f"/agents/{old}/_execute", body)
    assert headers["X-MLC-Agent"] == new
    assert memory_id in json.dumps(again)
    assert "My name is Nia." in json.dumps(llm.taken())
    memory, _ = await send("GET", f"/memory/{memory_id}")
    assert memory["memory_id"] == memory_id
    messages, _ = await send("GET", f"/memory/{memory_id}/messages")
    assert [message["memory_id"] for message in messages["messages"]] == [memory_id] * 2
    message_id = messages["messages"][0]["message_id"]
    message, _ = await send("GET", f"/memory/message/{message_id}")
    assert (message["message_id"], message["memory_id"]) == (message_id, memory_id)
    await send("GET", f"/memory/message/{message_id}/traces")
    found, _ = await send("POST", f"/memory/{memory_id}/_search", {"query": {"match_all": {}}})
    assert all(hit["_id"].startswith("gwr-") for hit in found["hits"]["hits"])
    await send("DELETE", f"/memory/{memory_id}")

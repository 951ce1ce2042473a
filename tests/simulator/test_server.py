"""The simulator over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.simulator.fixtures import seed
from gateway.simulator.server import Simulator

ML = "/_plugins/_ml"


@pytest.fixture(params=["2.19.0", "3.4.0"])
async def simulator(request: pytest.FixtureRequest) -> AsyncIterator[Simulator]:
    async with Simulator(request.param) as running:
        yield running


@pytest.fixture
async def client(simulator: Simulator) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(base_url=simulator.url) as session:
        yield session


async def execute(client: aiohttp.ClientSession, agent_id: str, **parameters: Any) -> tuple[int, Any]:
    async with client.post(f"{ML}/agents/{agent_id}/_execute", json={"parameters": parameters}) as response:
        return response.status, await response.json()


async def test_says_what_it_is(simulator: Simulator, client: aiohttp.ClientSession) -> None:
    async with client.get("/") as response:
        assert (await response.json())["version"]["number"] == simulator.core.version


async def test_seeds_runs_and_shows_what_arrived(simulator: Simulator, client: aiohttp.ClientSession) -> None:
    agents = await seed(simulator.url)
    name = "flow-d" if "flow-d" in agents else "flow-bedrock_tutorial"
    simulator.script(["hello back"])
    status, body = await execute(client, agents[name], question='say "hi" 😀')
    assert (status, body["inference_results"][0]["output"][0]["result"]) == (200, "hello back")
    async with client.get("/received") as response:
        received = await response.json()
    assert received == simulator.received
    text = received[0]["messages"][0]["content"][0]["text"]
    assert 'Asked: say "hi" 😀' in text


async def test_documents_can_be_read_changed_and_deleted(simulator: Simulator, client: aiohttp.ClientSession) -> None:
    agents = await seed(simulator.url)
    name, agent_id = next(iter(agents.items()))
    async with client.get(f"{ML}/agents/{agent_id}") as response:
        agent = await response.json()
    assert agent["name"] == name
    model_id = agent["tools"][0]["parameters"]["model_id"]
    async with client.get(f"{ML}/models/{model_id}") as response:
        connector_id = (await response.json())["connector_id"]
    async with client.get(f"{ML}/connectors/{connector_id}") as response:
        connector = await response.json()
    assert "credential" not in connector
    async with client.put(f"{ML}/agents/{agent_id}", json={"description": "new"}) as response:
        assert response.status == (405 if simulator.core.version == "2.19.0" else 200)
    async with client.post(f"{ML}/agents/_search", json={"query": {"ids": {"values": [agent_id]}}}) as response:
        assert [hit["_id"] for hit in (await response.json())["hits"]["hits"]] == [agent_id]
    async with client.post(f"{ML}/models/{model_id}/_undeploy") as response:
        assert response.status == 200
    for path in (f"agents/{agent_id}", f"models/{model_id}", f"connectors/{connector_id}"):
        async with client.delete(f"{ML}/{path}") as response:
            assert (await response.json())["result"] == "deleted"
        async with client.get(f"{ML}/{path}") as response:
            assert response.status == 404


async def test_http_details(client: aiohttp.ClientSession) -> None:
    path = f"{ML}/agents/x/_execute"
    async with client.head(path) as response:
        assert (response.status, await response.read()) == (405, b"")
    async with client.options(path) as response:
        assert response.status == 200
    async with client.post(path, data=b"a=b", headers={"content-type": "text/plain"}) as response:
        assert (response.status, (await response.json())["status"]) == (406, 406)
    async with client.get(f"{ML}/nothing/here/at/all") as response:
        assert response.status == 400
    async with client.get("/?pretty") as response:
        assert b"\n" in await response.read()


async def test_a_body_over_the_limit_is_refused_without_a_word(
    simulator: Simulator, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.simulator.server.MAX_BODY", 1000)
    async with (
        Simulator(simulator.core.version) as small,
        aiohttp.ClientSession(base_url=small.url) as session,
        session.post(f"{ML}/agents/x/_execute", data=b"x" * 2000) as response,
    ):
        assert (response.status, await response.read()) == (413, b"")


async def test_models_may_be_elsewhere_and_down(simulator: Simulator, client: aiohttp.ClientSession) -> None:
    agents = await seed(simulator.url, llm_url="http://127.0.0.1:1")
    name = next(name for name in agents if name in ("flow-d", "flow-bedrock_tutorial"))
    status, body = await execute(client, agents[name], question="q")
    assert status == 500
    assert body["error"]["details"] == "Error communicating with remote model: Connection refused: /127.0.0.1:1"


async def test_checking_models_refuse_a_wrong_body(simulator: Simulator, client: aiohttp.ClientSession) -> None:
    agents = await seed(simulator.url)
    name = next(name for name in agents if name in ("flow-a", "flow-bedrock_messages"))
    wrong = '[{"role":"assistant","content":[{"text":"first"}]}]'
    status, body = await execute(client, agents[name], question="q", messages=wrong)
    assert status == 400
    assert "Error from remote service" in body["error"]["details"]
    simulator.llm.strict = False
    status, _ = await execute(client, agents[name], question="q", messages=wrong)
    assert status == 200


async def test_agents_can_be_switched_off(client: aiohttp.ClientSession) -> None:
    switch = "plugins.ml_commons.agent_framework_enabled"
    async with client.put("/_cluster/settings", json={"persistent": {switch: False}}) as response:
        assert response.status == 200
    async with client.get(f"{ML}/agents/x") as response:
        assert response.status == 500
    async with client.put("/_cluster/settings", json={"persistent": {"plugins.ml_commons.unknown": 1}}) as response:
        assert response.status == 400

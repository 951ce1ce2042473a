"""Answers in the unified form, on every version, and all others as the cluster sends them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import aiohttp.test_utils
import aiohttp.web
import pytest

from tests.conftest import StartGateway
from tests.execute.conftest import Deployment, StartDeployment
from tests.execute.stub_cluster import V1, V2, Client, Cluster, server_of
from tests.register.deployment import ML, deploy

VERSIONS = ("2.19.0", "3.4.0", "3.6.0", "3.8.0")
UNIFIED = {"agents": {"rules": [{"agent": "*", "memory": "cluster", "output": "unified"}]}}
INPUT = {"input": "hello"}
QUESTION = {"parameters": {"question": "hello"}}


def unified(text: str, memory_id: str) -> dict[str, Any]:
    return {
        "stop_reason": "end_turn",
        "message": {"role": "assistant", "content": [{"text": text}]},
        **({"memory_id": memory_id} if memory_id else {}),
        "metrics": {"total_usage": {}},
    }


async def directly(deployment: Deployment, agent: str) -> dict[str, Any]:
    """Return the cluster's own answer."""
    url = f"{deployment.simulator.url}/_plugins/_ml/agents/{deployment.agents[agent]}/_execute"
    async with aiohttp.ClientSession() as client, client.post(url, json=QUESTION) as response:
        return await response.json()


def agents(version: str) -> list[str]:
    """Return an agent of each type, which takes a question."""
    if version == "2.19.0":
        return ["flow-d", "cflow-d", "conv-d"]
    legacy = [f"{kind}-bedrock_tutorial" for kind in ("flow", "cflow", "conv", "fc")]
    return legacy if version == "3.4.0" else [*legacy, "v1-openai"]


def outputs(answer: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one for one in answer["inference_results"][0]["output"]}


@pytest.mark.parametrize("body", [INPUT, QUESTION], ids=["input", "question"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_by_rule_every_agent_answers_in_the_unified_form(
    start_deployment: StartDeployment, version: str, body: dict[str, Any]
) -> None:
    deployment = await start_deployment(version, UNIFIED)
    for agent in agents(version):
        response = await deployment.execute(agent, body)
        answer = await response.json()
        assert response.status == 200, answer
        assert answer == unified("This is the simulated model's answer.", answer.get("memory_id", ""))
        assert ("memory_id" in answer) is not agent.startswith("flow")
        assert response.content_type == "application/json"


async def test_the_cluster_s_memory_is_continued(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment("2.19.0", UNIFIED)
    agent = next(agent for agent in deployment.agents if agent.startswith("conv-"))
    first = await (await deployment.execute(agent, {"input": "my dog is Rex"})).json()
    again = {"input": "who?", "parameters": {"memory_id": first["memory_id"]}}
    assert (await (await deployment.execute(agent, again)).json())["memory_id"] == first["memory_id"]
    assert "my dog is Rex" in json.dumps(deployment.simulator.received[-1])


@pytest.mark.parametrize("output", ["auto", "legacy"])
async def test_other_answers_are_the_cluster_s_own(start_deployment: StartDeployment, output: str) -> None:
    deployment = await start_deployment("2.19.0", {"agents": {"rules": [{"agent": "*", "output": output}]}})
    for agent in agents("2.19.0"):
        through = outputs(await (await deployment.execute(agent, QUESTION)).json())
        assert through.keys() == outputs(await directly(deployment, agent)).keys()


async def test_errors_keep_their_form(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment("3.4.0", UNIFIED)
    agent = next(agent for agent in deployment.agents if agent.startswith("conv-"))
    body = {"input": "hello", "parameters": {"memory_id": "unknown"}}
    response = await deployment.execute(agent, body)
    assert (response.status, (await response.json())["status"]) == (404, 404)


FINAL = {"inference_results": [{"output": [{"name": "memory_id", "result": "m"}, {"name": "response", "result": "a"}]}]}
OFF = "Standardized input cannot be used if unified agent API is not enabled."
REFUSED = (400, {"error": {"reason": OFF, "root_cause": [{"type": "illegal_argument_exception", "reason": OFF}]}})
BACKGROUND = {"task_id": "t", "status": "RUNNING", "response": {"memory_id": "m"}}
NATIVE = {"stop_reason": "end_turn", "message": {"role": "assistant", "content": []}, "memory_id": "m", "metrics": {}}


@pytest.mark.parametrize("listener", ["own", "aiohttp"])
@pytest.mark.parametrize("coding", ["gzip", "identity"])
async def test_answers_of_a_cluster_that_takes_input(start_gateway: StartGateway, coding: str, listener: str) -> None:
    cluster = Cluster()
    async with server_of(cluster) as server:
        settings: dict[str, Any] = {**UNIFIED, **({"listen": {"http": "aiohttp"}} if listener == "aiohttp" else {})}
        gateway = await start_gateway(f"http://127.0.0.1:{server.port}", None, settings)
        url, headers = f"http://127.0.0.1:{gateway.data_port}", {"Accept-Encoding": coding}
        async with aiohttp.ClientSession(url, headers=headers) as session:
            client = Client(cluster, session)

            async def ask(agent: str, *answers: Any) -> Any:
                cluster.answers, cluster.bodies = list(answers), []
                response = await client.execute(agent, INPUT)
                return response.status, await response.json()

            assert await ask(V1, (200, FINAL)) == (200, unified("a", "m"))
            assert await ask(V1, REFUSED, (200, FINAL)) == (200, unified("a", "m"))  # sent again as a question
            assert await ask(V1, (200, BACKGROUND)) == (200, BACKGROUND)
            assert await ask(V1, (200, {"other": 1})) == (200, {"other": 1})
            assert await ask(V2, (200, NATIVE)) == (200, NATIVE)


async def test_an_event_stream_is_sent_on_as_it_comes(
    start_gateway: StartGateway,
) -> None:
    event = b"data: " + json.dumps(FINAL).encode() + b"\n\n"
    more, requested = asyncio.Event(), asyncio.Event()

    async def stream(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.method == "GET":
            return await cluster.answer(request)
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event)
        requested.set()
        await more.wait()
        await response.write(event)
        return response

    cluster = Cluster()
    app = aiohttp.web.Application()
    app.router.add_route("*", "/{tail:.*}", stream)
    async with aiohttp.test_utils.TestServer(app) as server:
        gateway = await start_gateway(f"http://127.0.0.1:{server.port}", None, UNIFIED)
        path = f"http://127.0.0.1:{gateway.data_port}{ML}/agents/{V1}/_execute/stream"
        async with aiohttp.ClientSession() as client, client.post(path, json=INPUT) as response:
            assert await response.content.readexactly(len(event)) == event
            more.set()
            assert (await response.content.read()).startswith(event + b'data: {"error":"The cluster\'s answer ended')


async def test_a_v2_agent_with_the_cluster_s_memory() -> None:
    async with deploy() as deployment:
        deployment.simulator.script(["the answer"])
        memory = {"type": "conversation_index"}
        body = deployment.body(type="conversational_v2", memory=memory, tools=[])
        _, document = await deployment.register(body)
        status, answer = await deployment.execute(document["agent_id"], "hello")
        assert (status, answer) == (200, unified("the answer", answer["memory_id"]))
        assert not answer["memory_id"].startswith("gws-")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_v2_agent_with_memory_of_the_gateway(version: str) -> None:
    async with deploy(version) as deployment:
        deployment.simulator.script(["the answer"])
        _, document = await deployment.register(deployment.body(type="conversational_v2", tools=[]))
        status, answer = await deployment.execute(document["agent_id"], "hello")
        assert (status, answer) == (200, unified("the answer", answer["memory_id"]))
        assert answer["memory_id"].startswith("gws-")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_v2_agent_of_one_run(version: str) -> None:
    async with deploy(version) as deployment:
        deployment.simulator.script(["the answer"])
        body = {"type": "conversational_v2", "model": deployment.model(), "tools": [], "input": "hello"}
        status, answer, _ = await deployment.call("POST", f"{ML}/agents/_execute", body)
        assert (status, answer) == (200, unified("the answer", answer["memory_id"]))
        assert not answer["memory_id"].startswith("gws-")
        assert deployment.counts == (0, 0, 0)

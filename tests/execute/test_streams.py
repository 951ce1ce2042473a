"""``_execute/stream`` through the gateway on the simulator, which streams: the events, and what the LLM got."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.execute.deliveries import DELIVERY, NOTICE
from gateway.execute.run_answer import read_answer
from gateway.execute.run_events import NOT_READ
from gateway.simulator.core import ClusterCore
from gateway.simulator.errors import NoAnswer
from gateway.simulator.fixtures import agent_bodies, connector_body, seed_core, templates
from gateway.simulator.llm import Call
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway
from tests.delivery.cases import IMAGE

HOSTILE = 'say ${parameters.nosuch} "q" \\ \\u0024{parameters.model} 漢 {"a":1}'
ANSWER = "This is the simulated model's answer."


class Cluster:
    """A simulated cluster that streams, and the gateway before it."""

    def __init__(self, simulator: Simulator, client: aiohttp.ClientSession, agents: dict[str, str]) -> None:
        self.simulator, self.agents, self._client = simulator, agents, client

    async def ask(
        self, agent: str, body: Any, stream: bool = True, direct: bool = False
    ) -> tuple[aiohttp.ClientResponse, list[Any], Any]:
        """Return the response, the events, or the error's first problem, and what the LLM got last."""
        base = self.simulator.url if direct else ""
        path = f"{base}/_plugins/_ml/agents/{self.agents[agent]}/_execute{'/stream' if stream else ''}"
        self.simulator.llm.clear()
        async with self._client.post(path, json=body) as response:
            text = await response.text()
        received = self.simulator.received[-1] if self.simulator.received else None
        if response.status != 200:
            return response, json.loads(text)["error"].get("problems"), received
        events = text.removesuffix("\n\n").split("\n\n") if stream else [f"data:{text}"]
        return response, [json.loads(event.removeprefix("data:")) for event in events], received


@pytest.fixture(params=["3.4.0", "3.6.0", "3.8.0"])
async def cluster(request: pytest.FixtureRequest, start_gateway: StartGateway) -> AsyncIterator[Cluster]:
    async with Simulator(request.param, streams=True) as simulator:
        agents = seed_core(simulator.core, simulator.llm_url)
        gateway = await start_gateway(simulator.url)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            yield Cluster(simulator, client, agents)


def contents(events: list[Any]) -> list[str]:
    outputs = [event["inference_results"][0]["output"] for event in events]
    assert all(output[-1]["dataAsMap"]["is_last"] is (output is outputs[-1]) for output in outputs)
    return [output[-1]["dataAsMap"]["content"] for output in outputs]


def streaming(cluster: Cluster) -> list[str]:
    return ["fc-openai_tutorial", "fc-openai_upgraded", *(["v1-openai"] if "v1-openai" in cluster.agents else [])]


async def test_a_hostile_text_arrives_and_is_answered_in_pieces(cluster: Cluster) -> None:
    for agent in streaming(cluster):
        response, events, received = await cluster.ask(agent, {"input": HOSTILE})
        assert response.content_type == "text/event-stream"
        assert "".join(contents(events)) == ANSWER
        assert len(events) > 3
        assert received["stream"] is True
        assert received["messages"][-1] == {"role": "user", "content": HOSTILE}
        _, (answer,), unstreamed = await cluster.ask(agent, {"input": HOSTILE}, stream=False)
        assert ANSWER in str(answer)
        assert {**unstreamed, "stream": True} == received


async def test_an_image_arrives_in_a_stream(cluster: Cluster) -> None:
    for agent in streaming(cluster):
        blocks = [{"type": "text", "text": HOSTILE}, IMAGE, {"type": "text", "text": "(end)"}]
        _, events, received = await cluster.ask(agent, {"input": blocks})
        assert "".join(contents(events)) == ANSWER
        sent = json.dumps(received, ensure_ascii=False)
        assert json.dumps(HOSTILE, ensure_ascii=False)[1:-1] in sent
        assert IMAGE["source"]["data"] in sent


async def test_a_tool_is_called_in_a_stream(cluster: Cluster) -> None:
    ask = {"input": "list ${parameters.x}"}
    for agent in streaming(cluster):
        cluster.simulator.llm.clear()
        cluster.simulator.script([Call("ListIndexTool", {"indices": ["*"]}, text="")])
        clear, cluster.simulator.llm.clear = cluster.simulator.llm.clear, lambda: None  # type: ignore[method-assign]
        _, events, received = await cluster.ask(agent, ask)
        cluster.simulator.llm.clear = clear  # type: ignore[method-assign]
        pieces = contents(events)
        (call,) = json.loads(pieces[1])["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "ListIndexTool"
        assert pieces[2].startswith("row,")
        assert "".join(pieces[3:]) == ANSWER
        assert [turn["role"] for turn in received["messages"][-3:]] == ["user", "assistant", "tool"]


async def test_without_the_gateways_flag_the_cluster_refuses_the_text_in_an_event(cluster: Cluster) -> None:
    """The body of a stream is written again before placeholders are looked for (3.8.0 41_stream_cases, fc.A_safe)."""
    raw = "_chat_history,_tools,_interactions,tool_configs,prompt"
    parameters = {"question": "q", "prompt": "say \\u0024{parameters.nosuch}", "no_escape_params": raw}
    body = {"parameters": parameters}
    _, _, received = await cluster.ask("fc-openai_tutorial", body, stream=False, direct=True)
    assert received["messages"][-1]["content"] == "say ${parameters.nosuch}"
    _, events, received = await cluster.ask("fc-openai_tutorial", body, direct=True)
    assert events == [{"error": "Some parameter placeholder not filled in payload: nosuch"}]
    assert received is None


async def test_the_llms_error_is_an_event(cluster: Cluster) -> None:
    _, (event,), _ = await cluster.ask("fc-openai_tutorial", {"input": "FAIL429"})
    memory_id, parent, response = event["inference_results"][0]["output"]
    assert (memory_id["result"], parent["result"]) == ("", "")
    assert response["dataAsMap"]["content"].startswith("Error from remote service: ")
    assert response["dataAsMap"]["is_last"] is True


async def test_an_agent_that_cannot_stream_answers_in_one_piece(cluster: Cluster) -> None:
    """The cluster would send nothing and hold a thread for each (3.8.0 40_stream), or an error as the answer."""
    agents = ["flow-openai_tutorial", "cflow-openai_tutorial", "conv-openai_tutorial", "per-openai_tutorial"]
    for agent in [*agents, "fc-bedrock_tutorial"]:  # the last one's connector does not sign its requests
        _, (answer,), unstreamed = await cluster.ask(agent, {"input": HOSTILE}, stream=False)
        response, events, received = await cluster.ask(agent, {"input": HOSTILE})
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert response.headers[NOTICE].endswith("STREAM_IN_ONE_PIECE")
        assert received == unstreamed
        text = read_answer(NOT_READ, json.dumps(answer).encode()).text
        assert text
        assert "".join(contents(events)) == text
    core, asked = cluster.simulator.core, {"parameters": {"question": "hello"}}
    failed = core.execute_streamed(cluster.agents["conv-openai_tutorial"], asked)
    assert "Fail to execute streaming" in failed.body
    for agent in ("flow-openai_tutorial", "cflow-openai_tutorial", "per-openai_tutorial"):
        with pytest.raises(NoAnswer):
            core.execute_streamed(cluster.agents[agent], asked)


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0", "3.6.0"])
async def test_a_cluster_without_streams_answers_in_one_piece(version: str, start_gateway: StartGateway) -> None:
    """2.x has no such path; later clusters answer 500 without the transport that streams."""
    async with Simulator(version) as simulator:
        agents = seed_core(simulator.core, simulator.llm_url)
        gateway = await start_gateway(simulator.url)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            cluster = Cluster(simulator, client, agents)
            old = ["conv-d", "flow-d"]
            for agent in (
                old if version < "3" else ["flow-openai_tutorial", "conv-openai_tutorial", "fc-openai_tutorial"]
            ):
                response, events, received = await cluster.ask(agent, {"input": [{"type": "text", "text": HOSTILE}]})
                assert (response.status, response.headers[NOTICE].split(", ")[-1]) == (200, "STREAM_IN_ONE_PIECE")
                assert ANSWER in "".join(contents(events))
                assert HOSTILE in texts(received)


def texts(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(
        map(texts, value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    )


def signed_agent(simulator: Simulator, name: str) -> str:
    """Register an agent that calls functions, whose connector signs its requests. Return its id."""
    core, template = simulator.core, templates(simulator.core.version)[name]
    connector = connector_body(name, template, simulator.llm_url)
    connector["parameters"] |= {"region": "us-east-1", "service_name": "bedrock"}
    connector |= {"protocol": "aws_sigv4", "credential": {"access_key": "a", "secret_key": "s"}}
    model = {"name": "signed", "function_name": "remote", **core.resources.create_connector(connector)}
    model_id = core.resources.register_model(model, deploy=True)["model_id"]
    agents = {body["name"]: body for body in agent_bodies(core.version, name, template, model_id)}
    return str(core.resources.register_agent(agents[f"fc-{name}"])["agent_id"])


async def test_what_a_stream_would_drop_arrives_with_an_answer_in_one_piece(start_gateway: StartGateway) -> None:
    """Streams of Bedrock have no images before 3.5."""
    async with Simulator("3.4.0", streams=True) as simulator:
        gateway, agent = await start_gateway(simulator.url), "signed"
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            cluster = Cluster(simulator, client, {agent: signed_agent(simulator, "bedrock_upgraded")})
            response, events, _ = await cluster.ask(agent, {"input": "hello"})
            assert NOTICE not in response.headers
            assert len(events) > 3
            blocks = [{"type": "text", "text": HOSTILE}, IMAGE]
            response, events, received = await cluster.ask(agent, {"input": blocks})
            assert "STREAM_IN_ONE_PIECE" in response.headers[NOTICE]
            assert "".join(contents(events)) == ANSWER
            assert IMAGE["source"]["data"] in texts(received)


async def test_a_parameter_that_streams_to_nobody_is_refused(cluster: Cluster) -> None:
    """With `stream` a cluster never answers a run without a stream (tried on 3.6.0)."""
    body = {"input": "hello", "parameters": {"stream": "false"}}
    response, (problem,), received = await cluster.ask("fc-openai_tutorial", body, stream=False)
    assert (response.status, problem["code"], problem["field"]) == (400, "STREAM_UNSUPPORTED", "parameters.stream")
    assert received is None
    ask = {"parameters": {"question": "hello", "stream": "false"}}
    with pytest.raises(NoAnswer):
        cluster.simulator.core.execute(cluster.agents["fc-openai_tutorial"], ask)
    response, events, received = await cluster.ask("fc-openai_tutorial", body)
    assert "".join(contents(events)) == ANSWER
    assert received["messages"][-1]["content"] == "hello"
    assert response.headers[DELIVERY].startswith("strategy=")


def test_2_19_has_no_streams() -> None:
    """There, `stream` is a parameter like any other."""
    core = ClusterCore("2.19.0")
    agents = seed_core(core)
    answered = core.execute(agents["conv-d"], {"parameters": {"question": "hello", "stream": "true"}})
    assert answered.status == 200

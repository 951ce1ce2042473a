"""OpenAI's API with OpenAI's own client, on simulated clusters."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from gateway.adapters.openai_chat import read_request, write_input
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Connector, Model
from gateway.simulator.llm import Call
from tests.adapters.conftest import ANSWER, Deploy

PNG = "data:image/png;base64,iVBORw0KGgo="
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "Costs $1.", "parameters": {"type": "object", "properties": {}}},
}
TALK: list[Any] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is ${parameters.x}?"},
    {"role": "assistant", "content": "A placeholder."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "And this?"}, {"type": "image_url", "image_url": {"url": PNG}}],
    },
]


@pytest.mark.parametrize(
    ("version", "agents"),
    [
        ("2.19.0", ["flow-d", "conv-d"]),
        ("3.4.0", ["fc-openai_tutorial", "flow-openai_messages"]),
        ("3.6.0", ["v1-openai", "flow-openai_messages"]),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_conversation_on_every_cluster(deploy: Deploy, version: str, agents: list[str], streams: bool) -> None:
    async with deploy(version, streams=streams) as deployed, deployed.openai() as client:
        for agent in agents:
            messages = TALK if "openai" in agent else [{"role": "user", "content": "What is ${parameters.x}?"}]
            for model in (agent, deployed.agents[agent]):
                answer = await client.chat.completions.create(model=model, messages=messages)
                (choice,) = answer.choices
                assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
                assert (answer.model, answer.usage) == (model, None)
                sent = json.dumps(deployed.asked)
                assert "What is ${parameters.x}?" in sent
                assert (PNG in sent) is (messages is TALK)
            pieces = await client.chat.completions.create(model=agent, messages=messages, stream=True)
            chunks = [chunk async for chunk in pieces]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
            assert chunks[0].choices[0].delta.role == "assistant"
            assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
            assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


async def test_the_tokens_of_an_answer_that_reports_them(deploy: Deploy) -> None:
    """A flow whose answer is the LLM's whole response."""
    question: list[Any] = [{"role": "user", "content": "hi"}]
    async with deploy("3.6.0") as deployed, deployed.openai() as client:
        agent = raw_flow(deployed)
        usage = (await client.chat.completions.create(model=agent, messages=question)).usage
        assert usage is not None
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0
        stream = await client.chat.completions.create(
            model=agent, messages=question, stream=True, stream_options={"include_usage": True}
        )
        *others, last = [chunk async for chunk in stream]
        assert (last.choices, last.usage) == ([], usage)
        assert all(chunk.usage is None for chunk in others)


async def test_models_are_agents(deploy: Deploy) -> None:
    async with deploy("2.19.0") as deployed, deployed.openai() as client:
        models = (await client.models.list()).data
        assert {model.id for model in models} == set(deployed.agents.values())
        assert {model.name for model in models} == set(deployed.agents)
        one = await client.models.retrieve("conv-d")
        assert (one.id, one.created) == ("conv-d", 0)
        with pytest.raises(openai.NotFoundError) as raised:
            await client.models.retrieve("nosuch")
        assert raised.value.code == "model_not_found"


async def test_the_operator_names_the_agents(deploy: Deploy) -> None:
    async with deploy("2.19.0") as first:
        over = {"adapters": {"agents": {"helper": first.agents["conv-d"]}}}
    async with deploy("2.19.0", over) as deployed, deployed.openai() as client:
        assert [model.id for model in (await client.models.list()).data] == list(over["adapters"]["agents"].values())
        for other in ("conv-d", deployed.agents["flow-d"]):
            with pytest.raises(openai.NotFoundError, match="It is one of helper"):
                await client.chat.completions.create(model=other, messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [FUNCTION]}, "tool_choice"),
        ({"tools": [{**FUNCTION, "x": 1}]}, "tools[0].x"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1]"),
        ({"tools": "x"}, "tools[0]"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"audio": {"voice": "v"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "nosuch"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "hi", "name": "ann"}]}, "messages[0].name"),
        ({"messages": []}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"model": ""}, "model"),
    ],
)
async def test_what_no_agent_can_do_is_refused_at_its_member(deploy: Deploy, more: Any, param: str) -> None:
    body = {"model": "conv-d", "messages": [{"role": "user", "content": "hi"}], **more}
    async with deploy("2.19.0") as deployed, deployed.http() as client:
        async with client.post("/v1/chat/completions", json=body) as response:
            error = (await response.json())["error"]
        assert (response.status, error["param"], error["type"]) == (400, param, "invalid_request_error")
        assert set(error) == {"message", "type", "param", "code"}
        assert deployed.simulator.received == []


async def test_what_changes_nothing_is_accepted(deploy: Deploy) -> None:
    more: Any = {
        "n": 1, "user": "ann", "metadata": {"a": "b"}, "store": True, "logprobs": False, "seed": 1, "temperature": 0.5,
        "response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": True, "stop": None,
        "service_tier": "auto",
    }  # fmt: skip
    tools: Any = [FUNCTION]
    async with deploy("2.19.0") as deployed, deployed.openai() as client:
        answer = await client.chat.completions.with_raw_response.create(
            model="conv-d", messages=[{"role": "user", "content": "hi"}], tools=tools, **more
        )
        notices = answer.headers["x-mlc-gateway-notice"].split(", ")
        assert sorted(notices) == ["SAMPLING_LEFT_OUT", "TOOLS_LEFT_OUT"]  # none of the stream that it was not


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"messages": []},
            "[messages] Invalid input format. Expected string, array of content blocks, or array of messages.",
        ),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": "required"},
            '[tool_choice] A tool has to be called, and there are none. Expected "tools" beside it.',
        ),
    ],
)
async def test_an_error_without_help_says_what_is_expected(more: Any, message: str, deploy: Deploy) -> None:
    body = {"model": "conv-d", "messages": [{"role": "user", "content": "hi"}], **more}
    async with deploy("2.19.0") as deployed, deployed.http() as client:
        async with client.post("/v1/chat/completions", json=body) as response:
            error = (await response.json())["error"]
        assert (response.status, error["message"], error["code"]) == (400, message, "ValidationException")


@pytest.mark.parametrize(
    ("path", "headers", "status", "message"),
    [
        ("/v1/nowhere", {}, 404, "There is no GET /v1/nowhere on this port."),
        ("/v1/chat/completions", {}, 405, "There is no GET /v1/chat/completions on this port."),
        ("/v1/models", {"Origin": "https://a.example"}, 403, "Pages of 'https://a.example' may not use this port; "),
        ("/v1/models", {"Host": "a.example"}, 403, "This port does not answer for the host 'a.example'; "),
    ],
)
async def test_what_the_port_refuses_has_neither_a_code_nor_a_place(
    path: str, headers: dict[str, str], status: int, message: str, deploy: Deploy
) -> None:
    async with deploy("2.19.0") as deployed, deployed.http() as client:
        async with client.get(path, headers=headers) as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"], error["param"]) == (status, None, None)
        assert error["message"].startswith(message)


async def test_an_input_that_can_t_arrive_is_refused_with_its_remedy(deploy: Deploy) -> None:
    image: list[Any] = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}]
    async with deploy("2.19.0") as deployed, deployed.openai() as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="mlc-gateway upgrade") as raised:
                await client.chat.completions.create(model="conv-d", messages=image, stream=stream)
            assert raised.value.param == "messages[0].content[0]"
            assert raised.value.response.headers.get("x-should-retry") is None


async def test_a_run_that_failed_is_not_repeated(deploy: Deploy) -> None:
    question: list[Any] = [{"role": "user", "content": "FAIL429"}]
    async with deploy("2.19.0") as deployed, deployed.openai(max_retries=2) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model="conv-d", messages=question)
        assert raised.value.response.headers["x-should-retry"] == "false"
        assert len(deployed.simulator.received) == 1
    async with deploy("3.6.0", streams=True) as deployed, deployed.openai() as client:
        with pytest.raises(openai.APIError, match="Error from remote service"):
            async for _ in await client.chat.completions.create(
                model="fc-openai_tutorial", messages=question, stream=True
            ):
                pass


async def test_a_call_that_an_agent_lets_out_is_a_tool_call(deploy: Deploy) -> None:
    """A flow whose answer is the LLM's whole response. The result is the next request's."""
    async with deploy("3.6.0") as deployed, deployed.openai() as client:
        agent = "flow-openai_raw"
        deployed.agents[agent] = raw_flow(deployed)
        deployed.simulator.script([Call("f", {"a": 1}, text="")])
        question: list[Any] = [{"role": "user", "content": "call it"}]
        (choice,) = (await client.chat.completions.create(model=agent, messages=question)).choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("f", {"a": 1})
        deployed.simulator.script([Call("f", {"a": 1}, text="")])
        stream = await client.chat.completions.create(model=agent, messages=question, stream=True)
        deltas = [chunk.choices[0] async for chunk in stream]
        assert deltas[-1].finish_reason == "tool_calls"
        (told,) = deltas[-2].delta.tool_calls or []
        assert told.function is not None
        assert (told.index, told.function.name) == (0, "f")


async def test_tools_of_the_client_are_called_and_answered(deploy: Deploy) -> None:
    """By a flow: whole, as a stream, with a required call, and beside tools that only OpenAI runs."""
    tools: Any = [FUNCTION, {"type": "web_search"}]
    async with deploy("3.6.0") as deployed, deployed.openai() as client:
        agent = raw_flow(deployed, "openai_tutorial")
        question: list[Any] = [{"role": "user", "content": "call it"}]
        deployed.simulator.script([Call("f", {"a": 1}, text="")])
        answer = await client.chat.completions.with_raw_response.create(model=agent, messages=question, tools=tools)
        assert answer.headers["x-mlc-gateway-notice"].split(", ").count("TOOLS_LEFT_OUT") == 1
        assert deployed.asked["tools"] == [FUNCTION]
        message = answer.parse().choices[0].message
        (call,) = message.tool_calls or []
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        told = [*question, message.model_dump(exclude_none=True), result]
        last = await client.chat.completions.create(model=agent, messages=told, tools=tools[:1], stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in last]) == ANSWER
        assert deployed.asked["tools"] == [FUNCTION]
        assert [turn["role"] for turn in deployed.asked["messages"][-2:]] == ["assistant", "tool"]
        await client.chat.completions.create(model=agent, messages=told, tools=tools[:1], tool_choice="required")
        assert deployed.asked["tool_choice"] == "required"


async def test_a_pdf_and_a_tool_s_round_trip(deploy: Deploy) -> None:
    pdf = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0x"}}
    async with deploy("3.6.0") as deployed, deployed.openai() as client:
        agent = raw_flow(deployed)
        question: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "call it"}, pdf]}]
        deployed.simulator.script([Call("f", {"a": 1}, text="")])
        message = (await client.chat.completions.create(model=agent, messages=question)).choices[0].message
        assert "JVBERi0x" in json.dumps(deployed.asked)
        (call,) = message.tool_calls or []
        result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        answer = await client.chat.completions.create(
            model=agent, messages=[*question, message.model_dump(exclude_none=True), result]
        )
        assert answer.choices[0].message.content == ANSWER
        asked, told, answered = deployed.asked["messages"][-3:]
        assert told["tool_calls"][0]["id"] == answered["tool_call_id"] == call.id
        assert (asked["role"], answered["content"]) == ("user", "done")


def raw_flow(deployed: Any, template: str = "openai_messages") -> str:
    """Register a flow whose answer the cluster does not filter."""
    core = deployed.simulator.core
    shown = core.resources.agent(deployed.agents[f"flow-{template}"])
    body = {name: shown[name] for name in ("type", "tools")}
    for tool in body["tools"]:
        tool.get("parameters", {}).pop("response_filter", None)
    return str(core.resources.register_agent({"name": "flow-openai_raw", **body})["agent_id"])


def test_sampling_goes_where_the_template_has_a_place() -> None:
    connector = Connector(
        "c",
        "http",
        "http://llm",
        '{"t":${parameters.temperature},"m":${parameters.messages},"s":${parameters.seed:-1}}',
    )
    agent = AgentProfile("a", "a", "conversational", (3, 6, 0), Generation.FUNCTION_CALLING, llm=Model("m", connector))
    asked = read_request(b'{"model":"a","messages":[{"a":1.10}],"temperature":0.50,"top_p":1,"seed":7}')
    body, notices = write_input(asked, agent)
    assert body == b'{"input":[{"a":1.10}],"parameters":{"temperature":0.5,"seed":7}}'
    assert notices == ["SAMPLING_LEFT_OUT"]

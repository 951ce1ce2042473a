"""The Responses API with OpenAI's own client, on simulated clusters, and on sessions of the gateway."""

from __future__ import annotations

import json
import re
from typing import Any

import aiohttp
import openai
import pytest

from gateway.adapters.errors import AdapterError
from gateway.adapters.openai_responses import read_request
from gateway.simulator.llm import Call
from tests.adapters.conftest import ANSWER, Deploy, Deployed
from tests.adapters.test_listener import PORT, Broken, serving
from tests.adapters.test_openai_chat import PNG, raw_flow
from tests.conftest import StartGateway
from tests.execute.stub_cluster import V1
from tests.execute.test_stream_watch import STREAM

KEPT = {"agents": {"rules": [{"agent": "*", "memory": "gateway"}]}}
UNKNOWN = {"role": "user", "content": [{"type": "x"}]}
ANN, BOB = {"Authorization": "Basic YW5uOng="}, {"Authorization": "Basic Ym9iOng="}


def sent(deployed: Deployed) -> str:
    return json.dumps(deployed.asked)


@pytest.mark.parametrize(
    ("version", "agent"), [("2.19.0", "conv-d"), ("3.4.0", "fc-openai_tutorial"), ("3.6.0", "v1-openai")]
)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_response_on_every_cluster(deploy: Deploy, version: str, agent: str, streams: bool) -> None:
    async with deploy(version, streams=streams) as deployed, deployed.openai() as client:
        answer = await client.responses.create(model=agent, input="say ${parameters.x}", metadata={"a": "b"})
        assert (answer.output_text, answer.status, answer.metadata) == (ANSWER, "completed", {"a": "b"})
        assert answer.model_dump()["store"] is False  # the gateway keeps no sessions of it
        assert "say ${parameters.x}" in sent(deployed)
        async with client.responses.stream(model=agent, input="say it") as stream:
            events = [event async for event in stream]
            assert (await stream.get_final_response()).output_text == ANSWER
        assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})
        assert events[0].type == "response.created"
        assert events[-1].type == "response.completed"


async def test_items_and_instructions_reach_the_llm(deploy: Deploy) -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "first"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": ""},
        {"type": "message", "id": "m", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "done", "annotations": []}]},
        {"role": "user", "content": [
            {"type": "input_image", "image_url": PNG, "detail": "low"}, {"type": "input_text", "text": "last"}]},
    ]  # fmt: skip
    async with deploy("3.6.0") as deployed, deployed.openai() as client:
        answer = await client.responses.with_raw_response.create(
            model="flow-openai_messages", input=items, instructions="Be kind."
        )
        assert "MESSAGES_LEFT_OUT" in answer.headers["x-mlc-gateway-notice"]
        messages = deployed.asked["messages"]
        assert [message["role"] for message in messages[-6:]] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "user",
        ]
        assert [call["id"] for call in messages[-5]["tool_calls"]] == ["c1", "c2"]
        assert "Be kind." in sent(deployed)
        assert messages[-1]["content"][0]["image_url"] == {"url": PNG, "detail": "low"}


async def test_a_conversation_by_its_previous_response(deploy: Deploy) -> None:
    async with deploy("3.4.0", KEPT, streams=True) as deployed, deployed.openai(default_headers=ANN) as client:
        agent = "fc-openai_tutorial"
        first = await client.responses.create(model=agent, input="one", instructions="Be kind.")
        second = await client.responses.create(model=agent, input="two", previous_response_id=first.id)
        assert "one" in sent(deployed)
        assert "Be kind." not in sent(deployed)  # instructions are not inherited
        third = await client.responses.create(model=agent, input="three", previous_response_id=second.id, stream=True)
        (completed,) = [event.response async for event in third if event.type == "response.completed"]
        assert [word in sent(deployed) for word in ("one", "two", "three")] == [True] * 3
        await client.responses.create(model=agent, input="four", previous_response_id=first.id)  # another branch
        assert [word in sent(deployed) for word in ("one", "two", "three", "four")] == [True, False, False, True]
        await client.responses.create(model=agent, input="five", previous_response_id=first.id, store=False)
        assert [word in sent(deployed) for word in ("one", "two", "four", "five")] == [True, False, False, True]
        shown = await client.responses.retrieve(first.id)
        assert (shown.id, shown.output_text) == (first.id, ANSWER)
        assert completed.previous_response_id == second.id
        for id in ("resp_none", first.id[:-1] + "9", "resp_x-" + "0" * 24 + "-1"):
            with pytest.raises(openai.NotFoundError) as raised:
                await client.responses.create(model=agent, input="six", previous_response_id=id)
            assert raised.value.code == "previous_response_not_found"
        async with deployed.openai(default_headers=BOB) as other:
            with pytest.raises(openai.NotFoundError):
                await other.responses.create(model=agent, input="mine", previous_response_id=first.id)
            with pytest.raises(openai.NotFoundError):
                await other.responses.retrieve(first.id)


async def test_a_response_is_deleted_with_its_session(deploy: Deploy) -> None:
    async with deploy("3.4.0", KEPT, streams=True) as deployed, deployed.openai(default_headers=ANN) as client:
        agent = "fc-openai_tutorial"
        first = await client.responses.create(model=agent, input="one")
        async with deployed.openai(default_headers=BOB) as other:
            with pytest.raises(openai.NotFoundError):
                await other.responses.delete(first.id)
        async with deployed.http() as http, http.delete(f"/v1/responses/{first.id}", headers=ANN) as response:
            assert (response.status, await response.json()) == (
                200,
                {"id": first.id, "object": "response", "deleted": True},
            )
        for ask in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError) as raised:
                await ask(first.id)
            assert (raised.value.code, raised.value.param) == ("response_not_found", "response_id")
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model=agent, input="two", previous_response_id=first.id)


async def test_one_of_several_responses_is_not_deleted(deploy: Deploy) -> None:
    async with deploy("3.4.0", KEPT, streams=True) as deployed, deployed.openai(default_headers=ANN) as client:
        agent = "fc-openai_tutorial"
        first = await client.responses.create(model=agent, input="one")
        second = await client.responses.create(model=agent, input="two", previous_response_id=first.id)
        for one in (first, second):
            with pytest.raises(openai.BadRequestError, match="one of 2 of a conversation") as raised:
                await client.responses.delete(one.id)
        (path,) = re.findall(r"DELETE (\S+) on", raised.value.message)
        assert (await client.responses.retrieve(second.id)).output_text == ANSWER
        port = deployed.gateway.data_port
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http, http.delete(path, headers=ANN) as done:
            assert (done.status, await done.json()) == (200, {"success": True})
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)


async def test_input_items_and_cancelling_are_answered_with_what_to_do(deploy: Deploy) -> None:
    async with deploy("2.19.0") as deployed, deployed.openai() as client:
        first = await client.responses.create(model="conv-d", input="one")
        with pytest.raises(openai.BadRequestError, match="close its connection"):
            await client.responses.cancel(first.id)
        with pytest.raises(openai.BadRequestError, match="/messages on the gateway's data port"):
            await client.responses.input_items.list(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(first.id)


async def test_what_is_not_kept_can_t_be_continued(deploy: Deploy) -> None:
    async with deploy("2.19.0") as deployed, deployed.openai() as client:
        first = await client.responses.create(model="conv-d", input="one")
        with pytest.raises(openai.BadRequestError, match="memory: gateway") as raised:
            await client.responses.create(model="conv-d", input="two", previous_response_id=first.id)
        assert raised.value.param == "previous_response_id"


async def test_a_call_that_an_agent_lets_out(deploy: Deploy) -> None:
    async with deploy("3.6.0") as deployed, deployed.openai() as client:
        agent = raw_flow(deployed)
        for stream in (False, True):
            deployed.simulator.script([Call("f", {"a": 1}, text="")])
            if stream:
                events = await client.responses.create(model=agent, input="call it", stream=True)
                (answer,) = [event.response async for event in events if event.type == "response.completed"]
            else:
                answer = await client.responses.create(model=agent, input="call it")
            (call,) = answer.output
            assert call.type == "function_call"
            assert (call.name, json.loads(call.arguments)) == ("f", {"a": 1})


async def test_tools_of_the_client_in_a_conversation_that_is_kept(deploy: Deploy) -> None:
    """The call of one response is answered in the next, which names it."""
    tool: Any = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    async with deploy("3.6.0", KEPT) as deployed, deployed.openai(default_headers=ANN) as client:
        agent = raw_flow(deployed, "openai_tutorial")
        deployed.simulator.script([Call("f", {"a": 1}, text="")])
        answer = await client.responses.create(model=agent, input="call it", tools=[tool])
        function = {name: value for name, value in tool.items() if name != "type"}
        assert deployed.asked["tools"] == [{"type": "function", "function": function}]
        assert [one.model_dump(exclude_none=True) for one in answer.tools] == [tool]
        (call,) = answer.output
        assert call.type == "function_call"
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
        last = await client.responses.create(
            model=agent, input=result, previous_response_id=answer.id, tools=[tool, {"type": "web_search"}]
        )
        assert last.output_text == ANSWER
        assert [turn["role"] for turn in deployed.asked["messages"][-3:]] == ["user", "assistant", "tool"]
        assert deployed.asked["messages"][-1]["content"] == "done"
        with pytest.raises(openai.BadRequestError, match="runs its own tools only") as raised:
            await client.responses.create(
                model="fc-openai_tutorial", input="call it", tools=[tool], tool_choice="required"
            )
        assert raised.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_object"}}}, "text"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "reasoning"}, UNKNOWN], "instructions": "i"}, "input[1].content[0].type"),
        ({"input": []}, "input"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"store": "yes"}, "store"),
    ],
)  # fmt: skip
async def test_what_no_agent_can_do_is_refused_at_its_member(deploy: Deploy, more: Any, param: str) -> None:
    async with deploy("2.19.0") as deployed, deployed.http() as client:
        async with client.post("/v1/responses", json={"model": "conv-d", "input": "hi", **more}) as response:
            error = (await response.json())["error"]
        assert (response.status, error["param"]) == (400, param)
        assert deployed.simulator.received == []


@pytest.mark.parametrize("step", [61, pytest.param(13, marks=pytest.mark.slow)])
async def test_an_answer_that_ends_at_any_byte_is_a_failure(start_gateway: StartGateway, step: int) -> None:
    broken = Broken()
    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, PORT)
        base = f"http://127.0.0.1:{gateway.adapters_port}"
        client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0)
        async with client, aiohttp.ClientSession(base):
            for size in [*range(0, len(STREAM) - 5, step), len(STREAM) - 5]:
                broken.size = size
                events = [event async for event in await client.responses.create(model=V1, input="hi", stream=True)]
                assert events[-1].type == "response.failed"
                with pytest.raises(openai.APIError):
                    await client.responses.create(model=V1, input="hi")


def test_the_effort_of_reasoning_is_sampling() -> None:
    asked = read_request(b'{"model":"a","input":"hi","reasoning":{"effort":"low","summary":"auto"},"top_p":1}')
    assert asked.sampling == {"top_p": 1, "reasoning": "low"}
    assert read_request(b'{"model":"a","input":"hi","reasoning":{"summary":"auto"}}').sampling == {}
    with pytest.raises(AdapterError, match="reasoning"):
        read_request(b'{"model":"a","input":"hi","reasoning":"low"}')


async def test_an_effort_without_a_place_is_left_out_with_a_notice(deploy: Deploy) -> None:
    async with deploy("3.6.0") as deployed, deployed.openai() as client:
        answer = await client.responses.with_raw_response.create(
            model="flow-openai_messages", input="hi", reasoning={"effort": "low"}
        )
        assert "SAMPLING_LEFT_OUT" in answer.headers["x-mlc-gateway-notice"]

"""AG-UI on simulated clusters: the order of events, what the LLM gets, sessions, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter

from gateway.adapters.ag_ui import NOTICE, snapshot
from gateway.memory.model import Block, Message, StoredMessage
from gateway.simulator.llm import Call
from tests.adapters.conftest import ANSWER, Deploy, Deployed
from tests.adapters.test_openai_chat import raw_flow
from tests.adapters.verifier import replay, verify

PNG = "iVBORw0KGgo="
HOSTILE = 'say ${parameters.nosuch} "q" \\ 漢 {"a":1}'
_EVENT: TypeAdapter[Any] = TypeAdapter(Event)
OLD = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
"""What Dashboards sends with each request."""


def asks(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    numbered = [{"id": f"m{number}", **message} for number, message in enumerate(messages)]
    return {"threadId": "thread-1", "runId": "run-1", "messages": numbered, **OLD, **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def run(deployed: Deployed, agent: str, body: Any, **headers: str) -> list[dict[str, Any]]:
    """Return the events of a run, which the SDK's models and the verifier have accepted."""
    async with deployed.http() as client, client.post(f"/ag-ui/{agent}", json=body, headers=headers) as response:
        raw = await response.read()
        assert (response.status, response.content_type) == (200, "text/event-stream"), raw
    assert raw.isascii()
    assert b"\r" not in raw
    frames = [line for line in raw.split(b"\n\n") if line and not line.startswith(b":")]
    assert all(frame.startswith(b"data: ") for frame in frames)
    events = [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
    for event in events:
        _EVENT.validate_python(event)
    verify(events)
    return events


@pytest.mark.parametrize(
    ("version", "agents"),
    [
        ("2.19.0", ["conv-d", "flow-d"]),
        ("3.4.0", ["fc-openai_tutorial", "flow-openai_tutorial", "conv-openai_tutorial"]),
        ("3.6.0", ["v1-openai", "fc-openai_tutorial"]),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_conversation_on_every_cluster(deploy: Deploy, version: str, agents: list[str], streams: bool) -> None:
    async with deploy(version, streams=streams) as deployed:
        for agent in agents:
            events = await run(deployed, agent, asks(user(HOSTILE)))
            assert [event["type"] for event in events][:1] == ["RUN_STARTED"]
            assert events[0]["protocolVersion"] == "1.0"
            (message,) = replay(events)
            assert (message["role"], message["content"]) == ("assistant", ANSWER)
            assert HOSTILE in json.dumps(deployed.asked, ensure_ascii=False).replace("\\\\", "\\").replace('\\"', '"')


async def test_an_image_context_and_state_reach_the_llm(deploy: Deploy) -> None:
    old = {"type": "binary", "mimeType": "image/png", "data": PNG, "filename": "a.png"}
    new = {"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/png"}}
    context = [{"description": "page", "value": '{"appId":"discover"}'}]
    async with deploy("3.4.0", streams=True) as deployed:
        for part in (old, new):
            body = asks(user([part, {"type": "text", "text": "what?"}]), context=context, state={"a": 1})
            events = await run(deployed, "fc-openai_tutorial", body)
            assert replay(events)[0]["content"] == ANSWER
            sent = json.dumps(deployed.asked)
            assert f"data:image/png;base64,{PNG}" in sent
            assert json.dumps(json.dumps({"appId": "discover"}).replace(" ", ""))[1:-1] in sent.replace("\\\\", "\\")
            assert "State of the application" in sent


async def test_an_image_by_url_needs_no_type(deploy: Deploy) -> None:
    """`mimeType` is optional beside a URL, and chat completions need none; nor does the snapshot of a thread."""
    over = {"agents": {"rules": [{"agent": "*", "memory": "gateway"}]}}
    ann, url = {"Authorization": "Basic YW5uOng="}, "https://example.com/render?id=7"
    part = {"type": "image", "source": {"type": "url", "value": url}}
    async with deploy("3.4.0", over, streams=True) as deployed:
        asked = asks(user([{"type": "text", "text": "what?"}, part]))
        assert replay(await run(deployed, "flow-openai_messages", asked, **ann))[0]["content"] == ANSWER
        assert {"type": "image_url", "image_url": {"url": url}} in deployed.asked["messages"][-1]["content"]
        restored = await run(deployed, "flow-openai_messages", asks(), **ann)
        assert restored[1]["messages"][0]["content"][1] == part
        await run(deployed, "flow-openai_messages", asks(user("and now?")), **ann)
        assert url in json.dumps(deployed.asked)


async def test_calls_of_the_agents_own_tools_have_results(deploy: Deploy) -> None:
    async with deploy("3.8.0", streams=True) as deployed:
        deployed.simulator.script([Call("ListIndexTool", {"indices": ["*"]}, text="")])
        events = await run(deployed, "fc-openai_tutorial", asks(user("list")))
        messages = replay(events)
        (call,) = messages[0]["toolCalls"]
        assert call["function"]["name"] == "ListIndexTool"
        assert json.loads(call["function"]["arguments"]) == {"indices": ["*"]}
        assert (messages[1]["role"], messages[1]["toolCallId"]) == ("tool", call["id"])
        assert messages[1]["content"].startswith("row,")
        assert messages[2]["content"] == ANSWER


async def test_the_whole_history_of_a_front_end(deploy: Deploy) -> None:
    """Dashboards sends its timeline: its own notes, messages without content, results of tools."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    timeline = [
        {"role": "system", "content": "Be kind."},
        user("first"),
        {"role": "assistant", "toolCalls": [call]},
        {"role": "tool", "toolCallId": "c1", "content": ""},
        {"role": "system", "content": "Error: no", "canResend": True},
        {"role": "reasoning", "content": "hm"},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": ""},
        user("second"),
    ]
    async with deploy("3.4.0", streams=True) as deployed:
        events = await run(deployed, "flow-openai_messages", asks(*timeline))
        notices = [event["value"]["code"] for event in events if event["type"] == "CUSTOM" and event["name"] == NOTICE]
        assert "MESSAGES_LEFT_OUT" in notices
        sent = json.dumps(deployed.asked)
        assert "Error: no" not in sent
        assert [word in sent for word in ("Be kind.", "first", "done", "second")] == [True] * 4


PICK = {"name": "pick", "description": "Costs ${parameters.x}.", "parameters": {"type": "object"}}


async def test_front_end_tools_are_left_out_with_a_notice(deploy: Deploy) -> None:
    """Of an agent that runs its own tools only."""
    async with deploy("3.4.0") as deployed:
        events = await run(deployed, "fc-openai_tutorial", asks(user("hi"), tools=[PICK]))
        assert "TOOLS_LEFT_OUT" in [e["value"]["code"] for e in events if e["type"] == "CUSTOM"]
        assert "pick" not in json.dumps(deployed.asked)


@pytest.mark.parametrize("keeps", ["auto", "gateway"])
async def test_front_end_tools_are_called_and_answered(deploy: Deploy, keeps: str) -> None:
    """By a flow. The call is left pending; its result is the next run, alone where the gateway keeps the thread."""
    over = {"agents": {"rules": [{"agent": "*", "memory": keeps}]}}
    async with deploy("3.4.0", over) as deployed:
        agent = raw_flow(deployed, "openai_tutorial")
        deployed.simulator.script([Call("pick", {"a": 1}, text="")])
        events = await run(deployed, agent, asks(user("pick one"), tools=[{**PICK, "metadata": {"a": 1}}]))
        assert [tool["function"] for tool in deployed.asked["tools"]] == [PICK]
        (asked,) = replay(events)
        (call,) = asked["toolCalls"]
        assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": [call["id"]]}
        result = {"role": "tool", "toolCallId": call["id"], "content": "done"}
        told = [result] if keeps == "gateway" else [user("pick one"), asked, result]
        (last,) = replay(await run(deployed, agent, asks(*told, tools=[PICK])))
        assert last["content"] == ANSWER
        assert [turn["role"] for turn in deployed.asked["messages"][-3:]] == ["user", "assistant", "tool"]


async def test_a_thread_is_a_session_and_is_restored_without_the_llm(deploy: Deploy) -> None:
    over = {"agents": {"rules": [{"agent": "*", "memory": "gateway"}]}}
    ann, bob = {"Authorization": "Basic YW5uOng="}, {"Authorization": "Basic Ym9iOng="}
    async with deploy("3.4.0", over, streams=True) as deployed:
        agent = "fc-openai_tutorial"
        await run(deployed, agent, asks(user([{"type": "text", "text": "one"}, {**IMAGE}])), **ann)
        await run(deployed, agent, asks(user("two")), **ann)  # the new message alone
        sent = json.dumps(deployed.asked)
        assert "one" in sent
        assert PNG in sent
        calls = len(deployed.simulator.received)
        first = await run(deployed, agent, asks(), **ann)
        again = await run(deployed, agent, asks(), **ann)
        assert len(deployed.simulator.received) == calls
        assert first == again
        assert [event["type"] for event in first] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        shown = first[1]["messages"]
        assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant"]
        assert shown[0]["content"][1]["source"] == {"type": "data", "value": PNG, "mimeType": "image/png"}
        assert shown[3]["content"] == ANSWER
        other = await run(deployed, agent, asks(), **bob)
        assert other[1]["messages"] == []
        await run(deployed, agent, asks(user("three")), **bob)
        assert "one" not in json.dumps(deployed.asked)


IMAGE = {"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/png"}}


async def test_errors_are_events_with_what_to_do(deploy: Deploy) -> None:
    async with deploy("2.19.0") as deployed:
        *_, last = await run(deployed, "nosuch", asks(user("hi")))
        assert (last["type"], last["code"]) == ("RUN_ERROR", "AgentNotFound")
        *_, last = await run(deployed, "conv-d", asks(user([IMAGE])))
        assert last["type"] == "RUN_ERROR"
        assert "mlc-gateway upgrade" in last["message"]
        *_, last = await run(deployed, "conv-d", asks(user("FAIL429")))
        assert last["type"] == "RUN_ERROR"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], ""),
        ({"threadId": "t", "runId": "r"}, "messages"),
        ({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user"}]}, "messages[0].user.content"),
        (asks(user([{"type": "binary", "mimeType": "image/png"}])), "messages[0].content[0]"),
    ],
)
async def test_a_body_that_is_no_request_is_a_400(deploy: Deploy, body: Any, field: str) -> None:
    async with deploy("2.19.0") as deployed, deployed.http() as client:
        async with client.post("/ag-ui/conv-d", json=body) as response:
            error = (await response.json())["error"]
            assert (response.status, error["field"]) == (400, field)
        async with client.post("/ag-ui/conv-d", data=b"{", headers={"Content-Type": "application/json"}) as response:
            assert response.status == 400
        async with client.post("/ag-ui/conv-d", data=b"{}", headers={"Content-Type": "text/plain"}) as response:
            assert response.status == 415


async def test_a_run_that_was_not_interrupted_is_not_resumed(deploy: Deploy) -> None:
    entry = {"interruptId": "i", "status": "resolved", "payload": {"approved": True}}
    async with deploy("3.4.0", streams=True) as deployed:
        for messages in ([user("hi")], []):
            *_, last = await run(deployed, "flow-openai_messages", asks(*messages, resume=[entry]))
            assert last["type"] == "RUN_ERROR"
            assert "send the answer as a message" in last["message"]
        assert deployed.simulator.received == []
        for empty in ([], None):
            events = await run(deployed, "flow-openai_messages", asks(user("hi"), resume=empty))
            assert events[-1]["type"] == "RUN_FINISHED"


async def test_an_error_names_the_message_that_the_client_sent(deploy: Deploy) -> None:
    """The text about the application and the messages left out move the turns of the unified input."""
    wrong = user([{"type": "image", "source": {"type": "data", "value": "????", "mimeType": "image/png"}}])
    body = asks(user("hi"), {"role": "reasoning", "content": "hm"}, wrong, context=[{"description": "a", "value": "b"}])
    async with deploy("3.4.0", streams=True) as deployed:
        last = (await run(deployed, "flow-openai_messages", body))[-1]
    assert last["type"] == "RUN_ERROR"
    assert "messages[2].content[0]" in last["message"]
    assert "input[" not in last["message"]


async def test_what_dashboards_wrote_for_itself_is_left_out_with_a_notice(deploy: Deploy) -> None:
    own = {"role": "system", "content": "Error: no", "canResend": True}
    async with deploy("3.4.0", streams=True) as deployed:
        events = await run(deployed, "flow-openai_messages", asks(own, user("hi")))
        assert "MESSAGES_LEFT_OUT" in [event["value"]["code"] for event in events if event["type"] == "CUSTOM"]
        assert "Error: no" not in json.dumps(deployed.asked)


@pytest.mark.parametrize("member", ["threadId", "runId", "state", "messages"])
@pytest.mark.parametrize(
    "value", [rb'"\ud800"', b"NaN", b"1e999", b"[" * 5000 + b"]" * 5000], ids=["surrogate", "NaN", "1e999", "deep"]
)
async def test_a_value_that_is_no_json_of_utf_8_is_a_400(deploy: Deploy, member: str, value: bytes) -> None:
    async with deploy("2.19.0") as deployed, deployed.http() as client:
        body = json.dumps(asks(user("hi"), **{member: "@"})).encode().replace(b'"@"', value)
        for written in (body, json.dumps(asks(user("hi"))).encode("utf-16")):
            headers = {"Content-Type": "application/json"}
            async with client.post("/ag-ui/conv-d", data=written, headers=headers) as response:
                assert response.status == 400
                assert "JSON" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("member", ["state", "forwardedProps"])
async def test_a_value_that_is_nested_too_deeply_is_an_error(deploy: Deploy, member: str) -> None:
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    async with deploy("2.19.0") as deployed:
        *_, last = await run(deployed, "conv-d", asks(user("hi"), **{member: deep}))
        assert (last["type"], last["code"]) == ("RUN_ERROR", "ValidationException")
        assert "nested" in last["message"]


@pytest.mark.parametrize(
    ("block", "mime"),
    [
        ({"document": {"format": "md", "source": {"bytes": "IyBh"}}}, "text/markdown"),
        ({"document": {"format": "pdf", "source": {"bytes": "JVBE"}}}, "application/pdf"),
        ({"video": {"format": "three_gp", "source": {"url": "https://a/b"}}}, "video/3gpp"),
        ({"image": {"format": "new", "source": {"bytes": "AAAA"}}}, "application/octet-stream"),
    ],
)
def test_media_of_a_session_have_their_registered_type(block: Block, mime: str) -> None:
    stored = StoredMessage(0, 1, "t", Message("user", (block,)))
    (message,) = snapshot([stored], "s")
    assert message["content"][0]["source"]["mimeType"] == mime

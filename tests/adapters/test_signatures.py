"""The signatures of Gemini's tool calls: from its answer through an adapter to the client, or a session, and back."""

from __future__ import annotations

import json
from typing import Any

from gateway.simulator.llm.endpoints import Reply
from tests.adapters.conftest import Deploy, Deployed
from tests.adapters.test_ag_ui import asks, run, user
from tests.adapters.test_openai_responses import KEPT

PART = {"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
CALLS = Reply(
    200, json.dumps({"candidates": [{"content": {"role": "model", "parts": [PART]}, "finishReason": "STOP"}]})
)
TOOL = {"id": "r", "role": "tool", "toolCallId": "c1", "content": "done"}


def raw_gemini(deployed: Deployed) -> str:
    """Register a flow whose answer is Gemini's whole response."""
    core = deployed.simulator.core
    shown = core.resources.agent(deployed.agents["flow-gemini_contents"])
    for tool in shown["tools"]:
        tool.get("parameters", {}).pop("response_filter", None)
    body = {"name": "raw", "type": "flow", "tools": shown["tools"]}
    return str(core.resources.register_agent(body)["agent_id"])


async def test_an_openai_client_gets_it_and_sends_it_back(deploy: Deploy) -> None:
    async with deploy("3.6.0") as deployed, deployed.openai() as client:
        agent = raw_gemini(deployed)
        question: list[Any] = [{"role": "user", "content": "call it"}]
        for stream in (False, True):
            deployed.simulator.script([CALLS])
            if stream:
                pieces = await client.chat.completions.create(model=agent, messages=question, stream=True)
                calls = [
                    call
                    for chunk in [chunk async for chunk in pieces]
                    for call in chunk.choices[0].delta.tool_calls or []
                ]
            else:
                answer = await client.chat.completions.create(model=agent, messages=question)
                calls = answer.choices[0].message.tool_calls or []  # type: ignore[assignment]
            (call,) = calls
            assert call.model_dump()["extra_content"] == {"google": {"thought_signature": "c2ln"}}
        told = {"role": "assistant", "tool_calls": [{**call.model_dump(exclude={"index"})}]}
        result = {"role": "tool", "tool_call_id": "c1", "content": "done"}
        await client.chat.completions.create(model=agent, messages=[*question, told, result])
        assert PART in deployed.asked["contents"][1]["parts"]


async def test_an_ag_ui_client_gets_it_and_a_session_keeps_it(deploy: Deploy) -> None:
    async with deploy("3.6.0", KEPT) as deployed:
        agent = raw_gemini(deployed)
        deployed.simulator.script([CALLS])
        events = await run(deployed, agent, asks(user("call it")))
        (signed,) = [event for event in events if event["type"] == "REASONING_ENCRYPTED_VALUE"]
        assert (signed["entityId"], signed["encryptedValue"]) == ("c1", "c2ln")
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
        assistant = {"role": "assistant", "toolCalls": [call]}
        await run(deployed, agent, asks(user("call it"), assistant, TOOL))  # a client that does not keep it
        assert PART in deployed.asked["contents"][1]["parts"]
        other = asks(
            user("call it"), {**assistant, "toolCalls": [{**call, "encryptedValue": "c2ln"}]}, TOOL, threadId="2"
        )
        await run(deployed, agent, other)
        assert PART in deployed.asked["contents"][1]["parts"]

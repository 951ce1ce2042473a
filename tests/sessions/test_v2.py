"""`conversational_v2` agents, whose memory in the cluster would send the earlier messages once more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.simulator.unified_fixtures import MODELS
from tests.sessions.conftest import Cluster, StartCluster

_PATHS = {"bedrock": "/bedrock/model/claude-3-7/converse", "openai": "/openai/v1/chat/completions"}


def register(cluster: Cluster, provider: str) -> str:
    """Register a V2 agent whose model is the simulated LLM, and return its id."""
    core = cluster.simulator.core
    memory = {"type": "agentic_memory", "memory_container_id": "container"}
    body = {"name": "v2", "type": "conversational_v2", "model": MODELS[provider], "memory": memory}
    agent_id: str = core.register_agent(body)["agent_id"]
    model_id = core.resources.agent(agent_id)["llm"]["model_id"]
    action = core.resources.model(model_id)["connector"]["actions"][0]
    url = cluster.simulator.llm_url + _PATHS[provider]
    core.resources.update_model(model_id, {"connector": {"actions": [{**action, "url": url}]}})
    return agent_id


def text(value: str) -> Any:
    return [{"type": "text", "text": value}]


@pytest.fixture(params=["bedrock", "openai"])
async def v2(request: pytest.FixtureRequest, start_cluster: StartCluster) -> tuple[Cluster, str]:
    cluster = await start_cluster("3.6.0")
    cluster.simulator.llm.strict = False
    return cluster, register(cluster, request.param)


async def test_messages_are_not_doubled(v2: tuple[Cluster, str]) -> None:
    cluster, agent_id = v2
    conversation: list[Any] = []
    memory_id = ""
    for number in range(3):
        conversation.append({"role": "user", "content": text(f"Question {number}?")})
        cluster.simulator.script([f"Answer {number}."])
        answered = await cluster.ask(agent_id, {"input": conversation}, memory_id)
        assert answered.status == 200, answered.body
        assert answered.body["message"]["content"] == [{"text": f"Answer {number}."}]
        memory_id = answered.memory_id
        assert memory_id.startswith("gws-")
        conversation.append({"role": "assistant", "content": text(f"Answer {number}.")})
        assert len(answered.llm[0]["messages"]) == 2 * number + 1
    assert not any(memory_id in str(session) for session in cluster.simulator.core.sessions)


async def test_every_input_goes_on_with_the_session(v2: tuple[Cluster, str]) -> None:
    cluster, agent_id = v2
    image = {"type": "image", "source": {"type": "base64", "format": "png", "data": "iVBORw0KGgo="}}
    call = {"id": "c1", "type": "function", "function": {"name": "zoom", "arguments": '{"by":2}'}}
    tool_turn = [
        {"role": "user", "content": text("Zoom in.")},
        {"role": "assistant", "content": text("So."), "toolCalls": [call]},
        {"role": "tool", "toolCallId": "c1", "content": text("a red dot")},
    ]
    memory_id = ""
    bodies = [{"input": [*text("What is this?"), image]}, {"input": tool_turn}, {"input": "Which colour?"}]
    for body in [*bodies, {"parameters": {"question": "And its size?"}}]:
        answered = await cluster.ask(agent_id, body, memory_id)
        assert answered.status == 200, answered.body
        memory_id = answered.memory_id
    sent = json.dumps(answered.llm[0])
    parts = ["What is this?", "iVBORw0KGgo=", "Zoom in.", "zoom", "a red dot", "Which colour?", "And its size?"]
    assert [sent.count(part) for part in parts] == [1] * len(parts)
    assert sorted(parts, key=sent.index) == parts

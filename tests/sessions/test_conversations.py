"""Conversations of several turns: the LLM gets all of it, once and in order, on every version and through any gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.delivery.cases import IMAGE
from tests.sessions.conftest import StartCluster

DATA = IMAGE["source"]["data"]
CALL = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "zoom", "input": {"by": 2}}}]}
RESULT = {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "a dot of red"}]}}]}
AGENTS = [
    ("2.19.0", "flow-a"),
    ("2.19.0", "flow-b"),
    ("3.4.0", "flow-bedrock_messages"),
    ("3.6.0", "v1-bedrock"),
    ("3.8.0", "v1-openai"),
]


@pytest.mark.parametrize(("version", "agent"), AGENTS)
async def test_three_turns(start_cluster: StartCluster, version: str, agent: str) -> None:
    cluster = await start_cluster(version)
    first = await cluster.ask(agent, {"input": [{"type": "text", "text": "What is this?"}, IMAGE]})
    assert first.status == 200, first.body
    print(json.dumps(first.body)[:500])
    second = await cluster.ask(agent, {"input": [{"role": "user", "content": "Zoom."}, CALL, RESULT]}, first.memory_id)
    assert second.status == 200, second.body
    third = await cluster.ask(agent, {"input": "What colour was it?"}, first.memory_id)
    assert third.status == 200, third.body
    print(json.dumps(third.llm)[:3000])
    sent = json.dumps(third.llm[0])
    assert sent.count(DATA) == 1

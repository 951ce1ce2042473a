"""A gateway whose sessions are in AgentCore Memory, which throttles, is gone, or refuses the gateway's credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from gateway.memory import sessions
from tests.memory.agentcore.emulator import Emulator
from tests.sessions.conftest import Cluster, StartCluster

AGENT = "flow-b"
ARN = "arn:aws:sts::123456789012:assumed-role/gateway/i-0"


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(sessions, "_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(sessions, "_REFUSAL_SECONDS", 0.0)
    with Emulator() as emulator:
        yield emulator


def throttled(emulator: Emulator) -> None:
    emulator.faults = replace(emulator.faults, throttle=1)


def gone(emulator: Emulator) -> None:
    emulator.memory_id = "another-abcdefghij"


def denied(emulator: Emulator) -> None:
    emulator.faults = replace(emulator.faults, denied=f"User: {ARN} is not authorized")


async def begun(start_cluster: StartCluster, emulator: Emulator, on_failure: str) -> tuple[Cluster, str]:
    """Start a gateway, and return it with the id of a session that has two turns."""
    agentcore = {"memory_id": Emulator.memory_id, "endpoint": emulator.url, "region": "eu-west-1", "seconds": 2}
    cluster = await start_cluster("2.19.0", {"store": "agentcore", "agentcore": agentcore, "on_failure": on_failure})
    first = await cluster.ask(AGENT, {"input": "My name is Nia."})
    assert first.memory_id.startswith("gws-")
    second = await cluster.ask(AGENT, {"input": "And yours?"}, first.memory_id)
    assert (second.status, second.notices) == (200, "")
    assert "Nia" in json.dumps(second.llm)
    return cluster, first.memory_id


async def read(cluster: Cluster, memory_id: str, method: str = "GET") -> tuple[int, Any]:
    url = f"http://127.0.0.1:{cluster.gateways[-1].data_port}/_plugins/_ml/memory/{memory_id}"
    async with aiohttp.ClientSession() as client, client.request(method, url) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("fault", [gone, denied])
async def test_a_session_that_can_not_be_read_is_not_one_that_never_was(
    start_cluster: StartCluster, emulator: Emulator, fault: Any
) -> None:
    """A 404 would have the client begin a new one. No LLM is called, and no client sees accounts of AWS."""
    cluster, memory_id = await begun(start_cluster, emulator, "refuse")
    before = emulator.faults, emulator.memory_id
    fault(emulator)
    refused = await cluster.ask(AGENT, {"input": "What is my name?"}, memory_id)
    assert (refused.status, refused.body["error"]["type"], refused.llm) == (503, "MemoryUnavailable", [])
    for method in ("GET", "DELETE"):
        status, document = await read(cluster, memory_id, method)
        assert (status, document["error"]["type"]) == (503, "MemoryUnavailable")
        assert ARN not in json.dumps(document)
    assert ARN not in json.dumps(refused.body)
    emulator.faults, emulator.memory_id = before
    answered = await cluster.ask(AGENT, {"input": "What is my name?"}, memory_id)
    assert (answered.status, answered.memory_id, "Nia" in json.dumps(answered.llm)) == (200, memory_id, True)


@pytest.mark.parametrize("fault", [throttled, gone, denied])
async def test_an_answer_without_memory_says_so(start_cluster: StartCluster, emulator: Emulator, fault: Any) -> None:
    cluster, memory_id = await begun(start_cluster, emulator, "answer")
    fault(emulator)
    answered = await cluster.ask(AGENT, {"input": "What is my name?"}, memory_id)
    assert (answered.status, answered.notices) == (200, "MEMORY_UNAVAILABLE")
    assert "Nia" not in json.dumps(answered.llm)

"""Agents without tools run, and conversational flows remember, whatever the version and the provider."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.delivery.simulated_cluster import LLM_URL
from tests.register.deployment import ML, REGISTER, Deployment, deploy
from tests.register.simulated_cluster import ANTHROPIC, BEDROCK, COHERE, GEMINI, OPENAI, URLS, block

QUICK_EXECUTE = f"{ML}/agents/_execute"
PLAN = "plan_execute_and_reflect"
STEP, RESULT = json.dumps({"steps": ["do it"]}), json.dumps({"result": "done"})
CASES = [
    ("2.19.0", BEDROCK, "conversational", True),
    ("2.19.0", OPENAI, "conversational_v2", True),
    ("3.4.0", GEMINI, "conversational", True),
    ("3.4.0", ANTHROPIC, PLAN, True),
    ("3.4.0", OPENAI, PLAN, False),
    ("3.6.0", ANTHROPIC, "conversational", True),
    ("3.6.0", COHERE, "conversational", True),
    ("3.6.0", BEDROCK, "conversational", False),
]


def at_simulator(deployment: Deployment, provider: str) -> dict[str, Any]:
    return block(provider, url=URLS[provider].replace(LLM_URL, deployment.simulator.llm_url))


@pytest.mark.parametrize(("version", "provider", "type_", "has_placeholder"), CASES)
async def test_an_agent_without_tools_runs(version: str, provider: str, type_: str, has_placeholder: bool) -> None:
    async with deploy(version) as deployment:
        body = deployment.body(type=type_, tools=[], model=at_simulator(deployment, provider))
        if type_ == PLAN:
            deployment.simulator.script([STEP, "did it", RESULT])
        status, document, headers = await deployment.call("POST", REGISTER, body)
        assert status == 200, document
        assert ("PLACEHOLDER_TOOL" in headers.get("X-MLC-Gateway-Notice", "")) is has_placeholder
        status, answer = await deployment.execute(document["agent_id"], "hello")
        assert status == 200, answer
        assert "hello" in json.dumps(deployment.simulator.received[0])


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0", "3.6.0"])
async def test_a_quick_execute_without_tools_runs(version: str) -> None:
    async with deploy(version) as deployment:
        body = {"model": at_simulator(deployment, ANTHROPIC), "tools": [], "input": "hello"}
        status, answer, headers = await deployment.call("POST", QUICK_EXECUTE, body)
        assert status == 200, answer
        assert "PLACEHOLDER_TOOL" in headers["X-MLC-Gateway-Notice"]
        assert deployment.counts == (0, 0, 0)


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0", "3.6.0"])
async def test_a_conversational_flow_remembers(version: str) -> None:
    async with deploy(version) as deployment:
        body = deployment.body(type="conversational_flow")
        status, document, headers = await deployment.call("POST", REGISTER, body)
        assert status == 200, document
        assert "FLOW_MEMORY_SET" in headers["X-MLC-Gateway-Notice"]
        path = f"{ML}/agents/{document['agent_id']}/_execute"
        _, answer, _ = await deployment.call("POST", path, {"input": "my dog is Rex"})
        tensors = {one["name"]: one.get("result") for one in answer["inference_results"][0]["output"]}
        again = {"input": "who?", "parameters": {"memory_id": tensors["memory_id"]}}
        status, answer, _ = await deployment.call("POST", path, again)
        assert status == 200, answer
        assert "my dog is Rex" in json.dumps(deployment.simulator.received[1])

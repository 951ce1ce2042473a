"""Agents that the cluster can't run: `input` is refused before it is sent, a legacy question is forwarded as it is.

See docs/evidence/facts.md, "Agents without tools, and registrations at once".
"""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.execute.conftest import Deployment, StartDeployment

LEGACY = {"parameters": {"question": "Which ones?"}}


async def toolless(deployment: Deployment) -> str:
    """Register a conversational agent that calls no functions and has no tools; return its id."""
    cluster = deployment.simulator.core.resources
    llm = next(agent["llm"] for agent in cluster.agents.values() if agent["type"] == "conversational")
    body: dict[str, Any] = {"name": "toolless", "type": "conversational", "llm": llm, "app_type": "rag", "tools": []}
    memory = {"memory": {"type": "conversation_index"}}
    path = f"{deployment.simulator.url}/_plugins/_ml/agents/_register"
    async with aiohttp.ClientSession() as session, session.post(path, json=body | memory) as response:
        agent_id: str = (await response.json())["agent_id"]
        return agent_id


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
async def test_a_question_gets_the_answer_of_the_cluster(start_deployment: StartDeployment, version: str) -> None:
    deployment = await start_deployment(version)
    agent_id = await toolless(deployment)
    refused = await deployment.execute(agent_id, {"input": "Which ones?"})
    assert (refused.status, (await refused.json())["error"]["problems"][0]["code"]) == (400, "TOOL_MISSING")
    passed = await deployment.execute(agent_id, LEGACY)
    async with aiohttp.ClientSession(deployment.simulator.url) as session:
        direct = await session.post(f"/_plugins/_ml/agents/{agent_id}/_execute", json=LEGACY)
        assert (passed.status, await passed.read()) == (direct.status, await direct.read())
    assert passed.status == 500


@pytest.mark.parametrize("version", ["3.6.0", "3.8.0"])
async def test_a_question_that_is_never_answered_ends_with_the_time_limit(
    start_deployment: StartDeployment, version: str
) -> None:
    deployment = await start_deployment(version, {"upstream": {"timeouts": {"execute": 0.2}}})
    agent_id = await toolless(deployment)
    passed = await deployment.execute(agent_id, LEGACY)
    error = (await passed.json())["error"]
    assert (passed.status, error["type"]) == (504, "UpstreamTimeout")
    refused = await deployment.execute(agent_id, {"input": "Which ones?"})
    assert (refused.status, (await refused.json())["error"]["problems"][0]["code"]) == (400, "TOOL_MISSING")

"""Flows that run another flow with an AgentTool, on a real 3.6.0 (facts.md, "Agents that run agents")."""

from __future__ import annotations

from typing import Any

import pytest

from .agents import Agent, Api
from .delivered import INPUTS, Prompts, Send, canonical, mapping, without_prompt
from .llm import LLM
from .speech import turns

pytestmark = pytest.mark.real_cluster

FLOWS = [f"{provider}_flow_{template}" for provider, template in (("bedrock", "tutorial"), ("openai", "array"))]


@pytest.fixture(scope="module")
def roots(api: Api, agents: dict[str, Agent]) -> dict[str, str]:
    """Flows that run `FLOWS`: the other agent's name → agent_id."""

    def root(name: str) -> str:
        tool: dict[str, Any] = {
            "type": "AgentTool",
            "parameters": {"agent_id": agents[name].agent_id, "style": "terse"},
        }
        body = {"name": f"root_{name}", "type": "flow", "tools": [tool]}
        agent_id: str = api.must("POST", "/_plugins/_ml/agents/_register", body)["agent_id"]
        return agent_id

    return {name: root(name) for name in FLOWS}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", FLOWS)
def test_input_arrives_whole_at_the_llm_of_the_other_flow(
    agents: dict[str, Agent], roots: dict[str, str], prompts: Prompts, through: Send, llm: LLM, name: str, kind: str
) -> None:
    agent = agents[name]
    status, answer = through(roots[name], {"input": INPUTS[kind]})
    received = llm.taken()
    assert (status, len(received)) == (200, 1), answer
    arrived = canonical(agent.provider, turns(received[0]))
    prompt = prompts[agent.provider, agent.type]
    wanted = canonical(agent.provider, mapping(agent.provider, INPUTS[kind]))
    assert without_prompt(agent.provider, arrived, prompt) == wanted


def test_the_other_flow_gets_the_tools_parameters_and_the_requests(api: Api, roots: dict[str, str], llm: LLM) -> None:
    asked = {
        "question": "q",
        "prompt": "${parameters.style}, ${parameters.extra}: ${parameters.question}",
        "extra": "e",
    }
    status, answer = api.execute(roots["bedrock_flow_tutorial"], {"parameters": asked})
    assert status == 200, answer
    assert "terse, e: q" in str(turns(llm.taken()[0]))


def test_an_agent_that_the_request_names_is_run_in_place_of_the_tools(
    api: Api, agents: dict[str, Agent], roots: dict[str, str], llm: LLM
) -> None:
    asked = {
        "question": "q",
        "agent_id": agents["openai_flow_array"].agent_id,
        "messages": '[{"role":"user","content":"m"}]',
    }
    status, answer = api.execute(roots["bedrock_flow_tutorial"], {"parameters": asked})
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [{"role": "user", "content": "m"}]

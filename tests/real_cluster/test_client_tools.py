"""Tools of the client on a real 3.6.0: flows declare them, calls come back, and the results are the next input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.providers import registry
from gateway.unified.model import ToolSpec

from .agents import WIRES, Agent, Api, connect
from .conftest import Command
from .delivered import Send
from .llm import LLM, ToolCall

pytestmark = pytest.mark.real_cluster

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "warmth", "description": 'How "warm" ${parameters.question} {it} is.', "parameters": SCHEMA}
SPEC = ToolSpec("warmth", str(TOOL["description"]), SCHEMA)
USE = {"toolUse": {"toolUseId": "c1", "name": "warmth", "input": {"city": "Paris"}}}
RESULT = {"toolResult": {"toolUseId": "c1", "content": [{"text": "20 degrees"}]}}


@pytest.mark.parametrize("type", ["flow", "conversational_flow"])
@pytest.mark.parametrize("provider", WIRES)
def test_a_flow_calls_them(
    api: Api, agents: dict[str, Agent], llm: LLM, through: Send, provider: str, type: str
) -> None:
    known = api.must("GET", f"/_plugins/_ml/agents/{agents[f'{provider}_flow_upgraded'].agent_id}")
    _check(through, llm, provider, raw_flow(api, type, known["tools"][0]["parameters"]["model_id"]))


@pytest.mark.parametrize("provider", WIRES)
def test_after_an_upgrade_for_tools(
    api: Api, llm: LLM, command: Command, through: Send, provider: str, tmp_path: Path
) -> None:
    """The connector's template has no place for them before."""
    wire = WIRES[provider]
    wire = replace(wire, body=wire.body.replace("${parameters.tool_configs:-}", ""))
    agent = raw_flow(api, "flow", connect(api, llm.url, provider, "array", wire)[1])
    status, shown = command("upgrade", agent, "--for-tools", "--apply", "--backup-dir", str(tmp_path))
    assert status == 0, shown
    _check(through, llm, provider, agent)


def _check(through: Send, llm: LLM, provider: str, agent: str) -> None:
    llm.replies(ToolCall("warmth", {"city": "Paris"}))
    status, answer = through(agent, {"input": "How warm is Paris?", "tools": [TOOL], "tool_choice": "required"})
    assert status == 200, answer
    wanted = registry.provider(WIRES[provider].name).declare([SPEC], None)
    body = llm.taken()[-1]
    assert "warmth" in json.dumps({name: body[name] for name in wanted})
    assert "Paris" in json.dumps(answer)
    turns = [
        {"role": "user", "content": "How warm is Paris?"},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [RESULT]},
    ]
    llm.replies("20 degrees.")
    status, answer = through(agent, {"input": turns, "tools": [TOOL]})
    assert status == 200, answer
    body = llm.taken()[-1]
    assert {name: body[name] for name in wanted} == wanted
    assert "20 degrees" in json.dumps(body)


def raw_flow(api: Api, type: str, model_id: str) -> str:
    """Register a flow whose answer is the LLM's whole response."""
    tool = {
        "type": "MLModelTool",
        "parameters": {"model_id": model_id, "system_prompt": "Be terse.", "prompt": "${parameters.question}"},
    }
    memory = {"app_type": "rag", "memory": {"type": "conversation_index"}} if type == "conversational_flow" else {}
    body = {"name": f"raw {type} {model_id}", "type": type, "tools": [tool], **memory}
    return str(api.must("POST", "/_plugins/_ml/agents/_register", body)["agent_id"])

"""Unified V1 agents of 3.6 and 3.8: registration, `input`, and the first LLM call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.simulator.core import ClusterCore, Executed
from gateway.simulator.errors import RestFailure
from gateway.simulator.fixtures import seed_core
from gateway.simulator.llm import Call, LlmEndpoints
from gateway.simulator.settings import UNIFIED_API
from gateway.simulator.unified_fixtures import unified_bodies

BODY = next(unified_bodies())
TEXT = {"type": "text", "text": "hi"}
VERSIONS = ("3.6.0", "3.8.0")
PROVIDERS = ("bedrock", "openai", "gemini")


class Seeded:
    """A seeded core with checking models; the unified API is on."""

    def __init__(self, version: str = "3.8.0") -> None:
        self.llm = LlmEndpoints()
        self.core = ClusterCore(version, self.llm)
        self.agents = seed_core(self.core)

    def execute(self, agent: str, **body: Any) -> Executed:
        return self.core.execute(self.agents[agent], body)


def test_the_api_is_off_by_default() -> None:
    core = ClusterCore("3.6.0")
    with pytest.raises(RestFailure, match="400") as refused:
        core.register_agent(BODY)
    assert "Unified agent API is not enabled" in refused.value.body["error"]["reason"]
    seeded = Seeded()
    seeded.core.settings.change({"persistent": {UNIFIED_API: "false"}})
    off = seeded.execute("v1-bedrock", input="hi")
    assert (off.status, off.body["error"]["reason"][:35]) == (400, "Standardized input cannot be used i")
    assert seeded.execute("v1-bedrock", parameters={"question": "hi"}).status == 200


def test_before_3_5_a_model_block_is_ignored() -> None:
    core = ClusterCore("3.4.0")
    body = {**BODY, "llm": {"model_id": "m"}}
    assert "model" not in core.resources.agent(core.register_agent(body)["agent_id"])


def test_a_registration_makes_a_model() -> None:
    core = ClusterCore("3.6.0")
    core.settings.change({"persistent": {UNIFIED_API: "true"}})
    agent = core.resources.agent(core.register_agent(BODY)["agent_id"])
    assert agent["model"] == {"model_id": "claude-3-7", "model_provider": "bedrock/converse"}
    assert agent["llm"]["parameters"] == {"system_prompt": "Be brief."}
    assert agent["parameters"]["_llm_interface"] == "bedrock/converse/claude"
    model = core.resources.model(agent["llm"]["model_id"])
    assert model["name"] == "Auto-generated model for claude-3-7"
    assert model["connector"]["parameters"]["service_name"] == "bedrock"
    assert "credential" not in model["connector"]


@pytest.mark.parametrize("wrong", [{"credential": None}, {"model_provider": "elsewhere/v1"}])
def test_a_wrong_model_block_is_refused(wrong: dict[str, Any]) -> None:
    core = ClusterCore("3.6.0")
    core.settings.change({"persistent": {UNIFIED_API: "true"}})
    with pytest.raises(RestFailure, match="400"):
        core.register_agent({**BODY, "model": {**BODY["model"], **wrong}})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_input_and_question_make_the_same_call(version: str, provider: str) -> None:
    text = 'say "hi" \\ ${parameters.model}$ {"a":1}'
    seeded = Seeded(version)
    by_input = seeded.execute(f"v1-{provider}", input=text)
    others = {"body": "ignored", "prompt": "ignored"}
    by_question = seeded.execute(f"v1-{provider}", parameters={"question": text, **others})
    assert by_input.status == by_question.status == 200
    assert by_input.llm_bodies == by_question.llm_bodies
    names = [tensor["name"] for tensor in by_input.body["inference_results"][0]["output"]]
    assert names == ["memory_id", "response"]
    limits = {"inferenceConfig", "max_completion_tokens", "generationConfig"}
    assert bool(limits & json.loads(by_input.llm_bodies[0]).keys()) == (version == "3.8.0")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_tool_call_is_answered(provider: str) -> None:
    seeded = Seeded()
    seeded.llm.script([Call("ListIndexTool", {"indices": []}, id="call-7"), "two books"])
    executed = seeded.execute(f"v1-{provider}", input="how many?")
    assert executed.body["inference_results"][0]["output"][-1]["dataAsMap"]["response"] == "two books"
    assert len(executed.llm_bodies) == 2


def test_a_planner_takes_input() -> None:
    seeded = Seeded()
    seeded.llm.script(['{"steps":["look"]}', "found", '{"result":"all done"}'])
    executed = seeded.execute("v1per-bedrock", input="plan this")
    names = [tensor["name"] for tensor in executed.body["inference_results"][0]["output"]]
    assert names == ["memory_id", "parent_interaction_id", "executor_agent_memory_id", "response"]
    assert "[objective] plan this" in executed.llm_bodies[0]


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "blocks": ({"input": [TEXT]}, 400, "Found input type: CONTENT_BLOCKS"),
    "messages": ({"input": [{"role": "user", "content": [TEXT]}]}, 400, "Found input type: MESSAGES"),
    "nothing": ({}, 400, "Agent input data can not be empty."),
    "no question": ({"parameters": {"foo": "x"}}, 400, "AgentInput and its input field cannot be null"),
    "null": ({"input": None}, 400, "Invalid input format. Expected string or array."),
    "number": ({"input": 42, "parameters": {"question": "q"}}, 400, "Invalid input format"),
    "blank": ({"input": "  "}, 400, "Text input cannot be null or empty"),
    "empty": ({"input": []}, 400, "Input type not supported"),
    "numbers": ({"input": [1]}, 500, "mlInput"),
    "neither": ({"input": [{}]}, 400, "Must have 'role'"),
    "mixed": ({"input": [TEXT, {"role": "user"}]}, 400, "ContentBlocks, but item at index 1 is of type Message"),
    "cycle": ({"input": "${parameters.user_text}"}, 400, "Infinite loop in property interpolation of"),
    "not filled": ({"input": "${parameters.nope}"}, 400, "not filled in payload: nope"),
}


@pytest.mark.parametrize(("body", "status", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(body: dict[str, Any], status: int, words: str) -> None:
    executed = Seeded().execute("v1-bedrock", **body)
    assert (executed.status, executed.llm_bodies) == (status, [])
    assert words in str(executed.body)


def test_a_legacy_agent_does_not_take_input() -> None:
    seeded = Seeded()
    alone = seeded.execute("flow-bedrock_tutorial", input="hi")
    assert (alone.status, alone.body["error"]["type"]) == (500, "NullPointerException")
    beside = seeded.execute("flow-bedrock_tutorial", input="hi", parameters={"question": "which?"})
    assert "which?" in beside.llm_bodies[0]

"""An agent that puts nothing but white space around the question: no blank text is sent, which providers refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.execute.rewrite import RewriteOptions, rewrite_input
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_call
from gateway.mlcommons.template import RuntimeValues
from gateway.unified.request import read_execute
from tests.delivery.cases import CALL, IMAGE, RESULT, turn
from tests.delivery.simulated_cluster import cluster_of
from tests.oracle import Oracle, Outcome

BLANK = " ${parameters.question}\n"


def with_blank_prompt(version: str, name: str) -> AgentProfile:
    profile = cluster_of(version).profile(name)
    tools = tuple(replace(tool, parameters={**tool.parameters, "prompt": BLANK}) for tool in profile.tools)
    return replace(profile, tools=tools, llm_parameters={**profile.llm_parameters, "prompt": BLANK})


@pytest.mark.parametrize(
    ("version", "name", "input"),
    [
        ("2.19.0", "flow-a", [IMAGE]),
        ("2.19.0", "conv-h", [IMAGE]),
        ("3.4.0", "flow-bedrock_tutorial", [IMAGE]),
        ("3.4.0", "flow-bedrock_messages", [IMAGE]),
        ("3.4.0", "fc-bedrock_tutorial", [turn("user", "Weather?"), turn("assistant", CALL), turn("user", RESULT)]),
        ("3.4.0", "fc-bedrock_upgraded", [turn("user", "Weather?"), turn("assistant", CALL), turn("user", RESULT)]),
    ],
)
def test_a_turn_without_text_gets_a_neutral_one(version: str, name: str, input: list[Any]) -> None:
    profile = with_blank_prompt(version, name)
    request = read_execute(json.dumps({"input": input}).encode())
    assert request.input is not None
    plan = rewrite_input(profile, request, request.input, RewriteOptions(), "t1").plan
    assert "NEUTRAL_TEXT_ADDED" in {notice.code for notice in plan.notices}
    last = first_call(profile, plan.parameters, RuntimeValues())["messages"][-1]["content"]
    assert [next(iter(part)) for part in last][-1] == "text"
    assert all(part["text"].strip() for part in last if "text" in part)


def test_a_blank_turn_is_left_out_for_an_unknown_provider_as_well() -> None:
    blank = [turn("user", "Ahem?"), turn("user", " "), turn("assistant", "Yes?"), turn("user", "What is on the shelf?")]
    sent = cluster_of("2.19.0").send("cflow-c", {"input": blank})
    assert sent.rewritten is not None
    plan = sent.rewritten.plan
    assert [(notice.code, notice.place) for notice in plan.notices] == [
        ("BLANK_TEXT_DROPPED", "input[1].content"),
        ("HISTORY_FLATTENED", ""),
    ]
    assert plan.parameters["chat_history"] == "Human:Ahem?\nAssistant:Yes?\n"


@pytest.mark.parametrize(
    ("version", "name"), [("2.19.0", "conv-d"), ("2.19.0", "cflow-c"), ("3.4.0", "fc-bedrock_tutorial")]
)
@pytest.mark.parametrize("with_system", [False, True])
def test_a_remembered_turn_that_is_left_out_is_reported(version: str, name: str, with_system: bool) -> None:
    pairs = (("say ${parameters.question}", "no $"), ("And?", " "))
    system = [turn("system", "Speak French.")] if with_system and name != "cflow-c" else []
    sent = cluster_of(version).send(name, {"input": [*system, turn("user", "What is on the shelf?")]}, pairs)
    assert Oracle(cluster_of(version)).judge(name, {}, pairs, sent).outcome is Outcome.ARRIVED
    assert sent.rewritten is not None
    notices = [(notice.code, notice.place) for notice in sent.rewritten.plan.notices]
    assert notices[:2] == [("BLANK_TEXT_DROPPED", "memory[1].assistant"), ("MEMORY_RETOLD", "")]

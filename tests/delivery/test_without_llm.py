"""Flows without an LLM among their tools, or with one that is not read: they take one text, as the question."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from gateway.delivery.plan import Plan
from gateway.errors import UndeliverableContent
from gateway.execute.rewrite import Policy, rewrite_input
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Tool
from gateway.unified.request import read_execute
from tests.delivery.cases import CASES, IMAGE, text, turn
from tests.delivery.holdout import HoldoutCluster

SEARCH = AgentProfile("a", "a", "flow", (3, 4, 0), Generation.FUNCTION_CALLING, tools=(Tool("ListIndexTool", "list"),))


def planned(value: Any) -> Plan:
    request = read_execute(json.dumps({"input": value}).encode())
    assert request.input is not None
    return rewrite_input(SEARCH, request, request.input, Policy(), "t1").plan


@pytest.mark.parametrize(
    ("value", "question", "codes"),
    [
        (" plain\n", " plain\n", []),
        ([text(" "), text("books")], "books", ["BLANK_TEXT_DROPPED"]),
        ([text("books "), text("by Ada")], "books\nby Ada", ["TEXT_JOINED"]),
        ([turn("user", " "), turn("user", "books")], "books", ["BLANK_TEXT_DROPPED"]),
        ([turn("reviewer", "books")], "[reviewer]: books", ["ROLE_MAPPED"]),
    ],
)
def test_the_question_is_all_the_client_wrote(value: Any, question: str, codes: list[str]) -> None:
    plan = planned(value)
    assert (dict(plan.parameters), plan.question) == ({"question": question}, question)
    assert [notice.code for notice in plan.notices] == [*codes, "NO_LLM"]


@pytest.mark.parametrize("role", ["assistant", "system"])
def test_what_the_user_did_not_say_is_no_question(role: str) -> None:
    with pytest.raises(UndeliverableContent):
        planned([turn(role, "books")])


@cache
def cluster(version: str) -> HoldoutCluster:
    return HoldoutCluster(version)


@pytest.mark.parametrize(
    ("version", "agent"), [("2.19.0", "root-flow"), ("2.19.0", "root-chat"), ("3.4.0", "root-flow")]
)
def test_an_agent_run_by_a_tool_gets_the_question_alone_and_keeps_its_prompt(version: str, agent: str) -> None:
    sent = cluster(version).send(agent, {"input": [text("What is"), text("on the shelf?")]})
    assert sent.rewritten is not None
    plan = sent.rewritten.plan
    assert dict(plan.parameters) == {"question": "What is\non the shelf?"}
    assert ([notice.code for notice in plan.notices], plan.proved) == (["TEXT_JOINED", "LLM_NOT_READ"], False)
    assert sent.executed is not None
    system, asked = json.loads(sent.executed.llm_bodies[0])["messages"]
    assert "JSON" in system["content"]
    assert asked["content"].startswith(
        "Make a chart, e.g. {'mark': 'bar', \"x\": [1]}.\nFor What is\non the shelf? over"
    )


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("text, image", "PROVIDER_UNKNOWN"),
        ("JSON object", "TEXT_NOT_SAFE"),
        ("${parameters.question}", "TEXT_NOT_SAFE"),
        ("conversation", "HISTORY_NEEDS_UPGRADE"),
        ("system first", "SYSTEM_NEEDS_SLOT"),
        ("tool call and result", "TOOLS_NEED_UPGRADE"),
    ],
)
@pytest.mark.parametrize("agent", ["root-flow", "root-chat"])
def test_what_the_question_can_not_carry_is_to_be_sent_to_the_agent_that_the_tool_runs(
    agent: str, case: str, code: str
) -> None:
    made = cluster("2.19.0")
    error = made.send(agent, CASES[case].body).error
    assert error is not None
    ran = made.agents["one-json_mode"]
    advice = f"send this input to the agent {ran}, which the flow's tool AgentTool runs"
    assert {problem.code for problem in error.problems} >= {code}
    assert all(problem.help.startswith(advice) for problem in error.problems)


def test_a_flow_whose_tool_with_another_llm_is_not_selected_is_read() -> None:
    body = {"input": [text("Hi"), IMAGE], "parameters": {"selected_tools": ["suggest"]}}
    error = cluster("2.19.0").send("root-chat", body).error
    assert error is not None
    assert [problem.code for problem in error.problems] == ["MEDIA_NEEDS_UPGRADE"]


def test_a_rag_tool_calls_an_llm_that_is_not_read() -> None:
    tools = (Tool("RAGTool", "rag", {"inference_model_id": "m"}),)
    profile = replace(SEARCH, tools=tools)
    request = read_execute(json.dumps({"input": [text("What?"), IMAGE]}).encode())
    assert request.input is not None
    with pytest.raises(UndeliverableContent) as refused:
        rewrite_input(profile, request, request.input, Policy(), "t1")
    (problem,) = refused.value.problems
    assert problem.help == "use an agent without the tool rag, whose LLM the gateway does not read"

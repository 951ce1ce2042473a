"""Flows without an LLM among their tools, or with one that is not read: they take one text, as the question."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.delivery.plan import Plan
from gateway.errors import UndeliverableContent
from gateway.execute.rewrite import RewriteOptions, rewrite_input
from gateway.mlcommons.agents.flow import unread_llm
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Tool
from gateway.unified.request import read_execute
from tests.delivery.cases import CASES, IMAGE, text, turn
from tests.delivery.holdout import HoldoutCluster
from tests.delivery.root_agents import RootCluster
from tests.oracle import Oracle, Outcome

SEARCH = AgentProfile("a", "a", "flow", (3, 4, 0), Generation.FUNCTION_CALLING, tools=(Tool("ListIndexTool", "list"),))


def planned(value: Any) -> Plan:
    request = read_execute(json.dumps({"input": value}).encode())
    assert request.input is not None
    return rewrite_input(SEARCH, request, request.input, RewriteOptions(), "t1").plan


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


@cache
def roots(version: str) -> RootCluster:
    return RootCluster(version)


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
def test_an_agent_that_is_not_read_gets_the_question_alone_and_keeps_its_prompt(version: str) -> None:
    sent = roots(version).send("root of chat", {"input": [text("What is"), text("on the shelf?")]})
    assert sent.rewritten is not None
    plan = sent.rewritten.plan
    assert dict(plan.parameters) == {"question": "What is\non the shelf?"}
    assert ([notice.code for notice in plan.notices], plan.proved) == (["TEXT_JOINED", "LLM_NOT_READ"], False)
    assert sent.executed is not None
    assert "Asked: What is\\non the shelf?" in sent.executed.llm_bodies[0]


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
def test_what_the_question_can_not_carry_is_to_be_sent_to_the_agent_that_the_tool_runs(case: str, code: str) -> None:
    made = roots("2.19.0")
    error = made.send("root of chat", CASES[case].body).error
    assert error is not None
    ran = made.core.resources.agent(made.agents["root of chat"])["tools"][0]["parameters"]["agent_id"]
    advice = f"send this input to the agent {ran}, which the flow's tool AgentTool runs"
    assert {problem.code for problem in error.problems} >= {code}
    assert all(problem.help.startswith(advice) for problem in error.problems)


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
@pytest.mark.parametrize("case", ["several texts", "JSON object", "${parameters.question}", "hostile conversation"])
def test_what_a_flow_behind_an_agent_tool_gets_is_proved(version: str, case: str) -> None:
    made = roots(version)
    sent = made.send("root", CASES[case].body)
    assert sent.rewritten is not None, sent.error
    assert sent.rewritten.plan.proved
    assert Oracle(made).judge("root", {}, (), sent).outcome is Outcome.ARRIVED
    assert sent.executed is not None
    assert "the red one" in sent.executed.llm_bodies[0]


def test_the_advised_upgrade_is_that_of_the_agent_that_calls_the_llm() -> None:
    made = roots("2.19.0")
    error = made.send("root", CASES["text, image"].body).error
    assert error is not None
    (problem,) = error.problems
    assert problem.help.startswith(f"upgrade the agent with `mlc-gateway upgrade {made.agents['inner']}`")


def test_a_flow_that_runs_a_flow_that_runs_an_agent_is_not_read() -> None:
    made = roots("2.19.0")
    error = made.send("root of root", CASES["text, image"].body).error
    assert error is not None
    advice = f"send this input to the agent {made.agents['root']}"
    assert [problem.help[: len(advice)] for problem in error.problems] == [advice]


def test_an_agent_that_the_request_names_is_not_read() -> None:
    made = roots("2.19.0")
    tool = made.profile("root").tools[0]
    assert unread_llm(made.profile("root"), {"agent_id": "another"}) is tool
    assert unread_llm(made.profile("root"), {"AgentTool.agent_id": "another"}) is tool
    assert unread_llm(made.profile("root"), {"agent_id": made.agents["inner"]}) is None


def test_from_30_on_what_follows_another_agent_is_not_rendered() -> None:
    made = roots("3.4.0")
    (tool,) = made.profile("root").tools
    inner = made.profile("inner")
    profile = replace(made.profile("root"), tools=(tool, *inner.tools))
    assert unread_llm(profile, {}) is tool
    assert unread_llm(made.profile("root"), {}) is None
    assert unread_llm(replace(profile, generation=Generation.TEXT), {}) is None


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
        rewrite_input(profile, request, request.input, RewriteOptions(), "t1")
    (problem,) = refused.value.problems
    assert problem.help == "use an agent without the tool rag, whose LLM the gateway does not read"

"""A conversation of texts for an agent without any place for earlier turns arrives as one text."""

from __future__ import annotations

import json

import pytest

from tests.delivery.cases import CALL, CASES, IMAGE, text, turn
from tests.delivery.simulated_cluster import FLOW_PROMPT, cluster_of
from tests.oracle import Oracle, Outcome

TALK = CASES["conversation"]
WHOLE = "Human:What is on the shelf?\nAssistant:Three books.\nHuman:Which ones?"


@pytest.mark.parametrize("agent", ["flow-d", "flow-e", "flow-g", "flow-i", "flow-c", "lister-d"])
def test_all_turns_are_where_the_prompt_has_the_question(agent: str) -> None:
    sent = cluster_of("2.19.0").send(agent, TALK.body)
    assert sent.rewritten is not None, sent.error
    assert [notice.code for notice in sent.rewritten.plan.notices] == ["HISTORY_IN_QUESTION"]
    assert sent.executed is not None
    assert json.dumps(WHOLE)[1:-1] in json.dumps(json.loads(sent.executed.llm_bodies[0]))
    assert Oracle(cluster_of("2.19.0")).judge(agent, {}, (), sent).outcome is Outcome.ARRIVED


@pytest.mark.parametrize(
    ("version", "agent"), [("2.19.0", "flow-g"), ("2.19.0", "cflow-c"), ("3.4.0", "per-openai_tutorial")]
)
def test_the_assistant_may_be_last_where_the_provider_takes_that(version: str, agent: str) -> None:
    sent = cluster_of(version).send(agent, CASES["ends with assistant"].body)
    assert sent.rewritten is not None, sent.error
    assert "HISTORY_IN_QUESTION" in [notice.code for notice in sent.rewritten.plan.notices]
    assert sent.executed is not None
    assert json.dumps(WHOLE.rpartition("\n")[0])[1:-1] in json.dumps(json.loads(sent.executed.llm_bodies[0]))
    assert Oracle(cluster_of(version)).judge(agent, {}, (), sent).outcome is Outcome.ARRIVED


@pytest.mark.parametrize("agent", ["flow-c", "flow-d"])
def test_system_text_is_in_the_users_turn_and_not_in_a_tools(agent: str) -> None:
    talk = [turn("system", "Be brief."), turn("reviewer", "a"), turn("assistant", CALL)]
    talk += [{"role": "tool", "toolCallId": "t1", "content": [text("b")]}, turn("user", "c")]
    cluster = cluster_of("2.19.0")
    sent = cluster.send(agent, {"input": talk})
    verdict = Oracle(cluster).judge(agent, {}, (), sent)
    assert verdict.outcome is Outcome.ARRIVED, verdict
    assert {"SYSTEM_FOLDED", "TOOLS_AS_TEXT", "HISTORY_IN_QUESTION"} <= set(verdict.notices)
    assert sent.executed is not None
    assert "Be brief.\\nc" in sent.executed.llm_bodies[0]


def test_other_tools_get_the_question_alone() -> None:
    sent = cluster_of("2.19.0").send("flow-d", TALK.body)
    assert sent.rewritten is not None
    parameters = sent.rewritten.plan.parameters
    assert parameters["question"] == "Which ones?"
    assert parameters["prompt"].startswith(FLOW_PROMPT.partition("$")[0])


def test_a_place_for_turns_comes_first() -> None:
    for agent, notices in {"cflow-d": ["HISTORY_FLATTENED"], "flow-f": [], "flow-a": []}.items():
        sent = cluster_of("2.19.0").send(agent, TALK.body)
        assert sent.rewritten is not None
        assert [notice.code for notice in sent.rewritten.plan.notices] == notices, agent


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([turn("user", text("a"), IMAGE), turn("assistant", "b"), turn("user", "c")], "MEDIA_NEEDS_UPGRADE"),
        (CASES["ends with assistant"].input, "ASSISTANT_LAST"),
    ],
)
def test_neither_media_nor_what_the_provider_refuses(messages: list[object], code: str) -> None:
    error = cluster_of("2.19.0").send("flow-d", {"input": messages}).error
    assert error is not None
    assert [problem.code for problem in error.problems] == [code]


@pytest.mark.parametrize(
    ("version", "agent"),
    [("2.19.0", "flow-f"), ("2.19.0", "cflow-f"), ("2.19.0", "conv-f")],
)
def test_the_last_turns_texts_are_joined_after_turns_with_media_too(version: str, agent: str) -> None:
    messages = [turn("user", text("a"), IMAGE), turn("assistant", "b"), turn("user", text("c"), text("d"))]
    sent = cluster_of(version).send(agent, {"input": messages})
    assert sent.rewritten is not None, sent.error
    assert "TEXT_JOINED" in [notice.code for notice in sent.rewritten.plan.notices]
    assert Oracle(cluster_of(version)).judge(agent, {}, (), sent).outcome is Outcome.ARRIVED

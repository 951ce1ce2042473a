"""How a conversation ends: the agent's prompt is around what the user asked last."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.delivery.cases import CASES, IMAGE, text, turn
from tests.delivery.simulated_cluster import FLOW_PROMPT, cluster_of
from tests.oracle import Oracle, Outcome

PREFILL, RESULT_LAST = CASES["ends with assistant"], CASES["tool result last"]
ASKED = FLOW_PROMPT.replace("${parameters.question}", "What is on the shelf?")


def received(version: str, agent: str, body: dict[str, Any]) -> Any:
    sent = cluster_of(version).send(agent, body)
    assert sent.rewritten is not None, sent.error
    assert sent.executed is not None
    assert sent.executed.status == 200
    return json.loads(sent.executed.llm_bodies[0])["messages"]


@pytest.mark.parametrize(
    ("version", "agent"), [("2.19.0", "flow-b"), ("3.4.0", "flow-openai_upgraded"), ("3.4.0", "flow-openai_tutorial")]
)
def test_the_prompt_is_around_the_users_last_text(version: str, agent: str) -> None:
    asked, answer = received(version, agent, PREFILL.body)[-2:]
    assert (asked["role"], answer["role"]) == ("user", "assistant")
    assert asked["content"] in (ASKED, [{"type": "text", "text": ASKED}])
    assert answer["content"] == "Three books."


@pytest.mark.parametrize(("version", "agent"), [("2.19.0", "flow-a"), ("3.4.0", "flow-bedrock_tutorial")])
def test_the_last_text_may_be_that_of_an_unknown_role(version: str, agent: str) -> None:
    body = {"input": [turn("user", "Read this."), turn("reviewer", "Is it right?")]}
    (asked,) = received(version, agent, body)
    prompt = FLOW_PROMPT.replace("${parameters.question}", "[reviewer]: Is it right?")
    assert asked["content"] == [{"text": "Read this."}, {"text": prompt}]


@pytest.mark.parametrize(("version", "agent"), [("2.19.0", "cflow-b"), ("3.4.0", "fc-openai_tutorial")])
def test_a_tools_result_stays_last(version: str, agent: str) -> None:
    assert [turn["role"] for turn in received(version, agent, RESULT_LAST.body)][-3:] == ["user", "assistant", "tool"]


def test_memory_holds_a_note_and_no_question_of_an_earlier_turn() -> None:
    sent = cluster_of("2.19.0").send("cflow-b", RESULT_LAST.body)
    assert sent.stored == "[tool result]"


@pytest.mark.parametrize("agent", ["conv-openai_tutorial", "per-openai_tutorial"])
def test_the_clusters_own_prompt_ends_the_last_text_so_all_turns_are_in_it(agent: str) -> None:
    *_, asked = received("3.4.0", agent, PREFILL.body)
    assert asked["role"] == "user"
    assert "Human:What is on the shelf?\nAssistant:Three books." in asked["content"]


@pytest.mark.parametrize("agent", ["conv-openai_tutorial", "per-openai_tutorial"])
def test_media_are_inside_that_text(agent: str) -> None:
    body = {"input": [turn("user", text("Look."), IMAGE), turn("assistant", "A dot.")]}
    sent = cluster_of("3.4.0").send(agent, body)
    assert sent.rewritten is not None, sent.error
    assert "HISTORY_IN_QUESTION" in [notice.code for notice in sent.rewritten.plan.notices]
    assert Oracle(cluster_of("3.4.0")).judge(agent, {}, (), sent).outcome is Outcome.ARRIVED

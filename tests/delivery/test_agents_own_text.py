"""What the agent itself puts into a request stays whole: its system text, its parts, its tools' settings."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.delivery.cases import CASES, IMAGE, media, text, turn
from tests.delivery.holdout import HoldoutCluster
from tests.delivery.upgrades import upgrade


@cache
def cluster(version: str, upgraded: bool = False) -> HoldoutCluster:
    made = HoldoutCluster(version)
    if upgraded:
        upgrade(made)
    return made


def received(made: HoldoutCluster, agent: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """The body of the first LLM call, and the notices."""
    sent = made.send(agent, {"input": value})
    assert sent.executed is not None, sent.error
    assert sent.executed.status == 200, sent.executed.body
    assert sent.rewritten is not None
    return json.loads(sent.executed.llm_bodies[0]), [notice.code for notice in sent.rewritten.plan.notices]


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
@pytest.mark.parametrize("upgraded", [False, True])
def test_system_text_is_not_put_into_the_middle_of_the_agents_own(version: str, upgraded: bool) -> None:
    body, notices = received(cluster(version, upgraded), "one-llama_many", CASES["system first"].input)
    assert body["system"] == [{"text": "Answer from: the shelves. Today is unknown."}]
    assert "SYSTEM_FOLDED" in notices


def test_system_text_follows_the_agents_own_in_a_parameter_of_the_connector() -> None:
    body, notices = received(
        cluster("2.19.0"), "conversational_flow-litellm", [turn("system", "Be brief."), turn("user", "Hi")]
    )
    assert body["messages"][0] == {"role": "system", "content": 'Context of the shop: "all"\n\nBe brief.'}
    assert notices == []


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
def test_after_an_upgrade_the_agents_parts_are_sent_with_media_alone(version: str) -> None:
    body, notices = received(cluster(version, upgraded=True), "flow-mistral_documents", [IMAGE])
    own, *rest = body["messages"][0]["content"]
    assert own["text"].startswith("Documents:\nrow")
    assert [list(part) for part in rest] == [["image"], ["text"]]
    assert notices == ["NEUTRAL_TEXT_ADDED"]


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
def test_after_an_upgrade_the_agents_parts_are_beside_the_question_before_a_tools_result(version: str) -> None:
    made = cluster(version, upgraded=True)
    body, _ = received(made, "flow-mistral_documents", CASES["tool result last"].input)
    first, *_, last = body["messages"]
    assert [part["text"][:10] for part in first["content"]] == ["Documents:", "Weather?"]
    assert [list(part) for part in last["content"]] == [["toolResult"]]


def test_a_template_may_use_what_function_calling_sets() -> None:
    body, notices = received(cluster("3.4.0"), "calling-own_tools", [text("What is this?"), IMAGE])
    assert (body["tool_choice"], body["parallel_tool_calls"], len(body["tools"])) == ("auto", False, 2)
    assert body["messages"][0] == {"role": "developer", "content": "You are a helper."}
    assert notices == ["USER_TURN_SPLIT"]


def test_the_interface_of_deepseek_has_its_tools_in_a_text() -> None:
    body, _ = received(
        cluster("3.4.0"), "calling-r1_converse", [text("What?"), media("image", "png", "QQ=="), text("It?")]
    )
    assert "toolConfig" not in body
    assert body["system"][0]["text"].count("toolSpec") == 2
    assert [list(part) for part in body["messages"][0]["content"]] == [["text"], ["image"], ["text"]]

"""On 3.x, templates that the tutorials do not have: parts of their own, turns without a role, content in a variable."""

from __future__ import annotations

from functools import cache

import pytest

from tests.delivery.cases import CASES, IMAGE, text, turn
from tests.delivery.unseen import UnseenCluster
from tests.oracle import Oracle, Outcome


@cache
def cluster() -> UnseenCluster:
    return UnseenCluster("3.4.0")


@pytest.mark.parametrize(
    ("agent", "case"),
    [
        ("flow-vision_slot", "text, image"),
        ("flow-vision_slot", "images in every turn"),
        ("flow-vision_slot", "tool call and result"),
        ("conversational_flow-gemini_few_shot", "images in every turn"),
        ("conversational_flow-gemini_few_shot", "tool result last"),
        ("flow-converse_content", "conversation"),
        ("flow-converse_content", "images in every turn"),
        ("conversational_flow-converse_content", "hostile conversation"),
        ("chat-ollama", "tool call and result"),
    ],
)
def test_it_arrives_without_an_upgrade(agent: str, case: str) -> None:
    sent = cluster().send(agent, CASES[case].body)
    verdict = Oracle(cluster()).judge(agent, {}, (), sent)
    assert verdict.outcome is Outcome.ARRIVED, verdict


TALK = [
    turn("user", "What is on the shelf?"),
    turn("assistant", 'Three $ ${parameters.x} "books".'),
    turn("user", text("And this?"), IMAGE),
]


@pytest.mark.parametrize(
    ("agent", "notices"),
    [
        ("chat-vllm", {"USER_TURN_SPLIT", "HISTORY_FLATTENED", "MEMORY_HOLDS_CODE"}),
        ("chat-ollama", {"NEUTRAL_TEXT_ADDED"}),
    ],
)
def test_react_agents_take_media_in_the_current_turn_together_with_history(agent: str, notices: set[str]) -> None:
    sent = cluster().send(agent, {"input": TALK})
    assert sent.rewritten is not None, sent.error
    assert {notice.code for notice in sent.rewritten.plan.notices} == notices
    assert Oracle(cluster()).judge(agent, {}, (), sent).outcome is Outcome.ARRIVED

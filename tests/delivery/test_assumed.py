"""Plans for agents that can't be read: nothing is left out without a notice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.delivery.plan import Plan, assume
from gateway.errors import UndeliverableContent
from gateway.providers import registry
from gateway.providers.base import MappingOptions
from gateway.unified.request import read_execute
from tests.delivery.cases import turn

SYSTEM, ASK = turn("system", "Be brief."), turn("user", "What is on the shelf?")


def assumed(provider: str, *messages: Any) -> Plan:
    agent_input = read_execute(json.dumps({"input": messages}).encode()).input
    assert agent_input is not None
    return assume(registry.provider(provider), agent_input, {}, MappingOptions(), "t1")


@pytest.mark.parametrize(
    ("provider", "field", "parts"), [("bedrock", "messages", "content"), ("gemini", "contents", "parts")]
)
def test_system_text_is_in_the_first_user_turn(provider: str, field: str, parts: str) -> None:
    plan = assumed(provider, SYSTEM, ASK)
    wanted = [{"role": "user", parts: [{"text": "Be brief."}, {"text": "What is on the shelf?"}]}]
    assert json.loads(plan.parameters[field]) == wanted
    assert plan.parameters["question"] == "What is on the shelf?"
    assert [(notice.code, notice.place) for notice in plan.notices] == [
        ("SYSTEM_FOLDED", "input[0].content"),
        ("NOT_PROVED", ""),
    ]


def test_system_text_among_the_messages_stays_there() -> None:
    plan = assumed("openai", SYSTEM, ASK)
    assert [message["role"] for message in json.loads(plan.parameters["messages"])] == ["system", "user"]
    assert [notice.code for notice in plan.notices] == ["NOT_PROVED"]


def test_system_text_without_a_user_turn_is_refused() -> None:
    with pytest.raises(UndeliverableContent) as raised:
        assumed("bedrock", SYSTEM, turn("reviewer", "Looks fine."))
    (problem,) = raised.value.problems
    assert (problem.place, problem.code) == ("input[0]", "SYSTEM_NEEDS_SLOT")

"""Agent types by name, and what each of them does before its first LLM call."""

from __future__ import annotations

import pytest

from gateway.mlcommons.agents import BEHAVIOURS, behaviour_of
from gateway.mlcommons.agents.conversational import Conversational
from gateway.mlcommons.generations import FLOW_TYPES, AgentType, Generation
from gateway.mlcommons.profile import AgentProfile


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flow", AgentType.FLOW),
        ("FLOW", AgentType.FLOW),
        ("conversational_v2", AgentType.CONVERSATIONAL_V2),
        ("conversational/v2", AgentType.CONVERSATIONAL_V2),
        ("plan_execute_and_reflect", AgentType.PLANNER),
        ("", None),
        ("new_type", None),
    ],
)
def test_a_type_by_its_name(name: str, expected: AgentType | None) -> None:
    assert AgentType.of(name) is expected


def test_every_type_has_a_behaviour() -> None:
    assert set(BEHAVIOURS) == set(AgentType)
    assert {type_ for type_, behaviour in BEHAVIOURS.items() if behaviour.runs_tools} == FLOW_TYPES


def test_an_unknown_type_is_taken_for_a_conversational_one() -> None:
    profile = AgentProfile("a", "", "new_type", (3, 4, 0), Generation.FUNCTION_CALLING)
    assert isinstance(behaviour_of(profile), Conversational)

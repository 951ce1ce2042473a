"""The agent types of ML Commons, and other spellings of their names."""

from __future__ import annotations

from enum import StrEnum


class AgentType(StrEnum):
    """A type, by the name that ML Commons gives it."""

    FLOW = "flow"
    CONVERSATIONAL_FLOW = "conversational_flow"
    CONVERSATIONAL = "conversational"
    PLANNER = "plan_execute_and_reflect"
    CONVERSATIONAL_V2 = "conversational_v2"
    AG_UI = "ag_ui"

    @classmethod
    def of(cls, name: str) -> AgentType | None:
        """Return the type called `name`, in any case or spelling; None for one that is not known."""
        lower = name.lower()
        return next((type_ for type_ in cls if lower in (type_.value, _SPELLINGS.get(type_))), None)


_SPELLINGS = {AgentType.CONVERSATIONAL_V2: "conversational/v2"}

FLOW_TYPES = frozenset({AgentType.FLOW, AgentType.CONVERSATIONAL_FLOW})
"""Agents that run their tools in order and never their `llm` block."""

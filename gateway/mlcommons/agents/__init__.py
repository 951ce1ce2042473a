"""What each agent type does before its first LLM call. A new type is a file here and a row in `BEHAVIOURS`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.mlcommons.agents.base import AgentBehaviour
from gateway.mlcommons.agents.conversational import Conversational
from gateway.mlcommons.agents.conversational_v2 import ConversationalV2
from gateway.mlcommons.agents.flow import ConversationalFlow, Flow
from gateway.mlcommons.agents.planner import Planner
from gateway.mlcommons.generations import AgentType
from gateway.mlcommons.profile import AgentProfile

_CONVERSATIONAL = Conversational()

BEHAVIOURS: Mapping[AgentType, AgentBehaviour] = {
    AgentType.FLOW: Flow(),
    AgentType.CONVERSATIONAL_FLOW: ConversationalFlow(),
    AgentType.CONVERSATIONAL: _CONVERSATIONAL,
    AgentType.PLANNER: Planner(),
    AgentType.CONVERSATIONAL_V2: ConversationalV2(),
    AgentType.AG_UI: _CONVERSATIONAL,
}


def behaviour_of(profile: AgentProfile) -> AgentBehaviour:
    """Return the behaviour of the agent's type; an unknown type is taken for a conversational one."""
    return BEHAVIOURS[profile.agent_type or AgentType.CONVERSATIONAL]

"""What each agent type does before its first LLM call, and what it calls that is not read.

A new type is a file here and a row in `BEHAVIOURS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.mlcommons.agents.base import AgentBehaviour
from gateway.mlcommons.agents.conversational import Conversational
from gateway.mlcommons.agents.conversational_v2 import ConversationalV2
from gateway.mlcommons.agents.flow import ConversationalFlow, Flow, selected_tools, unread_llm
from gateway.mlcommons.agents.planner import Planner
from gateway.mlcommons.generations import ABILITIES, AgentType
from gateway.mlcommons.profile import AgentProfile, Tool
from gateway.mlcommons.template import RuntimeValues
from gateway.mlcommons.tool_types import MODEL_TOOL

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


def unread_tools(profile: AgentProfile, params: Mapping[str, str]) -> list[Tool]:
    """Return the tools that may send what the caller wrote to something that is not read.

    Of a flow: its first tool that gets all parameters, and those that send one text. Of a conversational agent, whose
    LLM writes the input of its tools: those that get all parameters, from 3.0 on, since tools inherit the request's
    (tried on 3.6.0; before, only an MLModelTool does).

    Raises:
        RenderFailure: as for `selected_tools` and `tool_values`.
    """
    behaviour = behaviour_of(profile)
    if isinstance(behaviour, Flow):
        unread = unread_llm(profile, params)
        texts = [step.tool for step in behaviour.text_steps(profile, params, RuntimeValues())]
        return texts if unread is None else [unread, *texts]
    return [tool for tool in selected_tools(profile, params) if tool.calls_unread_llm] if _inherit(profile) else []


def tools_inherit(profile: AgentProfile) -> bool:
    """Return True if a tool of a conversational agent that is no MLModelTool calls something with what it inherits."""
    callers = (tool for tool in profile.tools if tool.type != MODEL_TOOL)
    return _inherit(profile) and any(tool.target is not None or tool.calls_unread_llm for tool in callers)


def _inherit(profile: AgentProfile) -> bool:
    is_conversational = profile.agent_type in (AgentType.CONVERSATIONAL, AgentType.AG_UI)
    return is_conversational and ABILITIES[profile.generation].raw_parameters

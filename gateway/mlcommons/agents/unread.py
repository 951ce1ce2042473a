"""Which tools of an agent call something that the gateway does not read, with what the caller wrote."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.mlcommons.agents import behaviour_of
from gateway.mlcommons.agents.flow import Flow, selected_tools, unread_llm
from gateway.mlcommons.generations import ABILITIES, AgentType
from gateway.mlcommons.profile import AgentProfile, Tool
from gateway.mlcommons.template import RuntimeValues
from gateway.mlcommons.tool_types import MODEL_TOOL


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

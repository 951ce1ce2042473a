"""Defaults of a registration, and replacements for what a version does not have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.mlcommons.agent_types import AgentType
from gateway.register.marks import keeps_sessions
from gateway.register.specs import Registration
from gateway.register.target import CONVERSATION_INDEX, FLOWS, V2, Target

_TOOLS = ("ListIndexTool", "IndexMappingTool", "SearchIndexTool")
_LISTER = {False: "CatIndexTool", True: "ListIndexTool"}
"""The tool that lists indices, before and from 3.0, which renamed it (sources of 2.19.0.0 and 3.0.0.0)."""

PLACEHOLDER_TOOL: Mapping[str, Any] = {
    "type": "VisualizationTool",
    "name": "none",
    "description": "Not available.",
}
"""A tool that every version has and that does no harm, for agents that can't run without one (docs/internals/facts.md,
"Agents without tools, and registrations at once")."""
APP_TYPE = ""
"""A conversational_flow remembers only if it has an `app_type`, which may be empty (facts, the same section)."""


def tool_type(name: str, target: Target) -> str:
    """Return the tool's type on the cluster. Only the tool that lists indices has two names."""
    return _LISTER[target.since((3, 0))] if name in _LISTER.values() else name


def default_tools(target: Target) -> list[dict[str, Any]]:
    """Return the RFC's three tools with their types on the cluster. ML Commons has them without another plugin."""
    return [{"type": tool_type(name, target)} for name in _TOOLS]


def named_tools(tools: list[dict[str, Any]], target: Target) -> list[dict[str, Any]]:
    """Return the client's tools. A tool whose type has another name on the cluster gets its old type as its name."""
    return [
        tool
        if (type_ := tool_type(tool["type"], target)) == tool["type"]
        else {"name": tool["type"], **tool, "type": type_}
        for tool in tools
    ]


def made_type(agent_type: str, target: Target) -> str:
    """Return the type of the agent to make: `conversational` for a V2 type that the cluster does not have."""
    return agent_type if agent_type != V2 or target.has_type(V2) else AgentType.CONVERSATIONAL.value


def made_memory(registration: Registration, target: Target) -> dict[str, Any] | None:
    """Return the agent's `memory` on the cluster: `conversation_index` by default; None for a flow.

    An agent whose sessions the gateway keeps has a `conversation_index` too, because a conversational agent does not
    run without a memory (docs/internals/facts.md, "Agents without tools, and registrations at once").
    """
    asked: Mapping[str, Any] | None = registration.document.get("memory")
    if asked is None:
        return None if registration.type == AgentType.FLOW else {"type": CONVERSATION_INDEX}
    type_ = str(asked.get("type") or CONVERSATION_INDEX)
    if target.has_memory(type_.lower()) and not keeps_sessions(registration, target):
        return {**asked, "type": type_}
    options = {name: asked[name] for name in ("window_size", "session_id") if name in asked}
    return {"type": CONVERSATION_INDEX, **options}


def has_default_tools(agent_type: str) -> bool:
    """Return True if an agent of this type gets default tools. A flow does not, because it runs every tool it has."""
    return agent_type not in FLOWS

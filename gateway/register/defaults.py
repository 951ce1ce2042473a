"""What a registration that says less gets, and what takes the place of things a version has not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.register.target import FLOWS, V2, Target

MEMORY = "conversation_index"
_TOOLS = ("ListIndexTool", "IndexMappingTool", "SearchIndexTool")
_LISTER = {False: "CatIndexTool", True: "ListIndexTool"}
"""The tool that lists indices, before and from 3.0, which renamed it (sources of 2.19.0.0 and 3.0.0.0)."""


def tool_type(name: str, target: Target) -> str:
    """Return the tool's type there: the tool that lists indices has two names, all others one."""
    return _LISTER[target.since((3, 0))] if name in _LISTER.values() else name


def default_tools(target: Target) -> list[dict[str, Any]]:
    """Return the RFC's three tools, under the types they have there; ML Commons itself has them, without another plugin."""
    return [{"type": tool_type(name, target)} for name in _TOOLS]


def named_tools(tools: list[dict[str, Any]], target: Target) -> list[dict[str, Any]]:
    """Return the client's tools; one whose type has another name there keeps the old one as its name."""
    return [
        tool
        if (type_ := tool_type(tool["type"], target)) == tool["type"]
        else {"name": tool["type"], **tool, "type": type_}
        for tool in tools
    ]


def made_type(agent_type: str, target: Target) -> str:
    """Return the type of the agent that is made: `conversational` where the asked one is V2 and the cluster has none."""
    return agent_type if agent_type != V2 or target.has_type(V2) else "conversational"


def made_memory(agent_type: str, asked: Mapping[str, Any] | None, target: Target) -> dict[str, Any] | None:
    """Return the agent's `memory`: `conversation_index` by default and in place of an unknown type; None for a flow."""
    if asked is None:
        return None if agent_type == "flow" else {"type": MEMORY}
    type_ = str(asked.get("type") or MEMORY)
    if target.has_memory(type_.lower()):
        return {**asked, "type": type_}
    kept = {name: asked[name] for name in ("window_size", "session_id") if name in asked}
    return {"type": MEMORY, **kept}


def has_default_tools(agent_type: str) -> bool:
    """Return True if an agent of this type gets tools when none are named; a flow runs every tool it has, so it does not."""
    return agent_type not in FLOWS

"""Registrations that the cluster itself carries out, from their `model` block. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gateway.mlcommons.agent_types import AgentType
from gateway.notices import Notice
from gateway.providers import registry
from gateway.register.defaults import PLACEHOLDER_TOOL
from gateway.register.specs import Registration
from gateway.register.target import PLAN, V2, Target, takes

_SYSTEM_SLOTS = ("bedrock/converse", "gemini/v1beta/generatecontent")
"""Providers whose V2 agents have a system prompt, from `parameters` only (docs/internals/facts.md,
"conversational_v2")."""

_PLANNER_READS = ("bedrock/converse", "openai/v1/chat/completions")
"""Providers whose response a planner can read. For any other it answers 500 "Unsupported llm interface", unless it is
given the path of the text (sources of 3.0.0.0 to 3.8.0.0)."""
RESPONSE_FILTER = "llm_response_filter"
"""The parameter of a planner with that path."""


def as_native(body: bytes, registration: Registration, target: Target) -> bytes | None:
    """Return the body for a cluster that `takes` it, or None to forward it unchanged."""
    if not takes(target, registration):
        raise ValueError("the cluster does not take this registration")
    edits = native_edits(registration)
    if registration.type_given.lower() == registration.type and edits.keys() == {"type"}:
        return None
    document: dict[str, Any] = json.loads(body)
    return json.dumps({**document, **edits}, ensure_ascii=False).encode()


def native_edits(registration: Registration) -> dict[str, Any]:
    """Return the members in which the cluster's registration differs from the client's, and `type`."""
    edits: dict[str, Any] = {"type": registration.type}
    if _needs_placeholder(registration):
        edits["tools"] = [PLACEHOLDER_TOOL]
    parameters = registration.document.get("parameters") or {}
    added = {name: value for name, value in _missing_parameters(registration) if name not in parameters}
    if added:
        edits["parameters"] = {**parameters, **added}
    return edits


def _missing_parameters(registration: Registration) -> Iterator[tuple[str, str]]:
    """Yield parameters that the cluster does not set itself, and without which it loses a text or fails."""
    spec = registration.model
    if spec is None:
        return
    if registration.type == V2 and spec.provider in _SYSTEM_SLOTS and spec.parameters.get("system_prompt"):
        yield "system_prompt", spec.parameters["system_prompt"]
    if registration.type == PLAN and spec.provider not in _PLANNER_READS:
        yield RESPONSE_FILTER, registry.connectors()[spec.provider].response_filter


def _needs_placeholder(registration: Registration) -> bool:
    """Return True for a V1 agent without tools: the cluster sends an empty list, which Bedrock and OpenAI refuse."""
    if registration.type not in (AgentType.CONVERSATIONAL, PLAN):
        return False
    return not registration.document.get("tools") and not registration.has_mcp


def native_notices(registration: Registration) -> Iterator[Notice]:
    """Yield the notices about an agent that the cluster makes from its `model` block."""
    if _needs_placeholder(registration):
        reason = "the cluster would send an empty list of tools, which models refuse; a tool called none was added"
        yield Notice("PLACEHOLDER_TOOL", reason, "tools")
    spec = registration.model
    if spec is None or registration.type != V2:
        return
    places = {"parameters": registration.document.get("parameters") or {}, "model.model_parameters": spec.parameters}
    for place, parameters in places.items():
        if "max_iteration" in parameters:
            reason = "a V2 agent reads max_iteration from the parameters of each execute only; its default is 5"
            yield Notice("V2_PARAMETER_IGNORED", reason, f"{place}.max_iteration")
        if "system_prompt" in parameters and spec.provider not in _SYSTEM_SLOTS:
            reason = "the cluster's V2 agents for this provider have no system prompt; send a message of role system"
            yield Notice("V2_PARAMETER_IGNORED", reason, f"{place}.system_prompt")

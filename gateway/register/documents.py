"""The bodies that make model, MCP connectors and agent from a registration, with its defaults. Pure.

ML Commons 3.8 makes the same from a `model` block: a remote model with an inner connector, and an agent. Here the
connector has the upgraded template, and every document can be found by the registration's tag.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.codes import Notice
from gateway.mlcommons.generations import AgentType
from gateway.mlcommons.profile import GATEWAY_SESSIONS, MEMORY_MARK, OUTPUT_MARK, UNIFIED
from gateway.providers import registry
from gateway.providers.connector import ModelSpec, as_name, compact
from gateway.register.target import (
    CONVERSATION_INDEX,
    FLOWS,
    PLAN,
    V2,
    McpServer,
    Registration,
    Target,
    makes_model,
    own_mcp_connectors,
    takes,
)

_TOOLS = ("ListIndexTool", "IndexMappingTool", "SearchIndexTool")
_LISTER = {False: "CatIndexTool", True: "ListIndexTool"}
"""The tool that lists indices, before and from 3.0, which renamed it (sources of 2.19.0.0 and 3.0.0.0)."""

PLACEHOLDER_TOOL: Mapping[str, Any] = {
    "type": "VisualizationTool",
    "name": "none",
    "description": "Not available.",
}
"""A tool that every version has and that does no harm, for agents that can't run without one (docs/evidence/facts.md,
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
    run without a memory (docs/evidence/facts.md, "Agents without tools, and registrations at once").
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


def keeps_sessions(registration: Registration, target: Target) -> bool:
    """Return True for an `agentic_memory` that the cluster does not have, and for a V2 agent that it can't have.

    A V2 agent that asks for a `conversation_index` gets it.
    """
    asked = registration.memory_type
    if not target.keeps_sessions or asked == CONVERSATION_INDEX:
        return False
    return answers_unified(registration, target) or (bool(asked) and not target.has_memory(asked))


def answers_unified(registration: Registration, target: Target) -> bool:
    """Return True for a V2 agent on a cluster that has none."""
    return registration.type == V2 and not target.has_type(V2)


def marks(registration: Registration, target: Target) -> dict[str, str]:
    """Return the agent's parameters that say what the gateway does for it."""
    found: dict[str, str] = {}
    if keeps_sessions(registration, target):
        found[MEMORY_MARK] = GATEWAY_SESSIONS
    if answers_unified(registration, target):
        found[OUTPUT_MARK] = UNIFIED
    return found


TAG = "mlc-gateway"
"""A model's or connector's description ends in this word and the tag."""
REGISTRATION_PARAMETER = "mlc_gateway_registration"
"""The agent's parameter that holds the tag."""
METADATA_PARAMETER = "mlc_gateway"
"""The agent's parameter that holds, as a JSON string, the ids made and the requested features that were replaced."""

_LLM_TOOL = "MLModelTool"
_MEMORY_MEMBERS = {"app_type", "memory"}
_MEMORY_OPTIONS = ("type", "memory_container_id", "session_id", "window_size")
"""Members of a requested memory that are kept. One in another cluster may hold a credential too."""
_QUESTION = "${parameters.question}"
_PROMPTS = {
    AgentType.FLOW.value: _QUESTION,
    AgentType.CONVERSATIONAL_FLOW.value: "${parameters.chat_history:-}" + _QUESTION,
}
"""The default prompt of an LLM tool: the conversation that the cluster remembers, then the question."""


def model_group_body(registration: Registration, tag: str) -> dict[str, Any]:
    """Return the body of `POST /_plugins/_ml/model_groups/_register`: the group of this one model.

    Models that are registered at the same time in one group fail (docs/evidence/facts.md, "Agents without tools, and
    registrations at once"), and by default all models of one name are in one group.
    """
    return {"name": _model_name(_model(registration)), "description": f"Model of an agent, {TAG} {tag}"}


def _model_name(spec: ModelSpec) -> str:
    return as_name(f"Auto-generated model for {spec.model_id}")


def model_body(registration: Registration, target: Target, tag: str, group_id: str = "") -> dict[str, Any]:
    """Return the body of `POST /_plugins/_ml/models/_register?deploy=true`: a remote model with its connector inside.

    group_id: its model group; "" for the cluster's choice.

    Raises:
        ValueError: the registration has no model (see `makes_model`).
    """
    spec = _model(registration)
    calls_functions = bool(target.llm_interface(spec.provider))
    connector = registry.connectors()[spec.provider]
    return {
        "name": _model_name(spec),
        "function_name": "remote",
        **({"model_group_id": group_id} if group_id else {}),
        "description": f"Auto-generated model for agent, {TAG} {tag}",
        "connector": connector.document(spec, calls_functions, _has_tools(registration, target)),
        # Empty; otherwise some models would get a schema of their old request form (docs/evidence/facts.md,
        # "Lookups").
        "interface": {},
    }


def mcp_connector_body(server: McpServer, tag: str) -> dict[str, Any]:
    """Return the body of `POST /_plugins/_ml/connectors/_create` for one MCP server (3.0.0.0 and 3.8.0.0 sources)."""
    body: dict[str, Any] = {
        "name": server.name,
        "description": f"MCP server of an agent, {TAG} {tag}",
        "version": "1",
        "protocol": server.protocol,
        "url": server.url,
        "credential": {name: secret.reveal() for name, secret in server.credential.items()},
        "headers": dict(server.headers),
    }
    if server.endpoint:
        body["parameters"] = {"sse_endpoint" if server.protocol == "mcp_sse" else "endpoint": server.endpoint}
    return body


def agent_body(
    registration: Registration, target: Target, tag: str, model_id: str, mcp_connector_ids: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the body of `POST /_plugins/_ml/agents/_register`.

    Args:
        model_id: the id of the model that was made; "" if none was needed (`makes_model`). In that case the cluster
        gets
            the `model` block, with its credential, or the client's own `llm`.
        mcp_connector_ids: one for each server of `registration.mcp`, in the same order.
    """
    document = dict(registration.document)
    metadata: dict[str, Any] = {"model_id": model_id} if model_id else {}
    metadata["mcp_connector_ids"] = list(mcp_connector_ids)
    parameters = dict(document.get("parameters") or {})
    if registration.mcp:
        parameters["mcp_connectors"] = _mcp_connectors(registration, parameters, mcp_connector_ids)
    document["type"] = registration.type
    if makes_model(target, registration):
        document |= _made(registration, target, model_id, parameters)
    elif registration.model is not None:
        edits = native_edits(registration)
        parameters = {**edits.pop("parameters", {}), **parameters}
        document |= {**edits, "model": _block(registration.model)}
    else:
        document |= made_members(registration, target)
    spec = registration.model
    if spec is not None:
        metadata["model"] = {"model_id": spec.model_id, "model_provider": spec.provider}
    if document["type"] != registration.type:
        metadata["type"] = registration.type
    asked = registration.document.get("memory")
    if asked and memory_changed(asked, document.get("memory")):
        metadata["memory"] = {name: asked[name] for name in _MEMORY_OPTIONS if name in asked}
    parameters |= {REGISTRATION_PARAMETER: tag, METADATA_PARAMETER: compact(metadata), **marks(registration, target)}
    return {**document, "parameters": parameters}


def _made(registration: Registration, target: Target, model_id: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the members that name the new model. parameters: the agent's; those for function calling are added."""
    spec = _model(registration)
    provider = registry.connectors()[spec.provider]
    interface = target.llm_interface(spec.provider)
    type_ = made_type(registration.type, target)
    members = made_members(registration, target)
    if type_ in FLOWS:
        tool = {"model_id": model_id, **spec.parameters, "response_filter": provider.response_filter}
        return {**members, "tools": _with_llm_tool(members["tools"], tool, _PROMPTS[type_])}
    llm = dict(spec.parameters)
    if interface:
        parameters["_llm_interface"] = interface
        llm["prompt"] = _QUESTION
    else:
        llm["response_filter"] = provider.response_filter
    if type_ == PLAN:
        # Its planner reads the agent's parameters, not those of `llm`, and does not know the path of Gemini's text
        # (sources of 3.0.0.0 to 3.8.0.0).
        parameters.setdefault(RESPONSE_FILTER, provider.response_filter)
    return {**members, "llm": {"model_id": model_id, "parameters": llm}}


def made_members(registration: Registration, target: Target) -> dict[str, Any]:
    """Return the members of an agent that are adapted to the cluster.

    Those of an agent with a `model` block have defaults. An agent that names its own LLM gets none, but a
    conversational_flow with an `app_type` or a `memory` gets the other one, and an agent whose sessions the gateway
    keeps the memory that the cluster requires.
    """
    members = _members(registration, target)
    if registration.model is not None:
        return members
    kept = {"type", *registration.document}
    if _MEMORY_MEMBERS & kept or keeps_sessions(registration, target):
        kept |= _MEMORY_MEMBERS
    return {name: value for name, value in members.items() if name in kept}


def _members(registration: Registration, target: Target) -> dict[str, Any]:
    """Return `type`, `tools`, `memory` and a conversational_flow's `app_type` for this cluster, with defaults."""
    document, type_ = registration.document, made_type(registration.type, target)
    tools = document.get("tools")
    if tools is None:
        tools = default_tools(target) if has_default_tools(type_) else []
    elif needs_placeholder(registration, target):
        tools = [PLACEHOLDER_TOOL]
    members: dict[str, Any] = {"type": type_, "tools": named_tools(tools, target)}
    memory = made_memory(registration, target)
    if memory is not None:
        members["memory"] = memory
    if type_ == AgentType.CONVERSATIONAL_FLOW:
        members["app_type"] = document.get("app_type", APP_TYPE)
    return members


def _has_tools(registration: Registration, target: Target) -> bool:
    """Return True if the agent has any tools, including those of MCP servers. A flow always has one for its model."""
    if made_type(registration.type, target) in FLOWS or registration.document.get("tools") != []:
        return True
    return registration.has_mcp


def needs_placeholder(registration: Registration, target: Target) -> bool:
    """Return True if the agent has no tools, and does not call functions either.

    Such an agent, or the one that a planner runs its steps with, fails or never answers (docs/evidence/facts.md,
    "Agents without tools, and registrations at once").
    """
    spec = registration.model
    calls_functions = spec is not None and target.llm_interface(spec.provider)
    return not calls_functions and not _has_tools(registration, target)


def _with_llm_tool(tools: list[dict[str, Any]], parameters: dict[str, str], prompt: str) -> list[dict[str, Any]]:
    """Set the model of the flow's LLM tools that name none; add an LLM tool if there is none."""
    if not any(map(wants_model, tools)):
        tools = [*tools, {"type": _LLM_TOOL}]
    return [
        {**tool, "parameters": {**parameters, "prompt": prompt, **(tool.get("parameters") or {})}}
        if wants_model(tool)
        else tool
        for tool in tools
    ]


def wants_model(tool: Mapping[str, Any]) -> bool:
    """Return True for an MLModelTool that names no model: it runs the registration's."""
    named = {**(tool.get("parameters") or {}), **(tool.get("config") or {})}
    return tool["type"] == _LLM_TOOL and not named.get("model_id")


def _mcp_connectors(
    registration: Registration, parameters: Mapping[str, Any], ids: Sequence[str]
) -> list[dict[str, Any]]:
    """Return `parameters.mcp_connectors`: the client's own entries, then one for each new connector."""
    made = []
    for server, connector_id in zip(registration.mcp, ids, strict=True):
        entry: dict[str, Any] = {"mcp_connector_id": connector_id}
        made.append({**entry, "tool_filters": list(server.tools)} if server.tools else entry)
    return [*own_mcp_connectors(parameters), *made]


def _block(spec: ModelSpec) -> dict[str, Any]:
    """Return the `model` block for a cluster that accepts it."""
    credential = {name: secret.reveal() for name, secret in spec.credential.items()}
    block: dict[str, Any] = {"model_id": spec.model_id, "model_provider": spec.provider, "credential": credential}
    return {**block, "model_parameters": dict(spec.parameters)} if spec.parameters else block


def _model(registration: Registration) -> ModelSpec:
    if registration.model is None:
        raise ValueError("the registration has no model")
    return registration.model


def memory_changed(asked: Mapping[str, Any], made: Mapping[str, Any] | None) -> bool:
    """Return True if the agent remembers in another type of memory than the client asked for."""
    return bool(asked.get("type")) and (made or {}).get("type") != asked["type"]


_SYSTEM_SLOTS = ("bedrock/converse", "gemini/v1beta/generatecontent")
"""Providers whose V2 agents have a system prompt, from `parameters` only (docs/evidence/facts.md,
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

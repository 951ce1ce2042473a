"""Checks the bodies of connectors and agents, and makes the stored documents.

The checks, their order and their texts are those of the source of 2.19 and 3.4, or recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.simulator.errors import Json, RestFailure
from gateway.simulator.interfaces import INTERFACES, UNIFIED_INTERFACES
from gateway.simulator.settings import MCP_SWITCH
from gateway.simulator.values import to_parameters

_CLASSIC_TYPES = ("flow", "conversational", "conversational_flow")
_MODERN_TYPES = (*_CLASSIC_TYPES, "plan_execute_and_reflect")
_UNIFIED_TYPES = (*_MODERN_TYPES, "conversational_v2")
_NAME_LIMIT = 128
_MCP_SSE = "mcp_sse"
_MCP = (_MCP_SSE, "mcp_streamable_http")
_PROTOCOLS = ("http", "aws_sigv4")
_NULL_PARAMETERS = (
    'Cannot invoke "java.util.Map.containsKey(Object)" because the return value of '
    '"org.opensearch.ml.common.agent.MLAgent.getParameters()" is null'
)


def refused(reason: str) -> RestFailure:
    """Return a 400 illegal_argument_exception."""
    return RestFailure(400, "illegal_argument_exception", reason)


def mcp_is_off() -> RestFailure:
    """Return the 500 for a body that needs MCP connectors while the setting is off (3.x)."""
    reason = f"The MCP connector is not enabled. To enable, please update the setting {MCP_SWITCH}"
    return RestFailure(500, "exception", reason)


# Connectors


def check_connector(body: Mapping[str, Any], modern: bool, mcp_on: bool) -> None:
    """Check the body of ``connectors/_create``.

    Raises:
        RestFailure: 400, or 500 for an `mcp_sse` one while MCP is off (the other MCP protocol goes unchecked).
    """
    for name in ("name", "version", "protocol"):
        if body.get(name) is None:
            raise refused(f"Connector {name} is null")
    protocol = body["protocol"]
    mcp = modern and protocol in _MCP
    if not mcp and not body.get("credential"):
        raise refused("Connector credential is null or empty list")
    if mcp and not str(body.get("url") or "").strip():
        raise refused("MCP Connector url is null or blank")
    if modern and protocol == _MCP_SSE and not mcp_on:
        raise mcp_is_off()
    if not mcp and protocol not in _PROTOCOLS:
        raise refused(f"Can't find class for type {protocol}")
    if mcp and not _is_web(body["url"]):
        raise refused("Connector URL is not matching the trusted connector endpoint regex")
    if not mcp and body.get("actions") is None:
        raise refused("No actions configured for this connector")


def connector_document(body: Mapping[str, Any], modern: bool) -> Json:
    """Return a connector as it is stored, standalone or in a model, with its credential."""
    document: Json = {name: body[name] for name in ("name", "description", "protocol") if name in body}
    document["version"] = str(body.get("version", "1"))
    if body.get("parameters") is not None:
        document["parameters"] = to_parameters(body["parameters"], modern)
    if modern and body.get("protocol") in _MCP:
        document |= {name: body[name] for name in ("url", "headers") if body.get(name)}
    else:
        document["actions"] = [_action(action) for action in body.get("actions") or ()]
    document |= {name: dict(body[name]) for name in ("credential", "client_config") if body.get(name)}
    return document


def change_connector(document: Json, body: Mapping[str, Any], modern: bool) -> None:
    """Apply a PUT to a connector: parameters are merged, actions replaced, the credential replaced if one is sent.

    An MCP connector's parameters are replaced instead (source 3.4).
    """
    names = ("name", "description", "version", "protocol", "client_config", "url", "headers")
    document.update({name: body[name] for name in names if body.get(name) is not None})
    if body.get("credential"):
        document["credential"] = dict(body["credential"])
    if body.get("parameters"):
        old = {} if "url" in document else document.get("parameters", {})
        document["parameters"] = {**old, **to_parameters(body["parameters"], modern)}
    if "actions" in body:
        document["actions"] = [_action(action) for action in body["actions"]]


def _action(body: Mapping[str, Any]) -> Json:
    if not _is_web(body.get("url")):
        named = "Connector URL is not matching the trusted connector endpoint regex, URL is: "
        raise refused(f"{named}{body.get('url')}")
    return {**body, "action_type": str(body["action_type"]).upper()}


def _is_web(url: Any) -> bool:
    return str(url or "").startswith(("http://", "https://"))


# Agents


def check_agent(body: Mapping[str, Any], modern: bool, unified: bool, mcp_on: bool) -> None:
    """Check the body of ``agents/_register``. modern: for 3.x. unified: for 3.5 or later.

    Raises:
        RestFailure: 400; 500 if MCP is needed and off, or for a null that the cluster does not expect.
    """
    if body.get("llm") is not None and body["llm"].get("model_id") is None:
        raise refused("model id is null")
    tools = body.get("tools") or ()
    if any(tool.get("type") is None for tool in tools):
        raise refused("tool type is null")
    if body.get("name") is None:
        raise refused("Agent name can't be null")
    if modern:
        _check_name(body["name"])
    if body.get("type") is None:
        raise refused("Agent type can't be null")
    kind = body["type"].lower()
    if kind not in (_UNIFIED_TYPES if unified else _MODERN_TYPES if modern else _CLASSIC_TYPES):
        raise refused(f"{body['type']} is not a valid Agent Type")
    if kind == "conversational":
        _check_model(body)
    _check_tools(tools)
    if modern:
        _check_modern(kind, body, unified, mcp_on)


def _check_modern(kind: str, body: Mapping[str, Any], unified: bool, mcp_on: bool) -> None:
    parameters = body.get("parameters")
    given = to_parameters(parameters or {}, True)
    if given.get("mcp_connectors") is not None and not mcp_on:
        raise mcp_is_off()
    interface = given.get("_llm_interface")
    if interface is not None and not interface.strip():
        raise refused("_llm_interface cannot be blank or empty")
    if interface is not None and interface not in (UNIFIED_INTERFACES if unified else INTERFACES):
        raise refused(f"Invalid _llm_interface: {interface}")
    if kind == "plan_execute_and_reflect":
        if parameters is None:
            raise RestFailure(500, "null_pointer_exception", _NULL_PARAMETERS)
        if "executor_agent_id" not in given:
            _check_model(body)  # the executor made of it is a conversational agent


def _check_name(name: str) -> None:
    if not name.strip() or len(name) > _NAME_LIMIT:
        raise refused(f"Agent name cannot be empty or exceed max length of {_NAME_LIMIT} characters")


def _check_model(body: Mapping[str, Any]) -> None:
    if body.get("llm") is None:
        raise refused("We need model information for the conversational agent type")


def _check_tools(tools: Any) -> None:
    names = [tool.get("name") or tool["type"] for tool in tools]
    doubles = [name for position, name in enumerate(names) if name in names[:position]]
    if doubles:
        raise refused(f"Duplicate tool defined: {doubles[0]}")


def agent_document(body: Mapping[str, Any], modern: bool) -> Json:
    """Return an agent as it is stored."""
    copied = ("name", "type", "description", "app_type", "memory", "model")
    document: Json = {name: body[name] for name in copied if body.get(name) is not None}
    if body.get("llm") is not None:
        document["llm"] = {"model_id": body["llm"]["model_id"]}
        if body["llm"].get("parameters") is not None:
            document["llm"]["parameters"] = to_parameters(body["llm"]["parameters"], modern)
    if body.get("parameters") is not None:
        document["parameters"] = to_parameters(body["parameters"], modern)
    if body.get("tools"):
        document["tools"] = [_tool(tool, modern) for tool in body["tools"]]
    return document


def executor_of(planner: Mapping[str, Any]) -> Json:
    """Return the agent a planner gets for its steps: itself, but conversational (source 3.4)."""
    name = planner["name"]
    description = f"Execution Agent for Plan Execute Reflect - {name}"
    return {**planner, "name": f"{name} (ReAct)", "type": "CONVERSATIONAL", "description": description}


def change_agent(document: Json, body: Mapping[str, Any], modern: bool) -> None:
    """Apply a PUT to an agent (3.x). Members other than name, description, app_type, llm, tools, parameters and memory
    are ignored.

    Parameters of agent and LLM are merged; tools are replaced unless there are none (probed on 3.6).

    Raises:
        RestFailure: 400 for another type, name or memory than the cluster allows.
    """
    if body.get("name") is not None:
        _check_name(body["name"])
    memory = body.get("memory") or {}
    if memory.get("type") not in (None, "conversation_index"):
        raise refused(f"Invalid memory type: {memory['type']}")
    _check_tools(body.get("tools") or ())
    if body.get("type") not in (None, document["type"]):
        raise refused("Agent type cannot be updated")
    document |= {name: body[name] for name in ("name", "description", "app_type") if body.get(name) is not None}
    if body.get("tools"):
        document["tools"] = [_tool(tool, modern) for tool in body["tools"]]
    if body.get("parameters"):
        document["parameters"] = {**document.get("parameters", {}), **to_parameters(body["parameters"], modern)}
    llm = body.get("llm") or {}
    if llm.get("model_id") is not None or llm.get("parameters"):
        _change_llm(document, llm, modern)
    known = {name: memory[name] for name in ("type", "session_id", "window_size") if memory.get(name) is not None}
    if known:
        document["memory"] = {**document.get("memory", {}), **known}


def _change_llm(document: Json, llm: Mapping[str, Any], modern: bool) -> None:
    old = document.get("llm", {})
    parameters = {**old.get("parameters", {}), **to_parameters(llm.get("parameters") or {}, modern)}
    document["llm"] = {"model_id": llm.get("model_id") or old.get("model_id")}
    if parameters:
        document["llm"]["parameters"] = parameters


def _tool(body: Mapping[str, Any], modern: bool) -> Json:
    tool: Json = {name: body[name] for name in ("type", "name", "description") if body.get(name) is not None}
    for name in ("parameters", "config", "attributes"):
        if body.get(name) is not None:
            tool[name] = to_parameters(body[name], modern)
    return {**tool, "include_output_in_agent_response": bool(body.get("include_output_in_agent_response", False))}

"""Notices about the differences between a registration and the agent that is made. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.notices import Notice
from gateway.providers import registry
from gateway.providers.connector import ModelSpec
from gateway.register.documents import made_members, memory_changed, needs_placeholder, wants_model
from gateway.register.marks import answers_unified, keeps_sessions
from gateway.register.native import native_notices
from gateway.register.specs import Registration
from gateway.register.target import FLOWS, Target, makes_model


def notices(registration: Registration, target: Target) -> tuple[Notice, ...]:
    """Return the notices about differences between the registration and the agent that is made."""
    return tuple(_notices(registration, target))


def _notices(registration: Registration, target: Target) -> Iterator[Notice]:
    spec = registration.model
    if spec is not None and not makes_model(target, registration):
        yield from native_notices(registration)
        return
    members = made_members(registration, target)
    yield from _of_type(registration, target, members)
    yield from _of_memory(registration, target, members)
    yield from _of_tools(registration, target, members)
    if spec is not None:
        yield from _of_model(spec, members)


_NO_CONTAINER = "the memory names no container (memory_container_id), which the cluster requires in each run"


def _of_type(registration: Registration, target: Target, members: Mapping[str, Any]) -> Iterator[Notice]:
    if members["type"] != registration.type:
        missing = f"the cluster has no {registration.type} agents"
        reason = f"{missing if target.has_container else _NO_CONTAINER}: this one is {members['type']}"
        yield Notice("V2_AS_LEGACY", f"{reason}, and the gateway answers for it in the unified form", "type")


def _of_memory(registration: Registration, target: Target, members: Mapping[str, Any]) -> Iterator[Notice]:
    document = registration.document
    if keeps_sessions(registration, target):
        missing = f"{registration.type} agents" if answers_unified(registration, target) else registration.memory_type
        reason = f"the cluster has no {missing}" if target.has_container else _NO_CONTAINER
        reason += ", so the gateway keeps this agent's sessions"
        yield Notice("GATEWAY_MEMORY", reason, "memory")
    elif memory_changed(document.get("memory") or {}, members.get("memory")):
        reason = f"the cluster has no {registration.memory_type}" if target.has_container else _NO_CONTAINER
        reason += ", so this agent has a conversation_index"
        yield Notice("MEMORY_AS_CONVERSATION_INDEX", reason, "memory")
    for name in ("app_type", "memory"):
        if "app_type" in members and name not in document:
            reason = f"a conversational_flow remembers only with `app_type` and `memory`, so `{name}` was set"
            yield Notice("FLOW_MEMORY_SET", reason, name)


def _of_tools(registration: Registration, target: Target, members: Mapping[str, Any]) -> Iterator[Notice]:
    for index, (tool, made) in enumerate(
        zip(registration.document.get("tools") or (), members.get("tools") or (), strict=False)
    ):
        if tool["type"] != made["type"]:
            reason = f"{tool['type']} is called {made['type']} on this cluster"
            yield Notice("TOOL_RENAMED", reason, f"tools[{index}].type")
    if needs_placeholder(registration, target):
        reason = "this agent can't run without a tool, so it has one that does nothing, called none"
        yield Notice("PLACEHOLDER_TOOL", reason, "tools")


def _of_model(spec: ModelSpec, members: Mapping[str, Any]) -> Iterator[Notice]:
    if members["type"] in FLOWS and not any(map(wants_model, members["tools"])):
        reason = "no tool of the flow ran the model, so an MLModelTool was added at its end; its prompt is the question"
        yield Notice("FLOW_MODEL_TOOL", reason, "tools")
    for name in registry.connectors()[spec.provider].left_out(spec):
        reason = f"{name} is not sent: the model does not take it beside the other parameters given"
        yield Notice("SAMPLING_LEFT_OUT", reason, f"model.model_parameters.{name}")

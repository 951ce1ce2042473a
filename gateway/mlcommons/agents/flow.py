"""Flows: agents that run their tools in order. An MLModelTool calls an LLM, an AgentTool runs another agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

from gateway.mlcommons.agent_types import FLOW_TYPES, AgentType
from gateway.mlcommons.agents.base import AgentBehaviour, Requirement
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import ABILITIES
from gateway.mlcommons.profile import AgentProfile, Model, Tool
from gateway.mlcommons.runtime_values import RuntimeValues
from gateway.mlcommons.template import escape_json


class LlmStep(NamedTuple):
    """A tool that calls an LLM, at its turn. profile: the flow that has it, which an AgentTool may run.

    before: that flow's parameters then. The tool's own are not among them.
    """

    profile: AgentProfile
    tool: Tool
    before: Mapping[str, str]

    def values(self) -> dict[str, str]:
        """Return what the flow passes to the tool. Raises as `tool_values`."""
        return tool_values(self.profile, self.tool, self.before)


class Flow(AgentBehaviour):
    """`flow`: no memory."""

    runs_tools: ClassVar[bool] = True
    replays_history: ClassVar[bool] = False
    """Memory is replayed as `chat_history`."""

    def first_llm(self, profile: AgentProfile, params: Mapping[str, str]) -> tuple[Model | None, Tool | None]:
        """Return the model of the first tool that has one, and that tool.

        A tool with an LLM that is not read gets all parameters, so that none but the question may be sent: then there
        is no model to send anything to.
        """
        if unread_llm(profile, params) is not None:
            return None, None
        step = next(_llm_steps(profile, params, RuntimeValues()), None)
        return (None, None) if step is None else (step.tool.model, step.tool)

    def lacks(self, profile: AgentProfile, params: Mapping[str, str]) -> tuple[Requirement, ...]:
        """Without a tool, a flow answers 400."""
        return () if selected_tools(profile, params) else ("tool",)

    def call_values(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
        """Return the parameters of the first tool that calls an LLM."""
        step = next(self.llm_steps(profile, params, env), None)
        if step is None or unread_llm(profile, params) is not None:
            raise RenderFailure("no tool of this flow calls an LLM")
        return step.values()

    def llm_steps(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> Iterator[LlmStep]:
        """Yield the tools that call an LLM, in the order they run; those of the agents that AgentTools run too."""
        history = {"chat_history": env.history} if self.replays_history and env.history is not None else {}
        return _llm_steps(profile, {**params, **history}, env)


class ConversationalFlow(Flow):
    """`conversational_flow`: a flow with memory."""

    replays_history: ClassVar[bool] = True


def _llm_steps(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> Iterator[LlmStep]:
    values = dict(params)
    for tool in selected_tools(profile, params):
        if tool.model is not None:
            yield LlmStep(profile, tool, dict(values))
        elif tool.agent is not None:
            yield from _llm_steps(tool.agent, tool_values(profile, tool, values), env)
        values[f"{tool.key}.output"] = escape_json(env.tool_output)


def selected_tools(profile: AgentProfile, params: Mapping[str, str]) -> list[Tool]:
    """Return a flow's tools in the order they run, cut to the caller's `selected_tools` (a JSON list of names).

    Raises:
        RenderFailure: `selected_tools` is anything else, which the cluster can't read.
    """
    selected = params.get("selected_tools")
    if selected is None:
        return list(profile.tools)
    try:
        names = json.loads(selected)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RenderFailure("selected_tools is not a JSON list of names")
    by_key = {tool.key: tool for tool in profile.tools}
    return [by_key[name] for name in names if name in by_key]


def unread_llm(profile: AgentProfile, params: Mapping[str, str]) -> Tool | None:
    """Return the first tool of a flow that calls an LLM which is not read; None if there is none.

    An agent that an AgentTool runs counts as not read if the request names another one (`agent_id`), and from 3.0 on
    before an LLM tool: its answer is inserted raw there, which is not rendered here.

    Raises:
        RenderFailure: as for `selected_tools` and `tool_values`.
    """
    if AgentType.of(profile.type) not in FLOW_TYPES:
        return None
    tools = selected_tools(profile, params)
    inserts_raw = ABILITIES[profile.generation].raw_parameters
    for at, tool in enumerate(tools, 1):
        if tool.calls_unread_llm:
            return tool
        if tool.agent is None:
            continue
        passed = tool_values(profile, tool, params)
        if passed["agent_id"] != tool.agent.id or unread_llm(tool.agent, passed) is not None:
            return tool
        if inserts_raw and any(later.models for later in tools[at:]):
            return tool
    return None


def tool_values(profile: AgentProfile, tool: Tool, values: Mapping[str, str]) -> dict[str, str]:
    """Return what a flow passes to a tool: its own parameters, the request's over them, its config over all.

    A request parameter ``<tool>.x`` is that tool's `x` (2.19 and 3.4; on 2.x the tool's type serves as well).

    Raises:
        RenderFailure: the request has `x` and ``<tool>.x`` on 2.x, where the order of a hash table decides.
    """
    merged = {**tool.parameters, **values}
    prefixes = [f"{tool.key}."]
    is_classic = not ABILITIES[profile.generation].raw_parameters
    if is_classic:
        prefixes.append(f"{tool.type}.")
    for name, value in values.items():
        for prefix in prefixes:
            if name.startswith(prefix):
                own = name.removeprefix(prefix)
                if is_classic and values.get(own, value) != value:
                    raise RenderFailure(f"both {own} and {name} are sent")
                merged[own] = value
    merged.update(tool.config)
    return merged

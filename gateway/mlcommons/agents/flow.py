"""Flows: agents that run their tools in order. What each type of tool calls is in `gateway.mlcommons.tool_types`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, NamedTuple

from gateway.mlcommons.agents.base import AgentBehaviour, Requirement
from gateway.mlcommons.expansion import RenderFailure, UnknownRendering, expand, spend, spend_on_json
from gateway.mlcommons.generations import ABILITIES, FLOW_TYPES, AgentType
from gateway.mlcommons.profile import AgentProfile, Model, Tool, overlay
from gateway.mlcommons.template import RuntimeValues, escape_json, may_be_json
from gateway.mlcommons.tool_types import CONNECTOR_TOOL, PLANNING_TOOL, type_of

# Stands for the cluster's own text: only the placeholders in it matter to the proof.
_BUILTIN_PLANNING = "<built-in> ${parameters.question} <end>"
_SETS_ITSELF = ("template", "index_mapping", "sample_document", "current_time")
"""What a QueryPlanningTool sets in place of the request's parameters, beside its two prompts (tried on 3.6.0)."""
_PLANS = "llmGenerated"
_WORK_OF_NAME = 20
"""Units of `spend` for each parameter that reaches a tool."""


class LlmStep(NamedTuple):
    """A tool that calls an LLM or a connector, at its turn. profile: the flow that has it, which an AgentTool may run.

    before: that flow's parameters then. The tool's own are not among them.
    """

    profile: AgentProfile
    tool: Tool
    before: Mapping[str, str]

    def values(self) -> dict[str, str]:
        """Return what the tool calls its target with. Raises as `tool_values`."""
        return target_values(self.profile, self.tool, tool_values(self.profile, self.tool, self.before))

    def one_text(self) -> str | None:
        """Return the only text that a tool sends (`Tool.sends_one_text`); None without one. Raises as `tool_values`."""
        values = tool_values(self.profile, self.tool, self.before)
        text = values.get(type_of(self.tool.type).text_name)
        return None if text is None else expand(text, values)

    def templates(self) -> tuple[str, ...]:
        """Return the values of the tool's own."""
        return own_values(self.tool)


class Flow(AgentBehaviour):
    """`flow`: no memory."""

    runs_tools: ClassVar[bool] = True
    replays_history: ClassVar[bool] = False
    """Memory is replayed as `chat_history`."""

    def first_llm(self, profile: AgentProfile, params: Mapping[str, str]) -> tuple[Model | None, Tool | None]:
        """Return the model of the first tool that has one, or else the first connector, and its tool.

        A tool with an LLM that is not read gets all parameters, so that none but the question may be sent: then there
        is no model to send anything to.
        """
        step = _first_step(self, profile, params, RuntimeValues())
        return (None, None) if step is None else (step.tool.target, step.tool)

    def lacks(self, profile: AgentProfile, params: Mapping[str, str]) -> tuple[Requirement, ...]:
        """Without a tool, a flow answers 400."""
        return () if selected_tools(profile, params) else ("tool",)

    def call_values(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
        """Return the parameters of the tool of `first_llm`."""
        step = _first_step(self, profile, params, env)
        if step is None:
            raise RenderFailure("no tool of this flow calls an LLM")
        return step.values()

    def llm_steps(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> Iterator[LlmStep]:
        """Yield the tools that call an LLM or a connector that is read, in the order they run.

        Those of the agents that AgentTools run are among them.
        """
        return (step for step in self._steps(profile, params, env) if step.tool.target is not None)

    def text_steps(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> Iterator[LlmStep]:
        """Yield the tools that call something which is not read with one text (`Tool.sends_one_text`)."""
        return (step for step in self._steps(profile, params, env) if step.tool.sends_one_text)

    def _steps(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> Iterator[LlmStep]:
        history = {"chat_history": env.history} if self.replays_history and env.history is not None else {}
        return _steps(profile, {**params, **history}, env)


class ConversationalFlow(Flow):
    """`conversational_flow`: a flow with memory."""

    replays_history: ClassVar[bool] = True


def _first_step(flow: Flow, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> LlmStep | None:
    if unread_llm(profile, params) is not None:
        return None
    steps = list(flow.llm_steps(profile, params, env))
    return next((step for step in steps if step.tool.model is not None), steps[0] if steps else None)


def _steps(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> Iterator[LlmStep]:
    values = dict(params)
    tools = selected_tools(profile, params)
    keeps_outputs = len(tools) > 1 and _may_use_outputs(tools, params)
    for tool in tools:
        if tool.target is not None or tool.sends_one_text:
            yield LlmStep(profile, tool, dict(values))
        elif tool.agent is not None:
            yield from _steps(tool.agent, tool_values(profile, tool, values), env)
        if keeps_outputs:
            values[f"{tool.key}.output"] = _output(profile, tool, env)


def _may_use_outputs(tools: Iterable[Tool], params: Mapping[str, str]) -> bool:
    """Return False if no text and no parameter names a tool's output, as otherwise each tool is passed all of them."""
    if any("output" in text for item in params.items() for text in item):
        return True
    for tool in tools:
        if tool.agent is not None or any(
            "output" in text for text in (*tool.parameters, *tool.config, *own_values(tool))
        ):
            return True
        if (target := tool.target) is not None:
            connector = target.connector
            texts = (connector.request_body, *connector.parameters, *connector.parameters.values())
            if any("output" in text for text in (*texts, *target.required_inputs)):
                return True
    return False


def _output(profile: AgentProfile, tool: Tool, env: RuntimeValues) -> str:
    """Return what later tools get of a tool's answer: JSON that 3.0 and later insert raw, or an escaped text."""
    if tool.type not in (CONNECTOR_TOOL, PLANNING_TOOL):
        return escape_json(env.tool_output)
    answer = json.dumps({"response": env.tool_output})
    return answer if ABILITIES[profile.generation].raw_parameters else escape_json(answer)


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
    last_llm = max((at for at, tool in enumerate(tools) if tool.calls_llm), default=0) if inserts_raw else 0
    for at, tool in enumerate(tools):
        if tool.calls_unread_llm or _plans_by_templates(profile, tool, params):
            return tool
        if tool.agent is None:
            continue
        passed = tool_values(profile, tool, params)
        if passed["agent_id"] != tool.agent.id or unread_llm(tool.agent, passed) is not None:
            return tool
        if at < last_llm:
            return tool
    return None


def tool_values(profile: AgentProfile, tool: Tool, values: Mapping[str, str]) -> dict[str, str]:
    """Return what a flow passes to a tool: its own parameters, the request's over them, its config over all.

    A request parameter ``<tool>.x`` is that tool's `x` (2.19 and 3.4; on 2.x the tool's type serves as well).

    Raises:
        UnknownRendering: the request has `x` and ``<tool>.x`` on 2.x, where the order of a hash table decides.
    """
    spend(_WORK_OF_NAME * len(values))
    merged = overlay(tool.parameters, values)
    is_classic = not ABILITIES[profile.generation].raw_parameters
    prefixes = (f"{tool.key}.", f"{tool.type}.") if is_classic else (f"{tool.key}.",)
    for name in [name for name in values if name.startswith(prefixes)]:
        value = values[name]
        for prefix in filter(name.startswith, prefixes):
            own = name.removeprefix(prefix)
            if is_classic and values.get(own, value) != value:
                raise UnknownRendering(f"both {own} and {name} are sent")
            merged[own] = value
    merged.update(tool.config)
    return merged


def own_values(tool: Tool) -> tuple[str, ...]:
    """Return the values of a tool's own parameters and config, which may be templates."""
    return (*tool.parameters.values(), *tool.config.values())


def target_values(profile: AgentProfile, tool: Tool, values: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters with which a tool that gets `values` calls its model or connector.

    From 3.0 on the members of an `input` that is a JSON object are parameters, too. A QueryPlanningTool has prompts of
    its own (docs/evidence/facts.md, "Tools that call a model").

    Raises:
        UnknownRendering: what `input` holds depends on the cluster's lenient parser.
    """
    members = _members_of_input(values) if ABILITIES[profile.generation].raw_parameters else {}
    passed = {**values, **members}
    if tool.type == PLANNING_TOOL:
        passed |= dict.fromkeys(_SETS_ITSELF, "<built-in>")
        passed["system_prompt"] = passed.get("query_planner_system_prompt", "<built-in>")
        passed["user_prompt"] = passed.get("query_planner_user_prompt", _BUILTIN_PLANNING)
    return {**passed, **members}


def _members_of_input(values: Mapping[str, str]) -> dict[str, str]:
    text = expand(values.get("input", ""), values)
    if not may_be_json(text):
        return {}
    spend_on_json(text)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise UnknownRendering("the tool's input may or may not count as JSON") from None
    members = found.items() if isinstance(found, dict) else ()
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in members}


def _plans_by_templates(profile: AgentProfile, tool: Tool, params: Mapping[str, str]) -> bool:
    """Return True for a QueryPlanningTool that lets its model choose a template first, which is not rendered here."""
    return tool.type == PLANNING_TOOL and tool_values(profile, tool, params).get("generation_type", _PLANS) != _PLANS

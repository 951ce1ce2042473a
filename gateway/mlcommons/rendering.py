"""What the LLM would receive: an agent's first LLM call, rendered as the cluster renders it.

The proof of every plan stands on this module. It follows FACTS.md ("Rules", "Rendering, in detail", and the
3.x differences): how each agent type merges parameters, how often prompts are substituted, what is escaped and
what goes in raw. Where the cluster's own words or run-time values come in (built-in prompts, remembered turns,
tool outputs), symbols stand for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.generations import ABILITIES, Generation
from gateway.mlcommons.profile import AgentProfile, Model, Tool
from gateway.mlcommons.template import (
    PREFIX,
    ExpansionTooLarge,
    InfiniteLoop,
    Lookup,
    escape_json,
    may_be_json,
    substitute,
)
from gateway.providers import registry

# FACTS.md, 3.4.0: what a function-calling agent inserts raw unless the request says otherwise.
DEFAULT_RAW = "_chat_history,_tools,_interactions,tool_configs"
_TO_STRING = ".toString()"
_PLANNER_RAW = "tool_configs,_tools"

# How far placeholders may expand: characters in all, and for each character of the template and its values. A text
# beyond ASCII becomes six characters each, and may stand in a template twice.
_LEAST_EXPANSION = 100_000
_EXPANSION = 16
_TOO_LARGE = Problem(
    "parameters",
    "the placeholders in the parameters and the connector's template hold one another so often that they expand to "
    "many times their length",
    "parameters that are not nested",
    code="AGENT_NOT_CALLABLE",
    help="name each parameter once, or put its text where it is used",
)

FLOW_TYPES = frozenset({"flow", "conversational_flow"})

# Symbols for words that are not ours: only the placeholders in them matter to the proof.
_BUILTIN_PROMPT = (
    "<built-in> ${parameters.prompt.prefix} ${parameters.tool_descriptions} ${parameters.tool_names} "
    "${parameters.prompt.format_instruction} ${parameters.chat_history} \n${parameters.question} \n"
    "${parameters.scratchpad} ${parameters.prompt.suffix} <end>"
)
_BUILTIN_PLANNER = "<built-in> ${parameters.planner_prompt} \n${parameters.user_prompt} \n<end>"
# FACTS.md, 3.5 and later: the system prompt of a conversational agent that has none.
_DEFAULT_SYSTEM = "You are a helpful assistant."

# What a missing value makes `null`, quotes and all.
_NULL_DEFAULT = re.compile(r'"\$\{parameters\.(\w+):-null\}"')


class RenderFailure(Exception):
    """The cluster would refuse, or its rendering can't be foretold; the text says why."""


@dataclass(frozen=True, slots=True)
class RuntimeValues:
    """Run-time values the gateway can't know: what memory replays and what earlier tools answer."""

    history: str | None = None
    tool_output: str = ""


def llm_tools(profile: AgentProfile, params: Mapping[str, str]) -> list[Tool]:
    """The tools of a flow in the order they run, cut to the caller's `selected_tools` (a JSON list of names).

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


def first_llm(profile: AgentProfile, params: Mapping[str, str]) -> tuple[Model | None, Tool | None]:
    """The model that the agent calls first, and the flow's tool that calls it.

    Raises:
        RenderFailure: as `llm_tools`.
    """
    if profile.type not in FLOW_TYPES:
        return profile.llm, None
    tool = next((tool for tool in llm_tools(profile, params) if tool.model is not None), None)
    return (tool.model if tool else None), tool


def is_function_calling(profile: AgentProfile, params: Mapping[str, str]) -> bool:
    """Whether a conversational agent uses the LLM's own function calling (3.0 and later)."""
    interface = params.get("_llm_interface", profile.llm_interface)
    return bool(interface) and ABILITIES[profile.generation].raw_parameters


def call_values(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
    """The parameters of the first LLM call as the agent hands them to the connector, before escaping.

    Raises:
        RenderFailure: the agent would fail before it calls the LLM.
    """
    if profile.generation is Generation.UNIFIED_V1:
        params = {**params, "body": _unified_turn(profile, params.get("question", ""))}
    if profile.type in FLOW_TYPES:
        return _flow(profile, params, env)
    if profile.type == "plan_execute_and_reflect":
        return _planner(profile, params, env)
    return _conversational(profile, params, env)


def _unified_turn(profile: AgentProfile, question: str) -> str:
    """What a unified V1 agent makes of a question before it runs: the user's turn, over any `body` of the request.

    The question is escaped and substituted once with no parameters, so a `$` that escapes a placeholder goes.
    (3.8.0 placeholder_trick, body_override; the turn's shape from the recorded LLM bodies of 3.5 to 3.8.)
    """
    planner = profile.type == "plan_execute_and_reflect"
    text = "${parameters.prompt}" if planner else _substituted(escape_json(question), {})
    known = ((p.name, p.cluster) for p in registry.providers())
    shape = next((support.user_turn for name, support in known if support and profile.provider.startswith(name)), "")
    return shape.replace("TEXT", text)


def _flow(
    profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues, target: Tool | None = None
) -> dict[str, str]:
    values = dict(params)
    if profile.type == "conversational_flow" and env.history is not None:
        values["chat_history"] = env.history
    target = target or first_llm(profile, params)[1]
    if target is None:
        raise RenderFailure("no tool of this flow calls an LLM")
    for tool in llm_tools(profile, params):
        if tool is target:
            break
        values[f"{tool.key}.output"] = escape_json(env.tool_output)
    return tool_values(profile, target, values)


def tool_values(profile: AgentProfile, tool: Tool, values: Mapping[str, str]) -> dict[str, str]:
    """What a flow hands to one of its tools: its own parameters, the request's over them, its config over all.

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


def _conversational(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
    values = {**_own_parameters(profile), **params}
    calls_functions = is_function_calling(profile, params)
    if calls_functions:
        interface = values.get("_llm_interface", "").lower()
        values.setdefault("no_escape_params", DEFAULT_RAW)
        for provider in registry.providers():
            if provider.cluster is not None and interface.startswith(provider.name):
                values["tool_configs"] = provider.cluster.tool_config
        values["_tools"] = '{"gwtool": 1}' if profile.tools else ""
    if env.history is not None:
        if calls_functions:  # it replays turns as messages, over any the request brought
            turn = {"role": "user", "content": [{"text": env.history}]}
            values["_chat_history"] = json.dumps(turn).replace("$", "\\u0024") + ", "
        else:
            values["chat_history"] = env.history
    values = {**profile.llm_parameters, **values}
    for name in ("prompt.prefix", "prompt.suffix", "prompt.format_instruction"):
        values.setdefault(name, "<built-in>")
    if profile.version >= (3, 5):
        values.setdefault("system_prompt", _DEFAULT_SYSTEM)
    values["prompt"] = _prompt_passes(values, calls_functions)
    return values


def _own_parameters(profile: AgentProfile) -> dict[str, str]:
    # The 2.x chat agent reads only `llm.parameters` and the request (FACTS.md, rule 5).
    return dict(profile.parameters) if ABILITIES[profile.generation].raw_parameters else {}


def _prompt_passes(values: Mapping[str, str], calls_functions: bool) -> str:
    """The prompt after the agent's passes: all parameters first, unescaped, then one map after the other."""
    prompt = values.get("prompt", _BUILTIN_PROMPT)
    passes: list[Mapping[str, str]] = [
        values,
        {name: values.get(name, "") for name in ("prompt.prefix", "prompt.suffix")},
        {} if calls_functions else {"tool_descriptions": "<tools>", "tool_names": "<names>"},
        {"opensearch_indices": ""},
        {"examples": ""},
        {"chat_history": values.get("chat_history", "")},
        {"context": values.get("context", "")},
        {"scratchpad": ""},
    ]
    for names in passes:
        prompt = _substituted(prompt, names)
    return prompt


def _planner(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
    values = {**params, **profile.parameters}  # here the agent's own win over the request's
    values.pop("prompt", None)
    values["user_prompt"] = values.get("question", "")
    values.setdefault("system_prompt", "<built-in>")
    values.setdefault("planner_prompt", "<built-in>")
    values["no_escape_params"] = _PLANNER_RAW
    template = values.get("planner_prompt_template", _BUILTIN_PLANNER)
    if env.history is not None:
        values["completed_steps"] = env.history
        template = values.get("planner_with_history_template", f"{_BUILTIN_PLANNER} ${{parameters.completed_steps}}")
    values["prompt"] = _substituted(template, values)
    return values


def payload(model: Model, values: Mapping[str, str], raw_parameters: bool) -> str:
    """The request body that the connector makes of `values`.

    raw_parameters: whether the cluster knows `no_escape_params`.

    Raises:
        RenderFailure: a value that may or may not count as JSON is used, or a placeholder leads to itself.
        UndeliverableContent: the parameters hold one another so often that they expand to many times their length.
    """
    raw = frozenset(map(str.strip, values.get("no_escape_params", "").split(","))) if raw_parameters else frozenset()
    filling = _Filling(model, values, raw)
    template = _NULL_DEFAULT.sub(filling.null_or_quoted, model.connector.request_body)
    return _substituted(template, {**model.connector.parameters, **values}, filling.look_up)


@dataclass(frozen=True, slots=True)
class _Filling:
    """What fills the placeholders of a connector's template. raw: the names of values that go in unescaped.

    Not nested functions: one that calls itself is a cycle, which would keep the values until the next collection.
    """

    model: Model
    values: Mapping[str, str]
    raw: frozenset[str]

    def look_up(self, name: str) -> str | None:
        """Return the value of a placeholder as it goes in; None for one that has none."""
        values = self.values
        value = values.get(name)
        if value is None and name.endswith(_TO_STRING) and any(f"{PREFIX}{name}}}" in v for v in values.values()):
            # Written once more as the inside of a JSON string (2.19.0 06_hazards_tricks, question_toString).
            inner = self.look_up(name.removesuffix(_TO_STRING))
            return json.dumps(inner)[1:-1] if inner is not None else None
        if value is None:
            return self.model.connector.parameters.get(name)
        if name in self.raw:
            return value
        if not may_be_json(value):
            return escape_json(value)
        if is_strict_json(value):
            return value
        raise RenderFailure(f"the parameter {name} may or may not count as JSON")

    def null_or_quoted(self, found: re.Match[str]) -> str:
        """Return what a quoted placeholder with a null default becomes before the substitution."""
        return "null" if self.look_up(found[1]) is None else found[0]


def first_call(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> Any:
    """The body of the agent's first LLM call, as JSON data.

    Raises:
        RenderFailure: the cluster would answer an error instead.
    """
    model, _ = first_llm(profile, params)
    if model is None:
        raise RenderFailure("the agent calls no LLM")
    return parsed(model, call_values(profile, params, env), profile)


def tool_call(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues, tool: Tool) -> Any:
    """The body of the LLM call of a flow's `tool`, wherever it stands among the tools.

    Raises:
        RenderFailure: the cluster would answer an error instead.
    """
    if tool.model is None:
        raise RenderFailure(f"the tool {tool.key} calls no LLM")
    return parsed(tool.model, _flow(profile, params, env, tool), profile)


def parsed(model: Model, values: Mapping[str, str], profile: AgentProfile) -> Any:
    """The payload of `values` checked as the connector checks it: JSON, and no placeholder left in it."""
    text = payload(model, values, ABILITIES[profile.generation].raw_parameters)
    try:
        body = _strict(text)
    except (ValueError, RecursionError):
        raise RenderFailure("the rendered request is not valid JSON") from None
    if PREFIX in text and values.get("skip_validating_missing_parameters", "").lower() != "true":
        name = text.partition(PREFIX)[2].partition("}")[0]
        raise RenderFailure(f"the placeholder {name} is not filled")
    return body


def is_strict_json(text: str) -> bool:
    """Whether `text` is a JSON object or array by RFC 8259, without duplicate names."""
    try:
        return isinstance(_strict(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _strict(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate member names")
    return members


def _substituted(template: str, values: Mapping[str, str], lookup: Lookup | None = None) -> str:
    """`template` with its placeholders filled in. lookup: what `values` become as they go in; themselves if None."""
    limit = _LEAST_EXPANSION + _EXPANSION * (len(template) + sum(map(len, values.values())))
    try:
        return substitute(template, lookup or values, limit=limit)
    except InfiniteLoop as loop:
        raise RenderFailure(f"placeholders lead back to themselves: {loop}") from None
    except RecursionError:
        raise RenderFailure("placeholders are nested too deeply to follow") from None
    except ExpansionTooLarge:
        raise UndeliverableContent.of([_TOO_LARGE]) from None

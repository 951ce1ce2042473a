"""Conversational agents: the 2.x chat agent, function calling (3.0 and later), and unified agents of that type."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gateway.mlcommons.agents.base import AgentBehaviour, Requirement
from gateway.mlcommons.agents.flow import selected_tools
from gateway.mlcommons.expansion import expand
from gateway.mlcommons.generations import ABILITIES, Generation
from gateway.mlcommons.profile import AgentProfile, overlay
from gateway.mlcommons.template import RuntimeValues
from gateway.providers import registry

DEFAULT_RAW = "_chat_history,_tools,_interactions,tool_configs"
"""What a function-calling agent inserts raw unless the request overrides it (3.4.0)."""
_OTHER_RAW = {"bedrock/converse/deepseek_r1": "_chat_history,_interactions"}
"""The same, by the `_llm_interface` for which it is different: its tools are in a text (by source, 3.4.0)."""

# Stands for the cluster's own text: only the placeholders in it matter to the proof.
_BUILTIN_PROMPT = (
    "<built-in> ${parameters.prompt.prefix} ${parameters.tool_descriptions} ${parameters.tool_names} "
    "${parameters.prompt.format_instruction} ${parameters.chat_history} \n${parameters.question} \n"
    "${parameters.scratchpad} ${parameters.prompt.suffix} <end>"
)
# Stands for several tools where they are escaped. One tool would count as JSON and be inserted raw.
_TOOLS_TEXT = "<built-in tools>"
# The system prompt of a conversational agent that has none (3.5 and later).
_DEFAULT_SYSTEM = "You are a helpful assistant."


class Conversational(AgentBehaviour):
    """`conversational`: the request's parameters over the agent's, and several passes over the prompt."""

    def lacks(self, profile: AgentProfile, params: Mapping[str, str]) -> tuple[Requirement, ...]:
        """Without a tool, a legacy agent that does not call functions answers 500 or, from 3.6 on, never.

        Without memory, an agent on 2.x answers 500.
        """
        is_legacy = profile.generation in (Generation.TEXT, Generation.FUNCTION_CALLING)
        if not is_legacy:
            return ()
        needs_tool = not self.calls_functions(profile, params) and not selected_tools(profile, params)
        needs_memory = profile.generation is Generation.TEXT and not profile.memory_type
        return (*(("tool",) if needs_tool else ()), *(("memory",) if needs_memory else ()))

    def calls_functions(self, profile: AgentProfile, params: Mapping[str, str]) -> bool:
        """Return True if the agent or the request sets `_llm_interface`, and the cluster knows it."""
        interface = params.get("_llm_interface", profile.llm_interface)
        return bool(interface) and ABILITIES[profile.generation].raw_parameters

    def prompt(self, profile: AgentProfile, params: Mapping[str, str]) -> str | None:
        """Return the prompt of the request, of the agent or of its `llm` block, the first there is."""
        return {**profile.llm_parameters, **_own_parameters(profile), **params}.get("prompt")

    def call_values(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
        """Return the merged parameters, with the prompt after its passes."""
        values = overlay(_own_parameters(profile), params)
        calls_functions = self.calls_functions(profile, params)
        if calls_functions:
            values = with_tools(profile, values)
        if env.history is not None:
            values |= _replayed(profile, env.history, calls_functions)
        values = overlay(profile.llm_parameters, values)
        for name in ("prompt.prefix", "prompt.suffix", "prompt.format_instruction"):
            values.setdefault(name, "<built-in>")
        if profile.version >= (3, 5):
            values.setdefault("system_prompt", _DEFAULT_SYSTEM)
        values["prompt"] = _prompt_passes(values, calls_functions)
        return values


def _own_parameters(profile: AgentProfile) -> dict[str, str]:
    # The 2.x chat agent reads only `llm.parameters` and the request (docs/evidence/facts.md, rule 5).
    return dict(profile.parameters) if ABILITIES[profile.generation].raw_parameters else {}


def with_tools(profile: AgentProfile, values: Mapping[str, str]) -> dict[str, str]:
    """Add what function calling sets: the raw parameters and the tools in the provider's form."""
    interface = values.get("_llm_interface", profile.llm_interface).strip().lower()
    merged = {"no_escape_params": _OTHER_RAW.get(interface, DEFAULT_RAW), **values}
    for provider in registry.providers():
        if provider.cluster is not None and interface == provider.cluster.llm_interface:
            merged |= {"tool_configs": provider.cluster.tool_config, **provider.cluster.calling_parameters}
    tools = ['{"gwtool": 1}' for _ in profile.tools]
    is_raw = "_tools" in merged["no_escape_params"].split(",")
    merged["_tools"] = ", ".join(tools) if is_raw or len(tools) < 2 else _TOOLS_TEXT
    return merged


def _replayed(profile: AgentProfile, history: str, calls_functions: bool) -> dict[str, str]:
    """Return what memory is replayed as: text, or messages in place of those that the request brought.

    A unified V1 agent substitutes each message twice without parameters.
    """
    if not calls_functions:
        return {"chat_history": history}
    text = json.dumps(history)
    if profile.generation is Generation.UNIFIED_V1:
        text = expand(expand(text, {}), {})
    return {"_chat_history": f'{{"role": "user", "content": [{{"text": {text}}}]}}, '}


def _prompt_passes(values: Mapping[str, str], calls_functions: bool) -> str:
    """Return the prompt after the agent's passes: all parameters first, unescaped, then one map after the other.

    Function calling makes one pass less.
    """
    prompt = values.get("prompt", _BUILTIN_PROMPT)
    passes: list[Mapping[str, str]] = [
        values,
        {name: values.get(name, "") for name in ("prompt.prefix", "prompt.suffix")},
        *([] if calls_functions else [{"tool_descriptions": _TOOLS_TEXT, "tool_names": "<built-in names>"}]),
        {"opensearch_indices": ""},
        {"examples": ""},
        {"chat_history": values.get("chat_history", "")},
        {"context": values.get("context", "")},
        {"scratchpad": ""},
    ]
    for names in passes:
        prompt = expand(prompt, names)
    return prompt

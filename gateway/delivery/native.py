"""Input for an agent that takes `input` itself. The cluster still expands ``${parameters.x}`` in its text.

Recorded on 3.6.0: a known name is replaced silently, an unknown one is a 400, and on a V1 agent a name that leads back
to itself makes the cluster hang.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from gateway.delivery.escaping import is_plain, split_placeholders
from gateway.delivery.question_placements import SKIP, Parameters, skip_if_needed
from gateway.delivery.trees import with_leaves
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.memory_form import is_storable, memory_form
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.template import PREFIX
from gateway.notices import Notice
from gateway.unified.model import AgentInput, InputType, Text
from gateway.unified.request import parameters_as_strings
from gateway.unified.roles import meaning_of

GUARDS: Parameters = {
    **{"gw_d": "$", "gw_d2": "$$", "gw_d3": "$$$", SKIP: "true"},
    **dict.fromkeys(("gw_s0", "gw_q"), "[media]"),
}
"""Helpers of earlier versions of the gateway, whose names an agent's memory may replay."""


_SYSTEM_PROMPT = "system_prompt"


def move_system_text(
    profile: AgentProfile, value: Any, agent_input: AgentInput, params: Mapping[str, Any]
) -> tuple[Any, Parameters, tuple[Notice, ...]]:
    """Move system turns into the parameter `system_prompt`, for a V2 agent whose template has a place for it.

    Among the messages they would stay a turn of their own, which Bedrock refuses
    (docs/internals/facts.md, "conversational_v2").

    value: the request's `input`, agent_input: the same, decoded. params: the caller's own.
    Return the input without those turns, the parameters to send, and what to report; nothing if there are none.
    """
    is_v2 = profile.generation is Generation.UNIFIED_V2 and profile.provider.startswith("bedrock/")
    messages = agent_input.messages if agent_input.type is InputType.MESSAGES else ()
    system = [i for i, message in enumerate(messages) if meaning_of(message, {}).is_system]
    blocks = [block for i in system for block in messages[i].content]
    texts = [block.text for block in blocks if isinstance(block, Text)]
    if not is_v2 or not texts or len(texts) != len(blocks) or len(system) == len(messages):
        return value, {}, ()
    turns = [turn for i, turn in enumerate(value) if i not in system]
    own = parameters_as_strings(params).get(_SYSTEM_PROMPT, profile.parameters.get(_SYSTEM_PROMPT, ""))
    text, helpers = _in_parts("\n\n".join(texts), "gw_y")
    first = next(i for i in range(len(messages)) if i not in system)
    reason = f"The {messages[system[0]].role} text is moved before the conversation"
    notices = tuple(Notice("SYSTEM_HOISTED", reason, messages[i].at) for i in system if i > first)
    return turns, {_SYSTEM_PROMPT: f"{own}\n\n{text}" if own else text, **helpers}, notices


def _in_parts(text: str, name: str) -> tuple[str, Parameters]:
    """Return `text` for a parameter that the cluster fills once and escapes, and the helpers that it refers to."""
    if is_plain(text):
        return text, {}
    helpers = {f"{name}{index}": part for index, part in enumerate(split_placeholders(text))}
    return "".join(f"{PREFIX}{name}}}" for name in helpers), {**helpers, **skip_if_needed(text)}


def guard(value: Any, turn_id: str) -> tuple[Any, Parameters]:
    """Replace each text of `value` that memory can't hold by the form that it can; return it with the helpers.

    The arguments of a tool call are JSON text, which the cluster inserts as JSON (Bedrock) or as a string in it
    (OpenAI). They need no helper: with each ``$`` written ``\\u0024`` they are the same JSON without a placeholder.
    """
    helpers: Parameters = {}
    names = (f"gw_{turn_id}x{number}" for number in itertools.count())

    def store(leaf: Any) -> Any:
        if not isinstance(leaf, str) or is_storable(leaf):
            return leaf
        name = next(names)
        text, parts = _in_parts(leaf, f"{name}_")
        helpers.update({name: text, **parts, **skip_if_needed(leaf)})
        return f"$${memory_form(name, leaf)}"  # the agent substitutes each text twice itself, without any parameters

    return with_leaves(_escape_arguments(value), store), helpers


def _escape_arguments(value: Any) -> Any:
    """Return an `input` with ``\\u0024`` for each ``$`` in the arguments of its tool calls."""
    match value:
        case {"function": {"arguments": str(text)} as function} if not is_storable(text):
            return {**value, "function": {**function, "arguments": text.replace("$", "\\u0024")}}
        case {"toolCalls": list(calls)}:
            return {**value, "toolCalls": [_escape_arguments(call) for call in calls]}
        case list():
            return [_escape_arguments(item) for item in value]
    return value

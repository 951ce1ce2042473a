"""What the LLM would receive: an agent's first LLM call, rendered as the cluster renders it.

The proof of every plan depends on this module. It follows docs/evidence/facts.md ("Rules", "Rendering, in detail",
and the 3.x differences): what is escaped and what is inserted raw. How each agent type merges parameters and how
often it substitutes its prompt is in `gateway.mlcommons.agents`. Text of the cluster's own and run-time values
(built-in prompts, remembered turns, tool outputs) are represented by symbols.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.mlcommons.agents import behaviour_of
from gateway.mlcommons.agents.base import AgentBehaviour
from gateway.mlcommons.agents.flow import LlmStep
from gateway.mlcommons.expansion import RenderFailure, UnknownRendering, expand, spend_on_json
from gateway.mlcommons.generations import ABILITIES, Generation
from gateway.mlcommons.profile import AgentProfile, Model, Tool, overlay
from gateway.mlcommons.sent_body import sent_body
from gateway.mlcommons.template import PREFIX, UNFILLED, RuntimeValues, escape_json, may_be_json
from gateway.providers import registry

_TO_STRING = ".toString()"
_DECODER = json.JSONDecoder()

# If the value is missing, this becomes `null`, including the quotes.
_NULL_DEFAULT = re.compile(r'"\$\{parameters\.(\w+):-null\}"')


def first_llm(profile: AgentProfile, params: Mapping[str, str]) -> tuple[Model | None, Tool | None]:
    """Return the model that the agent calls first, and the flow's tool that calls it.

    Raises:
        RenderFailure: a flow's `selected_tools` can't be read.
    """
    return behaviour_of(profile).first_llm(profile, params)


def call_values(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
    """Return the parameters of the first LLM call as the agent passes them to the connector, before escaping.

    Raises:
        RenderFailure: the agent would fail before it calls the LLM.
    """
    behaviour = behaviour_of(profile)
    return behaviour.call_values(profile, with_user_turn(profile, behaviour, params), env)


def payload(model: Model, values: Mapping[str, str], raw_parameters: bool) -> str:
    """Return the request body that the connector makes of `values`.

    raw_parameters: whether the cluster knows `no_escape_params`.

    Raises:
        UnknownRendering: a value is used that may or may not count as JSON.
        RenderFailure: a placeholder leads back to itself.
        UndeliverableContent: the parameters contain each other so often that they expand to many times their length.
    """
    raw = frozenset(map(str.strip, values.get("no_escape_params", "").split(","))) if raw_parameters else frozenset()
    filling = _Filling(model, values, raw)
    template = _NULL_DEFAULT.sub(filling.null_or_quoted, model.connector.request_body)
    return expand(template, overlay(model.connector.parameters, values), filling.look_up)


class _Filling(msgspec.Struct, frozen=True):
    """The values for the placeholders of a connector's template. raw: the names of values inserted unescaped.

    A class, because a nested function that calls itself is a reference cycle, which would hold the values until the
    next garbage collection.
    """

    model: Model
    values: Mapping[str, str]
    raw: frozenset[str]

    def look_up(self, name: str) -> str | None:
        """Return the value of a placeholder as it is inserted; None if it has none."""
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
        raise UnknownRendering(f"the parameter {name} may or may not count as JSON")

    def null_or_quoted(self, found: re.Match[str]) -> str:
        """Return what a quoted placeholder with a null default becomes before the substitution."""
        return "null" if self.look_up(found[1]) is None else found[0]


def first_call(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> Any:
    """Return the body of the agent's first LLM call, as JSON data.

    Raises:
        RenderFailure: the cluster would return an error instead.
    """
    if lacking := behaviour_of(profile).lacks(profile, params):
        raise RenderFailure(f"the agent has no {lacking[0]}")
    model, _ = first_llm(profile, params)
    if model is None:
        raise RenderFailure("the agent calls no LLM")
    return parse_payload(model, call_values(profile, params, env), profile)


def step_call(step: LlmStep | None) -> Any:
    """Return the body of the call of a flow's tool. step: None if the tool does not run.

    Raises:
        RenderFailure: the cluster would return an error instead.
    """
    if step is None or step.tool.target is None:
        raise RenderFailure("the tool does not run")
    return parse_payload(step.tool.target, step.values(), step.profile)


def parse_payload(model: Model, values: Mapping[str, str], profile: AgentProfile) -> Any:
    """Return the body that is sent for `values`, checked as the cluster checks it: by the model's interface, as JSON.

    Raises:
        RenderFailure: the cluster would return an error instead.
    """
    _check_interface(model, values)
    text = payload(model, values, ABILITIES[profile.generation].raw_parameters)
    spend_on_json(text)
    try:
        body = _strict(text)
    except (ValueError, RecursionError):
        raise RenderFailure("the rendered request is not valid JSON") from None
    text, body = sent_body(model, values, profile, text, body)
    if UNFILLED in text and values.get("skip_validating_missing_parameters", "").lower() != "true":
        name = text.partition(UNFILLED)[2].partition("}")[0].removeprefix(".")
        raise RenderFailure(f"the placeholder {name} is not filled")
    return body


def _check_interface(model: Model, values: Mapping[str, str]) -> None:
    """Check the values that the model's interface requires, as they are before their placeholders are filled.

    Raises:
        RenderFailure: one is missing, or would be read as something other than a string (2.19.0 38_required_inputs).
    """
    for name in model.required_inputs:
        value = values.get(name)
        if value is None:
            raise RenderFailure(f"the model's interface requires {name}")
        if not _is_read_as_string(value):
            raise RenderFailure(f"the model's interface requires a string as {name}")


def _is_read_as_string(text: str) -> bool:
    """Return True unless `text` starts with another JSON value. The parser ignores what follows the value."""
    text = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(text)
    except ValueError:
        return True
    except RecursionError:
        return False
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str) or (is_number and text[end : end + 1].strip() != "")


def is_strict_json(text: str) -> bool:
    """Return True if `text` is a JSON object or array (RFC 8259) without duplicate names."""
    try:
        return isinstance(_strict(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _strict(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate member names")
    return members


def with_user_turn(profile: AgentProfile, behaviour: AgentBehaviour, params: Mapping[str, str]) -> Mapping[str, str]:
    """Return the request's parameters with the user's turn as `body`, in place of the request's own (body_override).

    Any agent but a unified V1 agent runs with `params` unchanged.
    """
    if profile.generation is not Generation.UNIFIED_V1:
        return params
    known = ((provider.name, provider.cluster) for provider in registry.providers())
    turn = next((support.user_turn for name, support in known if support and profile.provider.startswith(name)), "")
    return {**params, "body": turn.replace("TEXT", behaviour.turn_text(params.get("question", "")))}

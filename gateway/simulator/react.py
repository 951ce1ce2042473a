"""Reads a ReAct model's answer: a thought with an action, or the final answer (2.x, and 3.x without an interface).

It accepts JSON, JSON in a code fence, a JSON-like part, or plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.simulator.lenient import is_json
from gateway.simulator.values import as_text, read_answer, to_json, to_parameters

_JSON_PART = re.compile(r'\{\s*("(thought|action|action_input|final_answer)"\s*:\s*".*?"\s*,?\s*)+\}')
_THOUGHT = re.compile(r'"thought"\s*:\s*"(.*?)"\s*,\s*["final_answer"|"action"]', re.DOTALL)
_ACTION = re.compile(r'"action"\s*:\s*"(.*?)(?:"action_input"|$)', re.DOTALL)
_ACTION_INPUT = re.compile(r'"action_input"\s*:\s*"((?:[^"]|")*)"', re.DOTALL)
_FINAL_ANSWER = re.compile(r'"final_answer"\s*:\s*"(.*)"', re.DOTALL)
_FIELDS = ("thought", "action", "action_input", "final_answer")


@dataclass(frozen=True)
class Step:
    """The model's decision. text: its answer. final: the final answer, if it is one; otherwise there is a tool."""

    text: str | None
    thought: str
    action: str
    action_input: str
    final: str | None
    call_id: str = "null"


def read_step(answer: Mapping[str, Any], tool_names: Iterable[str], modern: bool) -> Step:
    """Return the step in a model's answer. An answer without a known tool is final."""
    if set(answer) == {"response"}:
        text = _json_in(as_text(answer["response"], modern))
        fields = _fields(text, modern)
    else:
        text = to_json(answer, modern)
        fields = {name: as_text(answer[name], modern) for name in _FIELDS if name in answer}
    action = fields.get("action")
    known = next((name for name in tool_names if action and name.lower() in action.lower()), None)
    final = fields.get("final_answer")
    if known is None and final is None:
        final = text
    return Step(
        text=text,
        thought=fields.get("thought") or "null",
        action=known or "null",
        action_input=fields.get("action_input") or "null",
        final=final,
    )


def _json_in(text: str) -> str:
    inner = text
    if "```json" in inner:
        inner = inner[inner.index("```json") + len("```json") :]
        inner = inner[: inner.rindex("```")] if "```" in inner else inner
    inner = inner.strip()
    if is_json(inner):
        return inner
    part = _JSON_PART.search(inner)
    return part.group() if part else text


def _fields(text: str, modern: bool) -> dict[str, str]:
    if is_json(text):
        try:
            parsed = read_answer(text)
        except ValueError:
            return _loose_fields(text)
        parameters = to_parameters(parsed, modern) if isinstance(parsed, dict) else {}
        return {name: value for name, value in parameters.items() if value is not None}
    return _loose_fields(text)


def _loose_fields(text: str) -> dict[str, str]:
    patterns = zip(_FIELDS, (_THOUGHT, _ACTION, _ACTION_INPUT, _FINAL_ANSWER), strict=True)
    found = {name: pattern.search(text) for name, pattern in patterns}
    return {name: match.group(1).replace('\\"', '"') for name, match in found.items() if match}

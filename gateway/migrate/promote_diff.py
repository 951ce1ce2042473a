"""What promoting an agent changes in its first call of the LLM: both calls are rendered and compared. Pure.

The old call is rendered from the agent's documents. The new one is what the cluster's own template makes of a question
(recordings and source of 3.6 and 3.8). Tools are left out: the cluster writes them into both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from gateway.migrate.proof import outcomes
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.runtime_values import RuntimeValues
from gateway.providers.base import ClusterSupport, Provider

QUESTION = "What does it say?"
DEFAULT_SYSTEM = "You are a helpful assistant."
LIMITED = (3, 7)
"""The version from which the cluster's templates send limits."""

_OTHER = "How many pages are there?"
_BUILT_IN = "<built-in>"
_SYSTEM_ROLES = ("system", "developer")
_TOOLS = frozenset({"tools", "toolConfig", "parallel_tool_calls"})
_MAX_TOKENS, _TEMPERATURE = "4096", "1.0"
_LIMITS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bedrock/converse": (("inferenceConfig", "maxTokens"), ("inferenceConfig", "temperature")),
    "openai/v1/chat/completions": (("max_completion_tokens",), ("temperature",)),
    "gemini/v1beta/generatecontent": (("generationConfig", "maxOutputTokens"), ("generationConfig", "temperature")),
}
"""Where the templates send the longest answer and the temperature."""
_SHOWN = 60


def first_call(profile: AgentProfile, provider: Provider, question: str = QUESTION) -> dict[str, Any] | None:
    """Return the body of the agent's first LLM call for a question; None if it can't be rendered.

    A template that a question alone does not fill gets the messages, too.
    """
    turns = [_user_turn(provider, question)]
    for parameters in ({}, {provider.messages_field: json.dumps(turns)}):
        found = outcomes(profile, {"question": question, **parameters}, RuntimeValues(None, ""))
        text = found[0][0] if found else None
        body = None if text is None else json.loads(text)
        if isinstance(body, dict):
            return body
    return None


def _user_turn(provider: Provider, text: str) -> dict[str, Any]:
    return {"role": "user", provider.content_field: [provider.text_part(text)]}


def system_text(profile: AgentProfile, provider: Provider) -> str:
    """Return the system text of the first call; "" if there is none, it is built in, or it depends on the question."""
    found = [_system_texts(first_call(profile, provider, question), provider) for question in (QUESTION, _OTHER)]
    text = "\n\n".join(found[0])
    return "" if found[0] != found[1] or _BUILT_IN in text else text


def system_role(profile: AgentProfile, provider: Provider) -> str:
    """Return the role of the system turn with which the first call's messages begin; "" if they begin with another."""
    turns = _turns(first_call(profile, provider), provider)
    role: str = turns[0].get("role", "") if turns else ""
    return role if role in _SYSTEM_ROLES else ""


def _system_texts(body: Mapping[str, Any] | None, provider: Provider) -> list[str]:
    body = body or {}
    parts = [body.get(name) for name in provider.system_fields([""])]
    parts += [turn for turn in _turns(body, provider) if turn.get("role") in _SYSTEM_ROLES]
    return [value for part in parts for path, value in leaves(part) if path.endswith("text") and value]


def _turns(body: Mapping[str, Any] | None, provider: Provider) -> list[Any]:
    turns = provider.canonical((body or {}).get(provider.messages_field))
    return turns if isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns) else []


def new_call(
    provider: Provider,
    support: ClusterSupport,
    model: str,
    parameters: Mapping[str, str],
    system: str,
    role: str,
    version: tuple[int, ...],
    v2: bool,
) -> dict[str, Any]:
    """Return the body of the promoted agent's first call.

    parameters: `model_parameters`. system: its system prompt. role: of the system turn that its template gets, or "".
    """
    turn = _user_turn(provider, QUESTION) if v2 else json.loads(support.user_turn.replace("TEXT", QUESTION))
    body: dict[str, Any] = {provider.messages_field: [turn]}
    if support.has_system_slot:
        body |= provider.system_fields([system or DEFAULT_SYSTEM])
    elif role:
        body[provider.messages_field].insert(0, {"role": role, "content": system or DEFAULT_SYSTEM})
    if "model" in support.body_members:
        body["model"] = model
    if version >= LIMITED and provider.name in _LIMITS:
        tokens, temperature = _LIMITS[provider.name]
        _set(body, tokens, parameters.get("max_tokens", _MAX_TOKENS))
        _set(body, temperature, parameters.get("temperature", _TEMPERATURE))
    return body


def _set(body: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    *parents, last = path
    for name in parents:
        body = body.setdefault(name, {})
    body[last] = json.loads(value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], provider: Provider) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ, by path: the old one and the new one, None where there is none.

    A turn is compared with the one that has its part in the other conversation. The index in a path counts the turns of
    both.
    """
    bodies = [_comparable(body, provider) for body in (old, new)]
    turns = [body[provider.messages_field] for body in bodies]
    if all(isinstance(one, list) for one in turns):
        for body, aligned in zip(bodies, zip(*_align(*turns), strict=True), strict=False):
            body[provider.messages_field] = list(aligned)
    before, after = (dict(leaves(body)) for body in bodies)
    return {
        path: (before.get(path), after.get(path)) for path in {**before, **after} if before.get(path) != after.get(path)
    }


def _comparable(body: Mapping[str, Any], provider: Provider) -> dict[str, Any]:
    """Return the body without its tools, and with the messages in the provider's normal form."""
    others = {name: value for name, value in body.items() if name not in _TOOLS}
    return {**others, provider.messages_field: provider.canonical(others.get(provider.messages_field))}


def _align(old: list[Any], new: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the turns of two conversations in pairs of the same role; None beside a turn that has no counterpart."""
    before, after = ([_part_of(turn) for turn in turns] for turns in (old, new))
    for tag, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from zip(old[i:i_end], new[j:j_end], strict=True)
        else:
            yield from ((turn, None) for turn in old[i:i_end])
            yield from ((None, turn) for turn in new[j:j_end])


def _part_of(turn: Any) -> str:
    role = str(turn.get("role")) if isinstance(turn, dict) else ""
    return "system" if role in _SYSTEM_ROLES else role


def sentences(found: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield a sentence for each difference."""
    for path, (before, after) in found.items():
        if before is None:
            yield f"the LLM request gets {path}: {_short(after)}"
        elif after is None:
            yield f"the LLM request no longer has {path}: {_short(before)}"
        else:
            yield f"the LLM request has {path}: {_short(after)} in place of {_short(before)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of every scalar and of every empty container in JSON data."""
    if isinstance(value, Mapping) and value:
        for name, member in value.items():
            yield from leaves(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif value is not None:
        yield path, value

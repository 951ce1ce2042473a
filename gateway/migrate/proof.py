"""The proof that an upgrade changes nothing for callers that don't use it. Pure.

Every legacy call is rendered with the old and the new template as the cluster of that version renders it
(`gateway.mlcommons.rendering`), and must give the same text, unless it failed before. If the cluster's lenient parser
decides whether a value is inserted raw (docs/evidence/facts.md, "Rendering, in detail"), both cases are tried.

One case can't be excluded: a caller that already sends the new parameter (``messages``, ``body``), which was ignored
before and takes effect now. Agents that set it in their own documents are found; clients that send it are not.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from gateway.mlcommons.agents import behaviour_of
from gateway.mlcommons.agents.flow import Flow, target_values
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import ABILITIES
from gateway.mlcommons.profile import AgentProfile, Connector, Model, Tool
from gateway.mlcommons.rendering import call_values, is_strict_json, payload
from gateway.mlcommons.template import HOSTILE, PREFIX, RuntimeValues, escape_json, may_be_json
from gateway.providers import registry
from gateway.providers.capabilities import Capabilities
from gateway.unified.model import AgentInput, MediaKind
from gateway.unified.request import ExecuteRequest, read_execute

KINDS = ("text", "image", "document", "video", "turns", "system", "tools")
CLIENT_TOOLS = "client tools"
"""A kind that only an upgrade for them is judged by: a text, and a tool of the client beside it."""
_CLIENT_TOOLS = {"tools": [{"name": "warmth", "description": "How warm it is."}]}

# Small files, or the start of one: whether media arrive does not depend on their content.
_FILES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "image": (
        ("png", "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="),
        ("jpeg", "/9j/4AAQSkZJRg=="),
    ),
    "document": (("pdf", "JVBERi0xLjQKJSVFT0YK"), ("txt", "SGVsbG8K")),
    "video": (("mp4", "AAAAGGZ0eXBtcDQyAAAAAG1wNDJpc29t"), ("mov", "AAAAFGZ0eXBxdCAgAAAAAHF0ICA=")),
}


def sample(kind: str, provider: str) -> Any:
    """Return the `input` of a kind of `KINDS`, with media in a format that `provider` ("" if unknown) takes."""
    match kind:
        case "text":
            return "What does it say?"
        case "image" | "document" | "video":
            return [{"type": "text", "text": "What does it say?"}, _medium(cast(MediaKind, kind), provider)]
        case "turns":
            return [_turn("user", "Hello"), _turn("assistant", "Hi"), _turn("user", "What does it say?")]
        case "system":
            return [_turn("system", "Be brief."), _turn("user", "What does it say?")]
        case "tools":
            return list(_tool_history())
    raise ValueError(f"no kind of input is called {kind!r}")


@cache
def request(kind: str, provider: str) -> tuple[ExecuteRequest, AgentInput]:
    """Return the sample of a kind of `KINDS`, or of `CLIENT_TOOLS`, read as the gateway reads it."""
    body = {"input": sample("text", provider), **_CLIENT_TOOLS} if kind == CLIENT_TOOLS else None
    read = read_execute(json.dumps(body or {"input": sample(kind, provider)}).encode())
    assert read.input is not None
    return read, read.input


def _turn(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _medium(kind: MediaKind, provider: str) -> dict[str, Any]:
    taken = _formats(kind, provider)
    formats = _FILES[kind]
    name, data = next((file for file in formats if file[0] in taken), formats[0])
    return {"type": kind, "source": {"type": "base64", "format": name, "data": data}}


def _formats(kind: MediaKind, provider: str) -> Sequence[str]:
    found = registry.provider(provider) if provider else None
    capabilities = getattr(found, "capabilities", None)  # a provider of a third party may have no such table
    return capabilities.media.get(kind, {}).get("base64", ()) if isinstance(capabilities, Capabilities) else ()


def _tool_history() -> Iterator[dict[str, Any]]:
    """Yield a conversation with a tool call, and a question at its end."""
    yield _turn("user", "How warm is it?")
    function = {"name": "warmth", "arguments": '{"city":"Paris"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    yield {"role": "assistant", "content": [{"type": "text", "text": "I'll look."}], "toolCalls": [call]}
    yield {"role": "tool", "toolCallId": "call_1", "content": [{"type": "text", "text": "20 degrees"}]}
    yield _turn("assistant", "20 degrees.")
    yield _turn("user", "What does it say?")


QUESTIONS: Mapping[str, str] = {
    "plain": "What does the report say?",
    "quoted": 'say "hi"\\ \n\t<b>it\'s</b>',
    "unicode": "Grüße, 世界 🎉 \u2028",
    "placeholder": "${parameters.model} $${parameters.prompt} ${parameters.nowhere:-x} $",
    "unfilled": "costs ${parameters.nowhere}",
    "broken": '"}]},{"text":"x',
    "json": '{"a": [1]}',
    "lenient": "{a:1,}",
    "list": "['x'; 2]",
    "empty": "",
}
_VARIABLE = re.compile(re.escape(PREFIX) + r"([^}:]+)")
_HISTORIES = (None, "Human: hello\nAssistant: hi", HOSTILE)


Texts = tuple[str | None, ...]
"""The text of an LLM call, None for a failure; two if the lenient parser decides."""


class AgentProof(msgspec.Struct, frozen=True):
    """How one agent's legacy calls render with both templates.

    calls: how many were rendered. differing: those whose renderings differ.
    """

    calls: int
    differing: tuple[str, ...]


def agent_proof(old: AgentProfile, new: AgentProfile) -> AgentProof:
    """Compare the legacy calls of an agent before and after an upgrade."""
    calls = [(name, outcomes(old, params, env), outcomes(new, params, env)) for name, params, env in _calls()]
    return AgentProof(len(calls), tuple(dict.fromkeys(name for name, *texts in calls if _differ(*texts))))


def raw_proof(old: Model, new: Model, version: tuple[int, ...]) -> tuple[str, ...]:
    """Return the direct `_predict` calls of a model that would render differently."""
    raw = version >= (3,)
    variables = _VARIABLE.findall(old.connector.request_body)
    sent = [("prompt",), ("inputs",), tuple(dict.fromkeys(("prompt", *variables)))]
    differing = []
    for chosen, (kind, text) in itertools.product(sent, QUESTIONS.items()):
        values = dict.fromkeys(chosen, text)
        if _differ([_rendered(old, values, raw)], [_rendered(new, values, raw)]):
            differing.append(f"_predict with {', '.join(chosen)}: {kind}")
    return tuple(dict.fromkeys(differing))


def _differ(before: Sequence[Texts], after: Sequence[Texts]) -> bool:
    """Return True if a call that succeeded renders differently."""
    return len(before) != len(after) or any(any(old) and old != new for old, new in zip(before, after, strict=True))


def _calls() -> Iterator[tuple[str, dict[str, str], RuntimeValues]]:
    for (kind, text), history in itertools.product(QUESTIONS.items(), _HISTORIES):
        with_or_without = "with" if history else "without"
        env = RuntimeValues(history, history or "")
        yield f"question ({kind}), {with_or_without} history", {"question": text}, env
        yield f"question ({kind}) and prompt, {with_or_without} history", {"question": text, "prompt": text}, env


def outcomes(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> list[Texts]:
    """Return the text of each LLM call of the agent, both texts if the lenient parser decides; None for a failure.

    All LLM tools are included, and for a conversational agent the tools it may call.
    """
    raw = ABILITIES[profile.generation].raw_parameters
    found: list[Texts] = []
    for model, values in _llm_calls(profile, params, env):
        found.append((None,) if values is None else _rendered(model, values, raw))
    return found


def _llm_calls(
    profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues
) -> Iterator[tuple[Model, dict[str, str] | None]]:
    behaviour = behaviour_of(profile)
    if isinstance(behaviour, Flow):
        for step in behaviour.llm_steps(profile, params, env):
            assert step.tool.target is not None
            yield step.tool.target, _or_none(step.values)
        return
    values = _or_none(partial(call_values, profile, params, env))
    if profile.llm is not None:
        yield profile.llm, values
    for tool in profile.tools:
        if tool.model is not None:
            yield tool.model, None if values is None else _or_none(partial(_tool_values, profile, tool, values))


def _tool_values(profile: AgentProfile, tool: Tool, values: Mapping[str, str]) -> dict[str, str]:
    return target_values(profile, tool, {**values, **tool.parameters, **tool.config})


def _or_none(values: Callable[[], dict[str, str]]) -> dict[str, str] | None:
    try:
        return values()
    except RenderFailure:
        return None


def _rendered(model: Model, values: Mapping[str, str], raw: bool) -> Texts:
    """Return the payload's text, None if the cluster fails; for ambiguous values, the texts of both cases."""
    left_raw = {name.strip() for name in values.get("no_escape_params", "").split(",")} if raw else set()
    unclear = {
        name: value
        for name, value in values.items()
        if name not in left_raw and may_be_json(value) and not is_strict_json(value)
    }
    if not unclear:
        return (_text(model, values, raw),)
    rest = {name: value for name, value in values.items() if name not in unclear}
    cases = (unclear, {name: escape_json(value) for name, value in unclear.items()})
    # A connector's parameters are inserted unchanged, so a value among them is no longer ambiguous.
    models = [replace(model, connector=_with(model.connector, case)) for case in cases]
    return tuple(_text(each, rest, raw) for each in models)


def _with(connector: Connector, parameters: Mapping[str, str]) -> Connector:
    return replace(connector, parameters={**connector.parameters, **parameters})


def _text(model: Model, values: Mapping[str, str], raw: bool) -> str | None:
    try:
        text = payload(model, values, raw)
        json.loads(text)
    except (RenderFailure, ValueError, RecursionError):
        return None
    skipped = values.get("skip_validating_missing_parameters", "").lower() == "true"
    return None if PREFIX in text and not skipped else text

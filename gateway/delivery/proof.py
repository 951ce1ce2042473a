"""The proof of a candidate: the rendered call equals the expected one, whatever the run-time values are.

A proof ends in `Proved`, the parameters that were rendered. A plan that counts as proved holds nothing else, and all of
it is sent (`gateway.execute.rewrite`), so nothing can be added between the proof and the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeGuard, final

from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Addition, Candidate
from gateway.delivery.escaping import Concat, is_inert
from gateway.delivery.slots import PROBE, QUESTION
from gateway.delivery.target import Turn, parts_of
from gateway.delivery.trees import locate, replace_texts, value_at, with_leaves
from gateway.mlcommons.agents.flow import Flow, LlmStep, target_values
from gateway.mlcommons.expansion import RenderFailure, allow_for, spend
from gateway.mlcommons.generations import ABILITIES, Generation
from gateway.mlcommons.memory_form import is_storable, show_readable
from gateway.mlcommons.profile import Tool, overlay
from gateway.mlcommons.rendering import call_values, first_call, parse_payload, step_call
from gateway.mlcommons.template import HOSTILE, RuntimeValues
from gateway.mlcommons.tool_types import MODEL_TOOL
from gateway.providers.base import Provider


@final
class Proved(Mapping[str, str]):
    """All parameters of a request, as a proof rendered them. Read-only.

    Made by `prove`, and by the functions of this module that say why another request needs no proof of its own.
    """

    __slots__ = ("_parameters",)

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = dict(parameters)

    def __getitem__(self, name: str) -> str:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __eq__(self, other: object) -> bool:
        return self._parameters == (other._parameters if isinstance(other, Proved) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Proved({self._parameters!r})"

    @classmethod
    def without_llm(cls, params: Mapping[str, str], text: str) -> Proved:
        """Return a question to an agent that calls no LLM which is read, so that there is nothing to render."""
        return cls({**params, "question": text})


def runtime_values(call: CallModel, parameters: Mapping[str, str]) -> Iterator[RuntimeValues]:
    """Yield the run-time values to try: without a remembered turn, and with one if the agent can remember any."""
    yield RuntimeValues()
    limit = parameters.get("message_history_limit", call.params.get("message_history_limit"))
    is_off = limit == "0" and call.profile.generation is not Generation.UNIFIED_V1  # there, 0 means no limit
    if call.profile.memory_type and "memory_id" in call.params and not is_off:
        yield RuntimeValues(HOSTILE)


def is_readable_later(call: CallModel, stored: str) -> bool:
    """Return True if a later turn reads `stored`, a text in the agent's memory, as `show_readable` does.

    That turn is a plain question: it has none of the helpers of the turn that was stored.
    """
    if not call.profile.memory_type or "${" not in stored:
        return True
    asked = call.with_question({})
    before = call.render(asked, RuntimeValues(history=PROBE))
    readable = show_readable(stored)
    if before is None:  # this agent takes no plain question
        return is_storable(readable)
    return bool(call.probe(asked, RuntimeValues(history=stored)) == replace_texts(before, {PROBE: readable}))


def prove(
    call: CallModel, candidate: Candidate, additions: Iterable[Addition], question: Collection[str]
) -> Proved | None:
    """Return the request of `candidate` if it makes the input arrive for all run-time values; None if it does not.

    Nor may what memory stores of it change any later turn.

    Only `RenderFailure`, a failure of the cluster, counts as a no. Any other exception is a bug of the strategy, the
    provider or the rendering, and is raised.

    additions: what is delivered beside the messages.
    question: the texts that may replace the question in the calls of a flow's later LLM tools.
    """
    request = overlay(call.params, candidate.parameters)
    for env in runtime_values(call, candidate.parameters):
        wanted = candidate.expected(env)
        if wanted is None or list(locate(wanted, QUESTION)):
            return None
        for addition in additions:
            wanted = addition.apply(wanted) if wanted is not None else None
        if wanted is None or not _begins_with_results(call.provider, wanted):
            return None
        allow_for(candidate.parameters)
        try:
            rendered = first_call(call.profile, request, env)
        except RenderFailure:
            return None
        if _normal(call.provider, rendered, candidate.split) != _normal(call.provider, wanted, candidate.split):
            return None
        if not _later_have_their_prompts(call, request, env, question):
            return None
    is_safe = (
        _tools_have_their_prompt(call, request, question)
        and _searches_have_the_question(call, request, question)
        and is_readable_later(call, request["question"])
    )
    return Proved(request) if is_safe else None


def _begins_with_results(provider: Provider, body: Any) -> bool:
    """Return True if nothing comes before the tool results of any turn (docs/evidence/providers.md)."""
    turns = body.get(provider.messages_field) if isinstance(body, dict) else None
    for turn in turns if isinstance(turns, list) else []:
        results = [provider.is_tool_result(part) for part in parts_of(provider, turn)] if isinstance(turn, dict) else []
        if results != sorted(results, reverse=True):
            return False
    return True


def _later_have_their_prompts(
    call: CallModel, request: Mapping[str, str], env: RuntimeValues, question: Collection[str]
) -> bool:
    """Return True if the texts of a flow's other LLM tools, which take the request's parameters too, are unchanged.

    Only the question in them may differ. Of what a connector gets that is no model's, nothing else may differ at all.
    """
    if not call.later_llms:
        return True
    asked = call.with_question({})
    # What the first LLM tool can't do without, other LLM tools need as well, but no connector.
    first = f"{call.tool.key}." if call.tool else ""
    by_models = {name.removeprefix(first): value for name, value in asked.items()}
    of_models = call.later_steps({**call.params, **by_models}, env)
    of_connectors = call.later_steps({**call.params, **asked}, env)
    sent = call.later_steps(request, env)
    return all(
        _has_its_prompt(tool, of_connector if tool.model is None else of_model, now, question)
        for tool, of_model, of_connector, now in zip(call.later_llms, of_models, of_connectors, sent, strict=True)
    )


def _has_its_prompt(tool: Tool, own: LlmStep | None, sent: LlmStep | None, question: Collection[str]) -> bool:
    try:
        before = step_call(own)
    except RenderFailure:
        return True  # the tool can't be called that way without the gateway either
    try:
        now = step_call(sent)
    except RenderFailure:
        return False
    if tool.model is None:
        return _differs_only_by_question(before, now, question)
    texts = {value_at(now, path) for path in locate(now, "")}
    own_texts = {value_at(before, path) for path in locate(before, "")}
    missing = [
        asking for text in own_texts if texts.isdisjoint(asking := [text.replace(QUESTION, q) for q in question])
    ]
    spend(len(missing) * (12 * len(texts) + sum(map(len, texts)) // 4))
    return all(any(text in longer for longer in texts for text in asking) for asking in missing)


def _differs_only_by_question(before: Any, now: Any, question: Collection[str]) -> bool:
    return any(now == replace_texts(before, {QUESTION: asked}) for asked in question)


def _searches_have_the_question(call: CallModel, request: Mapping[str, str], question: Collection[str]) -> bool:
    """Return True if tools of a flow that send one text to something that is not read send the question as it is.

    What they send it to is not rendered, so it must be a text that no template takes apart.
    """
    if not isinstance(call.behaviour, Flow):
        return True
    first = f"{call.tool.key}." if call.tool else ""
    asking = {name.removeprefix(first): value for name, value in call.with_question({}).items()}
    steps = call.behaviour.text_steps(call.profile, {**call.params, **asking}, RuntimeValues())
    sent = call.behaviour.text_steps(call.profile, request, RuntimeValues())
    for step, step_now in zip(steps, sent, strict=True):
        try:
            before, now = step.one_text(), step_now.one_text()
        except RenderFailure:
            return False
        if before is None or QUESTION not in before:
            continue
        inert = (asked for asked in question if is_inert(asked, step.templates()))
        if not any(now == before.replace(QUESTION, asked) for asked in inert):
            return False
    return True


def _normal(provider: Provider, body: Any, split: bool) -> Any:
    if not isinstance(body, dict) or not provider.messages_field:
        return body
    turns = provider.canonical(body.get(provider.messages_field))
    if split and isinstance(turns, list):
        turns = _runs_joined(provider, turns)
    return _plain({**body, provider.messages_field: turns})


def _runs_joined(provider: Provider, turns: list[Any]) -> list[Any]:
    joined: list[Any] = []
    for turn in turns:
        last = joined[-1] if joined else None
        if _is_user(last, provider) and _is_user(turn, provider):
            joined[-1] = {**last, provider.content_field: [*parts_of(provider, last), *parts_of(provider, turn)]}
        else:
            joined.append(turn)
    return joined


def _is_user(turn: Any, provider: Provider) -> TypeGuard[Turn]:
    return isinstance(turn, dict) and provider.role_of(turn) == "user"


def _plain(value: Any) -> Any:
    """Return JSON data with every `Concat` and tuple as a plain string or list, so that only content is compared."""

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, Concat):
            return "".join(leaf)
        return [_plain(item) for item in leaf] if isinstance(leaf, tuple) else leaf

    return with_leaves(value, plain)


def _tools_have_their_prompt(call: CallModel, request: Mapping[str, str], question: Collection[str]) -> bool:
    """Return True if the LLM tools of a conversational agent have their own prompt: they inherit all parameters.

    All texts of an MLModelTool's call for some question must be in its call with the planned parameters. In the call of
    any other tool, which 3.x lets inherit them, only the user's question may differ (docs/evidence/facts.md).
    """
    if call.is_flow:
        return True
    inherits = ABILITIES[call.profile.generation].raw_parameters
    for tool in call.profile.tools:
        if tool.type != MODEL_TOOL and tool.target is not None and inherits:
            asking = {**call.params, **call.with_question({})}
            try:
                before = _tool_call(call, tool, asking, PROBE)
            except RenderFailure:
                continue  # as below
            try:
                now = _tool_call(call, tool, request, PROBE)
            except RenderFailure:
                return False
            if not _differs_only_by_question(before, now, question):
                return False
        if tool.type != MODEL_TOOL or tool.model is None:
            continue
        try:
            before = _tool_call(call, tool, {**call.params, "question": QUESTION})
        except RenderFailure:
            continue  # the tool can't be called that way without the gateway either
        try:
            now = _tool_call(call, tool, request)
        except RenderFailure:
            return False
        asked = {value_at(before, path) for path in locate(before, QUESTION)}
        if not asked <= {value_at(now, path) for path in locate(now, QUESTION)}:
            return False
    return True


def _tool_call(call: CallModel, tool: Tool, request: Mapping[str, str], question: str = QUESTION) -> Any:
    assert tool.target is not None
    values = call_values(call.profile, request, RuntimeValues())
    values = target_values(call.profile, tool, {**values, **tool.parameters, "question": question})
    return parse_payload(tool.target, values, call.profile)

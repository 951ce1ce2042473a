"""Rewrites an execute body for an agent, without I/O; used by the gateway, migration and `mlc-gateway rewrite`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery.advice import NAME_OR_TEXT, advise, use_another_agent
from gateway.delivery.call_model import CallModelCache
from gateway.delivery.client_tools import leave_out
from gateway.delivery.native import NativeInput, write_native
from gateway.delivery.plain_chat import TextOnly
from gateway.delivery.plan import Plan, Remembered, assume, describe, plan
from gateway.delivery.question_placements import SKIP
from gateway.delivery.refusal import refuse_cluster_limits
from gateway.errors import UndeliverableContent
from gateway.execute.body import payloads_of, replace_members, serialise
from gateway.mlcommons.agents import tools_inherit
from gateway.mlcommons.agents.flow import unread_llm
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import ABILITIES, Generation
from gateway.mlcommons.memory_form import is_storable
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.sent_body import STREAM, has_streams, stream_form
from gateway.providers import registry
from gateway.providers.base import MappingOptions, Provider
from gateway.unified.model import AgentInput
from gateway.unified.payloads import ExtractedBody, Payload
from gateway.unified.request import ExecuteRequest, parameters_as_strings
from gateway.unified.roles import question_text


class Rewrite(msgspec.Struct, frozen=True):
    """A request ready for the cluster. body: its pieces; None to forward the client's bytes unchanged.

    native: what a V2 agent gets as `input`, whose plan has no parameters; None for every other agent.
    """

    plan: Plan
    body: list[Payload] | None
    native: NativeInput | None = None


class RewriteOptions(msgspec.Struct, frozen=True):
    """The operator's choices. describe: replace media that can't be delivered by a text note."""

    options: MappingOptions = msgspec.field(default_factory=MappingOptions)
    describe: bool = False


IN_ONE_PIECE = Notice("STREAM_IN_ONE_PIECE", "the answer is sent as a stream once all of it is there")
_OWN_TOOLS = "an agent that takes `input` itself runs its own tools only"


def takes_whole(profile: AgentProfile, request: ExecuteRequest) -> bool:
    """Return True if the cluster can't stream the agent's answer, or has no streams (before 3.3)."""
    if not has_streams(profile) or profile.generation is Generation.UNIFIED_V2:
        return True
    return stream_form(profile, parameters_as_strings(request.parameters)) is None


def rewrite_for_agent(
    profile: AgentProfile,
    request: ExecuteRequest,
    agent_input: AgentInput,
    policy: RewriteOptions,
    turn_id: str,
    calls: CallModelCache | None = None,
    *,
    streaming: bool,
) -> Rewrite:
    """Return what the gateway sends for an input that nothing is remembered for.

    A stream that the cluster can't make is made of a whole answer, as is one that would bring less to the LLM.

    Raises:
        UndeliverableContent: as `rewrite_input` and `rewrite_native`.
    """

    def rewrite(streaming: bool) -> Rewrite:
        if is_native(profile, agent_input):
            return rewrite_native(profile, request, agent_input, streaming, turn_id, policy)
        return rewrite_input(profile, request, agent_input, policy, turn_id, calls=calls, streaming=streaming)

    if streaming and not takes_whole(profile, request):
        with suppress(UndeliverableContent):
            return rewrite(True)
    sent = rewrite(False)
    return sent if not streaming else replace(sent, plan=replace(sent.plan, notices=(*sent.plan.notices, IN_ONE_PIECE)))


def is_native(profile: AgentProfile, agent_input: AgentInput) -> bool:
    """Return True if the agent takes this input itself, according to its profile.

    A V1 agent takes text, but expands placeholders in it. Such text is sent as a question. So is any text, if tools
    inherit it with the request's parameters: then what they call is proved, too.
    """
    if profile.unified_api is False or agent_input.type.value not in ABILITIES[profile.generation].native:
        return False
    if profile.generation is Generation.UNIFIED_V2:
        return True
    return is_storable(question_text(agent_input)) and not tools_inherit(profile)


def rewrite_native(
    profile: AgentProfile,
    request: ExecuteRequest,
    agent_input: AgentInput,
    streaming: bool,
    turn_id: str,
    policy: RewriteOptions,
    guards: Mapping[str, str] | None = None,
) -> Rewrite:
    """Return the client's request for an agent that takes `input` itself, changed as little as possible.

    - A V2 agent gets an `input` of which its cluster makes the provider's turns (`write_native`).
    - `parameters.question` is removed, because `input` does not take precedence in every version.
    - Missing `parameters` are added on the stream endpoint, which requires them (docs/evidence/facts.md, 3.5 and
      later).

    turn_id: see `gateway.delivery.plan.plan`. guards: parameters to add (`GUARDS`, when the agent's memory turns out to
    hold what an earlier version of the gateway stored).

    Raises:
        UndeliverableContent: the cluster can't serve it (`refuse_cluster_limits`), or can't bring it to the LLM whole.
    """
    params = parameters_as_strings(_without_question(request))
    refuse_cluster_limits(profile, params, streaming)
    left_out = (leave_out(agent_input.tools, _OWN_TOOLS),) if agent_input.tools is not None else ()
    written = value = json.loads(request.extracted.text)["input"]
    native: NativeInput | None = None
    helpers, plan = dict(guards or {}), Plan("native", profile.provider, {}, question_text(agent_input), None)
    if profile.generation is Generation.UNIFIED_V2:
        found, agent_input, notices = _deliver(
            agent_input, policy, lambda given: write_native(profile, given, params, policy.options, turn_id)
        )
        if not is_written(written, found.value, request.extracted, payloads_of(agent_input)):
            value = found.value
        helpers |= found.parameters
        native, plan = found, replace(plan, request=found.request, notices=(*found.notices, *notices))
    plan = replace(plan, notices=(*plan.notices, *left_out))
    is_as_sent = value is written and not (helpers or request.offered or request.has_question)
    if is_as_sent and not (streaming and not request.parameters):
        return Rewrite(plan, None, native)
    parameters = {**_without_question(request), **helpers}
    without = dict.fromkeys(request.offered)
    changes = {**without, "input": value, "parameters": parameters if parameters or streaming else None}
    return Rewrite(plan, replace_members(request.extracted, changes, payloads_of(agent_input)), native)


def rewrite_input(
    profile: AgentProfile,
    request: ExecuteRequest,
    agent_input: AgentInput,
    policy: RewriteOptions,
    turn_id: str,
    remembered: Remembered = (),
    calls: CallModelCache | None = None,
    streaming: bool = False,
) -> Rewrite:
    """Return the request that delivers `agent_input` to the agent's LLM.

    turn_id, remembered: see `gateway.delivery.plan.plan`. calls: the call models of this `profile`. streaming: the
    request goes to the stream endpoint, which adds the parameter `stream`.

    Raises:
        UndeliverableContent: it can't be delivered whole; the problems name each part and the reason.
    """
    params = parameters_as_strings(_without_question(request))
    refuse_cluster_limits(profile, params, streaming)
    calls = CallModelCache(profile) if calls is None else calls
    assert calls.profile is profile
    if streaming:
        params[STREAM] = "true"
    found = _plan(calls, agent_input, params, policy, turn_id, remembered)
    return Rewrite(found, _body(request, agent_input, found, streaming))


def _plan(
    calls: CallModelCache,
    agent_input: AgentInput,
    params: Mapping[str, str],
    policy: RewriteOptions,
    turn_id: str,
    remembered: Remembered,
) -> Plan:
    """Return the plan, with what can't be delivered described if the policy allows that."""
    provider = _provider(calls.profile, params)
    found, _, notices = _deliver(
        agent_input,
        policy,
        lambda given: plan(calls.profile, provider, given, params, policy.options, turn_id, remembered, calls),
    )
    return replace(found, notices=(*found.notices, *notices)) if notices else found


_Found = TypeVar("_Found")


def _deliver(
    agent_input: AgentInput, policy: RewriteOptions, find: Callable[[AgentInput], _Found]
) -> tuple[_Found, AgentInput, tuple[Notice, ...]]:
    """Return what `find` returns, the input that it was given, and notices of the media that are described in it."""
    notices: tuple[Notice, ...] = ()
    while True:
        try:
            return find(agent_input), agent_input, notices
        except UndeliverableContent as refusal:
            if not policy.describe:
                raise
            agent_input, more = describe(agent_input, {problem.place for problem in refusal.problems})
            if not more:
                raise  # the remaining problems are not about media
            notices += more


def _provider(profile: AgentProfile, params: Mapping[str, str]) -> Provider:
    """Return the provider of the agent's first LLM; one of text only if that LLM or its format is unknown."""
    try:
        unread = unread_llm(profile, params)
    except RenderFailure:
        unread = None  # the planner refuses these parameters
    if unread is not None:
        return TextOnly(use_another_agent(unread))
    if profile.provider:
        return registry.provider(profile.provider)
    return TextOnly(advise(profile, params).text or NAME_OR_TEXT)


def rewrite_unproved(
    provider: Provider,
    request: ExecuteRequest,
    agent_input: AgentInput,
    policy: RewriteOptions,
    turn_id: str,
    streaming: bool = False,
) -> Rewrite:
    """Return the request for an agent that can't be read. provider: the one that the operator configured.

    streaming: as for `rewrite_input`.

    Raises:
        UndeliverableContent: the provider can't express the input.
    """
    params = parameters_as_strings(_without_question(request))
    if streaming:
        params[SKIP] = "true"  # the cluster may write the rendered body again (`gateway.mlcommons.sent_body`)
    plan = assume(provider, agent_input, params, policy.options, turn_id)
    return Rewrite(plan, _body(request, agent_input, plan, streaming))


def _body(request: ExecuteRequest, agent_input: AgentInput, plan: Plan, streaming: bool) -> list[Payload]:
    """Return the body with the plan's parameters; the caller's own are written as they came.

    streaming: without the parameter `stream`, which the stream endpoint adds itself.
    """
    own = _without_question(request)
    written = parameters_as_strings(own)
    sent = {name: own[name] if written.get(name) == value else value for name, value in plan.parameters.items()}
    assert parameters_as_strings(sent) == plan.parameters, "what is sent is not what was proved"
    if streaming:
        sent.pop(STREAM, None)
    return serialise({**request.other, "parameters": sent}, payloads_of(agent_input))


def _without_question(request: ExecuteRequest) -> dict[str, Any]:
    return {name: value for name, value in request.parameters.items() if name != "question"}


def move_question_to_input(request: ExecuteRequest) -> list[Payload]:
    """Return a legacy request with its `question` as `input`, for an agent that takes only the unified input.

    A question that is no string is its JSON text, as for agents that take questions.
    """
    question = parameters_as_strings(request.parameters)["question"]
    return replace_members(request.extracted, {"input": question, "parameters": _without_question(request) or None})


def is_written(value: Any, expected: Any, extracted: ExtractedBody, payloads: Mapping[str, Payload]) -> bool:
    """Return True if `value`, a part of the client's request, has all that is in `expected`.

    The arguments of a tool call are JSON text, which may be written in any way.

    extracted: the request, which has the long strings of `value`. payloads: the inline media, whose tokens are in
    `expected`.
    """
    match expected:
        case dict():
            return isinstance(value, dict) and all(
                _is_arguments(value.get(name), extracted)
                if name == "arguments"
                else is_written(value.get(name), member, extracted, payloads)
                for name, member in expected.items()
            )
        case list():
            return (
                isinstance(value, list)
                and len(value) == len(expected)
                and all(is_written(*pair, extracted, payloads) for pair in zip(value, expected, strict=True))
            )
        case str() if isinstance(value, str):
            if (data := payloads.get(expected)) is None:
                return extracted.restore(value) == expected
            if value in extracted.blobs:  # without a prefix or white space it is shorter
                return value == expected and len(extracted.data(value)) == len(data)
            return value.encode() == bytes(data)
    return bool(value == expected)


def _is_arguments(value: Any, extracted: ExtractedBody) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_storable(extracted.restore(value))

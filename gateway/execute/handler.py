"""The use case: decides what to send to the cluster for a request to run an agent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import ClassVar

import msgspec
from msgspec import structs
from msgspec.structs import replace

from gateway.agents.lookup import AgentNotFound, FailedLookup
from gateway.agents.memory import DEFAULT_LIMIT, MemoryReader
from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.codes import Notice
from gateway.config.schema import Answers, Settings
from gateway.delivery.native import GUARDS
from gateway.delivery.plan import Remembered
from gateway.errors import GatewayError, UndeliverableContent, UnresolvedAgent
from gateway.execute.body import is_json
from gateway.execute.deliveries import (
    DELIVERY,
    QUESTION,
    Reporter,
    TimedStep,
    delivery_headers,
    delivery_value,
    describe_delivery,
    end_step,
    note_delivery,
    with_plan,
)
from gateway.execute.media import Inliner
from gateway.execute.output import Outputs
from gateway.execute.rewrite import (
    Rewrite,
    RewriteOptions,
    is_native,
    move_question_to_input,
    rewrite_native,
    takes_whole,
)
from gateway.execute.rewriter import Rewriter, new_turn_id
from gateway.execute.run_events import NOT_READ
from gateway.execute.session_run import LegacyAgents, SessionRun, SessionRuns, concerns_memory
from gateway.execute.streams import StreamWatch, WholeAnswer, retry_whole
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import AgentType, Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_call
from gateway.mlcommons.sent_body import STREAM
from gateway.mlcommons.template import RuntimeValues
from gateway.observe.record import Delivery
from gateway.offload import run_here_if
from gateway.ports import ExecuteCall, Forward, Retry
from gateway.unified.limits import SMALL_TEXT, ParseLimits, is_small
from gateway.unified.model import AgentInput
from gateway.unified.request import ExecuteRequest, RequestKind, parameters_as_strings, read_execute

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")


async def read_remembered(
    memory: MemoryReader, profile: AgentProfile, request: ExecuteRequest, headers: Mapping[str, str]
) -> tuple[Remembered, tuple[Notice, ...]]:
    """Return what the agent will replay for the caller's `memory_id`, and a notice if the memory can't be read.

    Nothing is read for an agent without memory, or a request without `memory_id`. headers: the caller's.
    """
    memory_id = request.parameters.get("memory_id")
    if (
        profile.generation is Generation.UNIFIED_V2
        or not profile.memory_type
        or not isinstance(memory_id, str)
        or not memory_id
    ):
        return (), ()
    written = parameters_as_strings(request.parameters).get("message_history_limit", str(DEFAULT_LIMIT))
    if not _INTEGER.fullmatch(written):  # the cluster refuses what is no integer of Java
        return (), ()
    limit = _limit(profile, int(written))
    try:
        found = await memory.remembered(memory_id, headers, limit)
    except FailedLookup:
        return (), (Notice("MEMORY_NOT_READ", "the agent's memory could not be read, so its content was not checked"),)
    return (_newest(found, limit) if _counts_messages(profile) else found), ()


def is_short(remembered: Remembered) -> bool:
    """Return True if the turns can be planned with on the event loop."""
    return sum(len(text) for turn in remembered for text in turn) <= SMALL_TEXT


def _counts_messages(profile: AgentProfile) -> bool:
    """Return True for an agent that recalls messages, also the question of a turn that failed, and not whole turns."""
    return profile.generation is Generation.UNIFIED_V1 and profile.agent_type is AgentType.CONVERSATIONAL


def _newest(turns: Remembered, limit: int | None) -> Remembered:
    """Return the turns that the newest `limit` messages are of; all of them for None."""
    count = 0
    for index in reversed(range(len(turns))):
        if limit is not None and count >= limit:
            return turns[index + 1 :]
        count += sum(1 for text in turns[index] if text)
    return turns


def _limit(profile: AgentProfile, limit: int) -> int | None:
    """Return how many turns the agent recalls, or messages (`_counts_messages`); None for no limit.

    A unified agent (V1) recalls all with a limit of 0 (docs/evidence/facts.md, "What memory keeps from turn to turn").
    """
    return None if limit == 0 and profile.generation is Generation.UNIFIED_V1 else limit


class Handler:
    """Reads the request, resolves the agent, fetches media, and rewrites the request for the agent."""

    def __init__(
        self,
        settings: Settings,
        resolver: Resolver,
        memory: MemoryReader,
        media: Inliner,
        rewriter: Rewriter,
        reporter: Reporter,
        sessions: SessionRuns | None = None,
    ) -> None:
        self._answers = settings.answers
        self._limits = ParseLimits.from_limits(settings.limits)
        self._reads_as_caller = settings.agents.lookup == "caller"
        self._resolver = resolver
        self._memory = memory
        self._media = media
        self._rewriter = rewriter
        self._reporter = reporter
        self._sessions = sessions
        self._outputs = Outputs(settings)
        self._legacy = LegacyAgents(resolver, sessions, self._outputs) if sessions is not None else None

    async def __call__(self, call: ExecuteCall) -> Forward:
        """Return what to send for `call`.

        Raises:
            GatewayError: the input is wrong, can't be delivered, or the agent can't be read.
        """
        if not is_json(call.headers.get("Content-Type", "")):
            return self._as_whole(call, NOT_READ, Forward())
        with TimedStep(call, "decode"):
            request = call.request
            if request is None:
                roles = self._rewriter.options.roles
                request = await run_here_if(is_small(call.body), read_execute, call.body, self._limits, roles)
        if request.kind is RequestKind.LEGACY or request.input is None:
            agent = await self._legacy.find(call, request) if self._legacy is not None else None
            if agent is not None and self._remembers(call, agent):
                forward = await self._send_in_session(call, request, agent)
                return self._watch_stream(call, agent.profile, forward)
            delivery = self._describe_legacy(call, request)
            forward = Forward(retry=retry_as_input(request, self._answers, delivery), delivery=delivery)
            forward = self._as_whole(call, NOT_READ if agent is None else agent.profile, forward)
            return forward if agent is None else self._convert_answer(call, agent, forward)
        if request.has_question:
            self._reporter.both_sent(call.agent_id)
        self._reporter.decoded(request.input)
        note_delivery(call, Delivery(input_type=request.input.type.value))
        provider = ""
        try:
            try:
                agent = await self._resolve(call)
            except UnresolvedAgent as error:
                return await self._send_unresolved(call, request, request.input, error)
            provider = agent.profile.provider
            note_delivery(call, describe_delivery(agent.profile, request.input.type.value))
            if self._remembers(call, agent):
                forward = await self._send_in_session(call, request, agent)
            else:
                forward = self._convert_answer(call, agent, await self._send(call, request, request.input, agent))
            return self._watch_stream(call, agent.profile, forward)
        except GatewayError as error:
            self._reporter.refused(call, request.input, provider, error)
            raise

    async def _resolve(self, call: ExecuteCall) -> ResolvedAgent:
        with TimedStep(call, "resolve"):
            agent = await self._resolver.agent(call.agent_id, call.headers)
            if agent.profile.generation is Generation.UNIFIED_V2 and agent.profile.unified_api is False:
                # The request would be refused with the call that turns the API on. It may have been made since.
                agent = await self._resolver.refresh(call.agent_id, call.headers)
            self._reporter.resolved(agent.profile)
        return agent

    def _describe_legacy(self, call: ExecuteCall, request: ExecuteRequest) -> Delivery:
        """Return what is known of a legacy request without reading the agent."""
        agent = self._resolver.peek(call.agent_id, self._resolver.caller(call.headers))
        input_type = QUESTION if request.has_question else ""
        return Delivery(input_type=input_type) if agent is None else describe_delivery(agent.profile, input_type)

    def _remembers(self, call: ExecuteCall, agent: ResolvedAgent) -> bool:
        keeps_itself = call.session is not None and not call.session.thread
        is_forgotten = call.temporary or keeps_itself or call.mirror is not None
        return self._sessions is not None and not is_forgotten and self._sessions.remembers(agent.profile)

    def _convert_answer(self, call: ExecuteCall, agent: ResolvedAgent, forward: Forward) -> Forward:
        """Return `forward` with the conversion of the answer, if the agent has one. Event streams keep their form."""
        return forward if call.streaming else self._outputs.attach(agent.profile, forward)

    def _watch_stream(self, call: ExecuteCall, profile: AgentProfile, forward: Forward) -> Forward:
        """Return `forward` with the watch over the stream, if it is one, and comes in pieces."""
        if not call.streaming or forward.whole:
            return forward
        return forward.through(StreamWatch(profile, self._reporter))

    async def _send_in_session(self, call: ExecuteCall, request: ExecuteRequest, agent: ResolvedAgent) -> Forward:
        """Send the input after the messages of its session."""
        assert self._sessions is not None
        run = await self._sessions.begin(call, request, agent.profile)
        try:
            try:
                forward = await self._send_composed(call, run, agent)
            except UndeliverableContent as error:
                if not concerns_memory(error) or not await run.compose_without_steps():
                    raise
                forward = await self._send_composed(call, run, agent)
            return forward.through(run)
        except BaseException:
            run.release()
            raise

    async def _send_composed(self, call: ExecuteCall, run: SessionRun, agent: ResolvedAgent) -> Forward:
        request = run.sent.request
        assert request.input is not None
        return await self._send(call, request, request.input, agent)

    async def _send(
        self, call: ExecuteCall, request: ExecuteRequest, agent_input: AgentInput, agent: ResolvedAgent
    ) -> Forward:
        send = self._send_native if is_native(agent.profile, agent_input) else self._send_rewritten
        if not call.streaming:
            return await send(call, request, agent_input, agent)
        if not (call.whole or takes_whole(agent.profile, request)):
            try:
                return await send(call, request, agent_input, agent)
            except UndeliverableContent:
                pass  # a stream brings less to the LLM; the reasons that are not the stream's are raised again
        forward = await send(replace(call, streaming=False), request, agent_input, agent)
        return forward.through(self._whole_answer(agent.profile))

    def _as_whole(self, call: ExecuteCall, profile: AgentProfile, forward: Forward) -> Forward:
        """Return the request for a stream as one for a whole answer, if a guardrail has to see that."""
        return forward.through(self._whole_answer(profile)) if call.whole else forward

    def _whole_answer(self, profile: AgentProfile) -> WholeAnswer:
        return WholeAnswer(profile, self._reporter, self._answers.notice_header)

    def _retry_stream(self, agent: ResolvedAgent, again: Callable[[], Forward], forward: Forward) -> Forward:
        """Return a request for a stream with the retry for a cluster that is not set up for streams."""

        def as_whole() -> Forward:
            return again().through(self._whole_answer(agent.profile))

        return msgspec.structs.replace(forward, retry=retry_whole(as_whole, forward.retry))

    async def _send_native(
        self, call: ExecuteCall, request: ExecuteRequest, agent_input: AgentInput, agent: ResolvedAgent
    ) -> Forward:
        """Send `input` to an agent that takes it; once more if the cluster refuses it before it runs the agent."""
        profile, rewriter, streaming = agent.profile, self._rewriter, call.streaming
        remembered, notices = await read_remembered(self._memory, profile, request, call.headers)
        is_small = request.is_small and agent.is_small and is_short(remembered)
        describes = rewriter.describes(profile)

        def check(with_media: AgentInput) -> None:
            rewrite_native(profile, request, with_media, streaming, new_turn_id(), RewriteOptions(rewriter.options))

        with TimedStep(call, "plan"):
            agent_input, fetched = await self._media.inline(
                profile.provider, request, agent_input, check, is_small, describes
            )
            if fetched:
                end_step(call, "fetch")
            rewrite = await run_here_if(
                is_small, rewriter.rewrite_native, profile, request, agent_input, fetched, streaming=streaming
            )
            forward = self._forward(request, agent_input, rewrite, profile)

        def with_guards() -> Forward:
            again = rewriter.rewrite_native(profile, request, agent_input, fetched, GUARDS, streaming=streaming)
            return self._forward(request, agent_input, again, profile)

        def as_question() -> Forward:
            again = rewriter.rewrite(agent, request, agent_input, remembered, notices, streaming=streaming)
            return self._forward(request, agent_input, again, profile)

        def unstreamed() -> Forward:
            again = rewriter.rewrite_native(profile, request, agent_input, fetched, streaming=False)
            return self._forward(request, agent_input, again, profile)

        needs_input = profile.generation is Generation.UNIFIED_V2
        forward = msgspec.structs.replace(
            forward, retry=retry_native(with_guards, None if needs_input else as_question)
        )
        return self._retry_stream(agent, unstreamed, forward) if streaming else forward

    async def _send_rewritten(
        self, call: ExecuteCall, request: ExecuteRequest, agent_input: AgentInput, agent: ResolvedAgent
    ) -> Forward:
        """Send the input as the agent's own parameters."""
        profile, rewriter = agent.profile, self._rewriter
        remembered, notices = await read_remembered(self._memory, profile, request, call.headers)
        is_small = request.is_small and agent.is_easy and is_short(remembered)

        def check(with_media: AgentInput) -> None:
            rewriter.check(agent, request, with_media, remembered, call.streaming)

        with TimedStep(call, "plan"):
            agent_input, fetched = await self._media.inline(
                profile.provider, request, agent_input, check, is_small, rewriter.describes(profile)
            )
            if fetched:
                end_step(call, "fetch")
            rewrite = await run_here_if(
                is_small,
                rewriter.rewrite,
                agent,
                request,
                agent_input,
                remembered,
                (*notices, *fetched),
                streaming=call.streaming,
            )
        forward = self._forward(request, agent_input, rewrite, profile)
        if not call.streaming:
            return msgspec.structs.replace(forward, render=agent.derive(Rendering))

        def unstreamed() -> Forward:
            notes = (*notices, *fetched)
            again = rewriter.rewrite(agent, request, agent_input, remembered, notes, streaming=False)
            rendered = self._forward(request, agent_input, again, profile)
            return msgspec.structs.replace(rendered, render=agent.derive(Rendering))

        forward = msgspec.structs.replace(forward, render=agent.derive(StreamRendering))
        return self._retry_stream(agent, unstreamed, forward)

    async def _send_unresolved(
        self, call: ExecuteCall, request: ExecuteRequest, agent_input: AgentInput, error: UnresolvedAgent
    ) -> Forward:
        """Send the input unproved if the operator allows that; raise `error` if not."""
        if isinstance(error, AgentNotFound):
            raise error  # a cluster that doesn't know `input` would call the request empty instead
        if self._reads_as_caller and isinstance(error, FailedLookup) and error.cluster_status == 401:
            return Forward()  # the client gets the cluster's own challenge
        provider, rewriter = self._rewriter.assumed_provider(call.agent_id), self._rewriter
        if not provider:
            raise error
        streaming = call.streaming and not call.whole

        def check(with_media: AgentInput) -> None:
            rewriter.rewrite_unproved(provider, request, with_media)

        with TimedStep(call, "plan"):
            agent_input, fetched = await self._media.inline(provider, request, agent_input, check, request.is_small)
            if fetched:
                end_step(call, "fetch")
            rewrite = await run_here_if(
                request.is_small,
                rewriter.rewrite_unproved,
                provider,
                request,
                agent_input,
                fetched,
                streaming=streaming,
            )
        forward = self._forward(request, agent_input, rewrite)
        return self._watch_stream(call, NOT_READ, self._as_whole(call, NOT_READ, forward))

    def _forward(
        self, request: ExecuteRequest, agent_input: AgentInput, rewrite: Rewrite, profile: AgentProfile | None = None
    ) -> Forward:
        """Return what to send. profile: None if the agent can't be read."""
        plan, input_type = rewrite.plan, agent_input.type.value
        self._reporter.planned(plan)
        headers = delivery_headers(self._answers, plan, input_type, request.has_question)
        known = Delivery(input_type=input_type) if profile is None else describe_delivery(profile, input_type)
        documents = frozenset() if profile is None else profile.documents
        return Forward(rewrite.body, headers, delivery=with_plan(known, plan), documents=documents)


class Rendering:
    """Renders for one agent; see `gateway.ports.Forward.render`."""

    added: ClassVar[Mapping[str, str]] = {}
    """What the endpoint adds to the request's parameters."""

    def __init__(self, profile: AgentProfile) -> None:
        self._profile = profile

    def __call__(self, body: str) -> str:
        """Return the body of the first LLM call, without remembered turns; "" if the cluster makes it otherwise."""
        try:
            document = json.loads(body)
        except ValueError:
            return ""
        parameters = document.get("parameters") if isinstance(document, dict) else None
        if not isinstance(parameters, dict) or "question" not in parameters or "input" in document:
            return ""
        try:
            call = first_call(self._profile, {**parameters_as_strings(parameters), **self.added}, RuntimeValues())
        except RenderFailure:
            return ""
        return json.dumps(call, ensure_ascii=False) if call is not None else ""


class StreamRendering(Rendering):
    """Renders requests to the stream endpoint."""

    added: ClassVar[Mapping[str, str]] = {STREAM: "true"}


_API_OFF = b"unified agent API is not enabled"
_GUARD_MISSING = b"placeholder not filled in payload: gw_"
_V2_ONLY = b"V2 agents require executor-provided memory"


def retry_native(with_guards: Callable[[], Forward], as_question: Callable[[], Forward] | None) -> Retry:
    """Return the retry for an `input` that was sent as it came.

    with_guards: makes the request with the guard parameters, which the agent's memory turned out to need.
    as_question: rewrites the request for a cluster that turned out not to take `input`; None where that can't be.
    """

    def retry_with(status: int, answer: bytes) -> Forward | None:
        if status == 400 and _GUARD_MISSING in answer:
            return with_guards()
        if status == 400 and _API_OFF in answer and as_question is not None:
            return as_question()
        return None

    return retry_with


def retry_as_input(request: ExecuteRequest, answers: Answers, delivery: Delivery) -> Retry | None:
    """Return the retry for a legacy request: its question as `input`, for an agent that takes nothing else.

    delivery: what is known of the request.
    """
    if not request.has_question:
        return None

    def retry_with(status: int, answer: bytes) -> Forward | None:
        if status != 500 or _V2_ONLY not in answer:
            return None
        headers: dict[str, str] = {}
        if answers.delivery_header:
            headers[DELIVERY] = delivery_value("native", "", "question")
        native = structs.replace(delivery, strategy="native")
        return Forward(move_question_to_input(request), headers, delivery=native)

    return retry_with

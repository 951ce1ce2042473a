"""Runs of agents under the operator's policies: usage, budgets and guardrails around the use case and its answer."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.codes import Notice
from gateway.config.schema import Settings
from gateway.errors import GatewayError, GuardrailUnavailable, InvalidInput
from gateway.execute.body import is_json, read_async, replace_members
from gateway.execute.deliveries import model_name, notice_header, with_notices
from gateway.execute.handler import Handler
from gateway.execute.run_answer import decode
from gateway.execute.run_events import NOT_READ, AnswerReader, read_usage
from gateway.memory.model import Usage as Tokens
from gateway.observe.record import Usage
from gateway.offload import READING, run_here_if
from gateway.policy.budgets import Charge
from gateway.policy.guardrails import AgentGuardrails, Checks, NoContent, answer_content, input_content, write_changes
from gateway.policy.policies import Policies
from gateway.policy.usage import HEADER, UNKNOWN, Llm, header_value
from gateway.ports import Answer, AnswerStage, ExecuteCall, Forward
from gateway.unified.limits import ParseLimits, is_small
from gateway.unified.request import ExecuteRequest, read_execute


class GuardedCall:
    """A request to run an agent, and its answer, under the agent's guardrails.

    agent: None if it can't be read. roles: the operator's table (`agents.roles`).
    """

    def __init__(
        self,
        guardrails: AgentGuardrails,
        call: ExecuteCall,
        agent: ResolvedAgent | None,
        limits: ParseLimits,
        roles: Mapping[str, str],
    ) -> None:
        self._guardrails = guardrails
        self._call = call
        self._limits = limits
        self._roles = roles
        self._about = _about(call, agent)

    async def check_input(self) -> tuple[ExecuteCall, tuple[Notice, ...]]:
        """Return the call, with its body read, as the guardrails changed it, and a notice for each change.

        Raises:
            GuardrailRefused, GuardrailUnavailable: see `AgentGuardrails.check`.
            InvalidInput, BodyTooLarge: the body breaks a rule.
        """
        call, guardrails = self._call, self._guardrails
        if read_async(call.raw_target) != "false":
            guardrails.require_answer()
        call = replace(call, whole=call.streaming and guardrails.checks_answers)
        if not is_json(call.headers.get("Content-Type", "")):
            guardrails.report_unchecked("input", "the body is not JSON")
            return call, ()
        request = call.request
        if request is None:
            request = await run_here_if(is_small(call.body), read_execute, call.body, self._limits, self._roles)
        call = replace(call, request=request)
        try:
            content = input_content(request)
        except NoContent as error:
            guardrails.report_unchecked("input", str(error))
            return call, ()
        notices = await guardrails.check("input", self._about, content)
        if not content.changes:
            return call, ()
        body = await run_here_if(request.is_small, _changed_body, request, content.changes)
        return replace(call, body=body, request=None), notices

    @property
    def checks(self) -> Checks:
        """What the guardrails did."""
        return self._guardrails.checks

    @property
    def checks_answers(self) -> bool:
        """True if a guardrail checks the answer, too."""
        return self._guardrails.checks_answers

    async def check_answer(self, body: bytes) -> tuple[bytes, tuple[Notice, ...]]:
        """Return the answer's body as the guardrails changed it, with a notice for each change.

        Raises:
            GuardrailRefused, GuardrailUnavailable: see `AgentGuardrails.check`.
        """
        document = await run_here_if(len(body) <= _SMALL, decode, body)
        try:
            content = answer_content(document)
        except NoContent as error:
            self._guardrails.report_unchecked("answer", str(error))
            return body, ()
        notices = await self._guardrails.check("answer", self._about, content)
        if not content.changes:
            return body, ()
        return msgspec.json.encode(write_changes(document, content.changes)), notices

    def report_unread(self) -> None:
        """Report an answer that is too large to hold, or can't be decoded; see `gateway.ports.Forward`.

        Raises:
            GuardrailUnavailable: failures of a guardrail refuse the request.
        """
        try:
            self._guardrails.report_unchecked("answer", "the answer is too large, or can't be decoded")
        except GuardrailUnavailable:
            raise GuardrailUnavailable(
                "The answer of the agent is too large, or can't be decoded, for the guardrails that check it",
                help="Ask for a shorter answer. The operator chooses with policy.guardrails[] if answers are checked "
                "(answers), and if they pass where that is not possible (on_failure).",
            ) from None


def _about(call: ExecuteCall, agent: ResolvedAgent | None) -> dict[str, Any]:
    about = {"id": call.agent_id, "name": "", "type": "", "provider": "", "model": ""}
    if agent is not None:
        known = agent.profile
        about |= {"name": known.name, "type": known.type, "provider": known.provider, "model": model_name(known)}
    return {"request_id": call.request_id, "agent": about}


def _changed_body(request: ExecuteRequest, changes: dict[str, str]) -> bytes:
    """Return the client's body with new texts. All other values keep their meaning; long strings keep their bytes."""
    document = json.loads(request.extracted.text)
    if any(token in text for text in changes.values() for token in request.extracted.blobs):
        raise InvalidInput("A guardrail's text holds a name that the gateway uses for a payload of this request")
    return b"".join(replace_members(request.extracted, write_changes(document, changes)))


_SMALL = 64 * 1024


class PolicyRun(AnswerStage):
    """What is done with the answer of one run.

    An answer is held until it is whole if it gets the header, if a guardrail checks it, or if it is charged to a
    budget: what it cost is stored before the client can send another request. Of an event stream, the end is held.

    charges: what it is charged to. guarded, body, notices: the guardrails, and what they changed of the request; body:
    None if that is nothing.
    """

    reports = True

    def __init__(
        self,
        policies: Policies,
        agent: ResolvedAgent | None,
        charges: Sequence[Charge] = (),
        streaming: bool = False,
        guarded: GuardedCall | None = None,
        body: bytes | None = None,
        notices: Sequence[Notice] = (),
    ) -> None:
        self._policies = policies
        self._profile = agent.profile if agent is not None else None
        self._llm = Llm(self._profile.provider, model_name(self._profile)) if self._profile is not None else Llm()
        self._charges = charges
        self._streaming = streaming
        self._guarded = guarded
        self._body = body
        self._notices = notices
        self._stream = AnswerReader(self._profile or NOT_READ)
        self._checks_answer = guarded is not None and guarded.checks_answers
        self._measured = self._used_something = False
        self._usage: Usage | None = None
        self.holds = bool(charges or self._checks_answer or (policies.usage_header and not streaming))

    @override
    def prepare(self, forward: Forward) -> Forward:
        changes: dict[str, object] = {}
        if self._body is not None and forward.body is None:
            changes["body"] = [self._body]
        if self._notices and self._policies.notice_header:
            known = forward.response_headers
            changes["response_headers"] = {**known, **notice_header(self._notices, known)}
        if self._notices and forward.delivery is not None:
            changes["delivery"] = with_notices(forward.delivery, self._notices)
        if self._guarded is not None:
            changes["guardrails"] = self._guarded.checks
        return msgspec.structs.replace(forward, **changes)

    # The response

    @override
    def feed(self, piece: bytes) -> bytes:
        self._stream.feed(piece)
        return piece

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """Charge the run, and check its answer."""
        status, body = answer.status, answer.body
        if streamed:
            tokens = self._stream.answer().usage
        else:
            tokens = await run_here_if(len(body) <= _SMALL, read_usage, self._profile, body, self._streaming)
        self._measure(status, tokens)
        if self._policies.budgets is not None and self._used_something:
            await self._policies.budgets.charge(self._charges, self._usage)
        notices: Sequence[Notice] = ()
        if self._guarded is not None and self._checks_answer and status < 300 and not streamed:
            body, notices = await self._guarded.check_answer(body)
        headers = dict(answer.headers)
        if self._policies.usage_header and status < 300:
            headers[HEADER] = header_value(self._usage, self._llm)
        if self._policies.notice_header:
            headers |= notice_header(notices, headers)
        return Answer(status, headers, body)

    @override
    def leave(self) -> Mapping[str, str]:
        if self._guarded is not None and self._checks_answer:
            self._guarded.report_unread()
        return {HEADER: UNKNOWN} if self._policies.usage_header else {}

    def report(self, status: int, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Read what the run used, and charge it, unless that is done."""
        if self._measured:
            return None
        if len(body) > _SMALL:
            return self._report_large(status, body)
        self._charge_later(status, read_usage(self._profile, body, self._streaming) if body else None)
        return None

    async def _report_large(self, status: int, body: bytes) -> None:
        self._charge_later(status, await READING.run(read_usage, self._profile, body, self._streaming))

    def _charge_later(self, status: int, tokens: Tokens | None) -> None:
        self._measure(status, tokens)
        if self._policies.budgets is not None and self._used_something:
            self._policies.budgets.charge_later(self._charges, self._usage)

    def _measure(self, status: int, tokens: Tokens | None) -> None:
        """Count what the run used. A redirect or a refusal (3xx, 4xx) used nothing; of a failure nothing is known."""
        self._measured = True
        self._used_something = not 300 <= status < 500
        if self._used_something:
            known = tokens if tokens is not None and 200 <= status < 300 else Tokens()
            self._usage = self._policies.meter.measure(self._llm, known.input, known.output)


class PolicyHandler:
    """An `ExecuteHandler` around another."""

    def __init__(self, handler: Handler, policies: Policies, resolver: Resolver, settings: Settings) -> None:
        self._handler = handler
        self._policies = policies
        self._resolver = resolver
        self._limits = ParseLimits.from_limits(settings.limits)
        self._roles = settings.agents.roles

    async def __call__(self, call: ExecuteCall) -> Forward:
        """Return what to send for `call`.

        Raises:
            BudgetSpent, BudgetUnavailable, GuardrailRefused, GuardrailUnavailable: a policy refuses the run.
            GatewayError: as the other handler, and as `_find`.
        """
        policies = self._policies
        agent = await self._find(call)
        name = agent.profile.name if agent is not None else ""
        route = call.routed.route if call.routed is not None else ""
        charges: Sequence[Charge] = ()
        if policies.budgets is not None and call.mirror is None:
            charges = await policies.budgets.admit(call.agent_id, name, call.caller, call.temporary, route)
        guardrails = policies.guardrails.for_agent(call.agent_id, name, route) if policies.guardrails else None
        if guardrails is None:
            forward = await self._handler(call)
            return _attach(forward, PolicyRun(policies, agent, charges, call.streaming))
        guarded = GuardedCall(guardrails, call, agent, self._limits, self._roles)
        try:
            checked, notices = await guarded.check_input()
            forward = await self._handler(checked)
        except GatewayError as error:
            error.guardrails = tuple(guardrails.checks)
            raise
        body = checked.body if checked.body is not call.body else None
        return _attach(forward, PolicyRun(policies, agent, charges, call.streaming, guarded, body, notices))

    async def _find(self, call: ExecuteCall) -> ResolvedAgent | None:
        """Return the agent; None if the caller may not read it, or there is none.

        Raises:
            GatewayError: the cluster fails. Then the name is unknown, for which there may be a budget or a guardrail.
        """
        try:
            return await self._resolver.agent(call.agent_id, call.headers)
        except GatewayError as error:
            if error.status >= 500 and self._policies.needs_name(call.agent_id):
                raise
            return None


def _attach(forward: Forward, run: PolicyRun) -> Forward:
    try:
        return forward.through(run)
    except BaseException:
        forward.abandon()  # it may hold a session
        raise

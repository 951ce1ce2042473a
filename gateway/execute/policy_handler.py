"""Runs of agents under the operator's policies: usage, budgets and guardrails around the use case and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.config.schema import Settings
from gateway.errors import GatewayError
from gateway.execute.answer_stream import StreamReader
from gateway.execute.answers import NOT_READ, read_usage
from gateway.execute.deliveries import model_name, with_notices
from gateway.execute.guarded import GuardedCall
from gateway.execute.handler import Handler
from gateway.execute.response_headers import NOTICE
from gateway.memory.model import Usage as Tokens
from gateway.notices import Notice
from gateway.observe.record import Usage
from gateway.offload import READING, run_here_if
from gateway.policy.budgets import Charge
from gateway.policy.policies import Policies
from gateway.policy.usage import HEADER, UNKNOWN, Llm, header_value
from gateway.ports import Answer, ExecuteCall, Forward, Retry
from gateway.unified.budget import Budget

_SMALL = 64 * 1024


class PolicyRun:
    """What is done with the answer of one run.

    An answer is held until it is whole if it gets the header, if a guardrail checks it, or if it is charged to a
    budget: what it cost is stored before the client can send another request. Of an event stream, the end is held.

    charges: what it is charged to. guarded, body, notices: the guardrails, and what they changed of the request; body:
    None if that is nothing.
    """

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
        self._stream: StreamReader | None = None
        self._measured = self._used_something = False
        self._usage: Usage | None = None

    def attach(self, forward: Forward) -> Forward:
        """Return the request to send, with what is done with its response."""
        changes: dict[str, object] = {"answered": self._answered}
        if forward.retry is not None:
            changes["retry"] = self._retry(forward.retry)
        if self._body is not None and forward.body is None:
            changes["body"] = [self._body]
        if self._notices and self._policies.notice_header:
            codes = _codes(forward.response_headers.get(NOTICE, ""), self._notices)
            changes["response_headers"] = {**forward.response_headers, NOTICE: codes}
        if self._notices and forward.delivery is not None:
            changes["delivery"] = with_notices(forward.delivery, self._notices)
        if self._guarded is not None:
            changes["guardrails"] = self._guarded.checks
        if self._charges or self._checks_answer or (self._policies.usage_header and not self._streaming):
            changes |= self._hold(forward)
        return msgspec.structs.replace(forward, **changes)

    @property
    def _checks_answer(self) -> bool:
        return self._guarded is not None and self._guarded.checks_answers

    def _hold(self, forward: Forward) -> dict[str, object]:
        async def finish(status: int, body: bytes) -> Answer | None:
            return await self._finish(forward, status, body)

        held: dict[str, object] = {"finish": finish}
        if self._streaming:
            held["relay"] = self._relay(forward.relay)
        if self._guarded is not None and self._guarded.checks_answers:
            held["unread"] = self._guarded.report_unread
        if self._policies.usage_header:
            held["unread_headers"] = {**forward.unread_headers, HEADER: UNKNOWN}
        return held

    def _relay(self, relay: Callable[[bytes], bytes] | None) -> Callable[[bytes], bytes]:
        stream = self._stream = StreamReader(self._profile or NOT_READ)

        def relay_piece(piece: bytes) -> bytes:
            stream.feed(piece)
            return relay(piece) if relay is not None else piece

        return relay_piece

    def _retry(self, retry: Retry) -> Retry:
        def retry_with(status: int, answer: bytes) -> Forward | Answer | Awaitable[Answer] | None:
            again = retry(status, answer)
            return self.attach(again) if isinstance(again, Forward) else again

        return retry_with

    # The response

    async def _finish(self, forward: Forward, status: int, body: bytes) -> Answer | None:
        """Charge the run, check its answer, and let the use case finish it; see `gateway.ports.Forward`."""
        if self._stream is not None and not body:
            tokens = self._stream.answer().usage
        else:
            tokens = await run_here_if(len(body) <= _SMALL, read_usage, self._profile, body, self._streaming)
        self._measure(status, tokens)
        if self._policies.budgets is not None and self._used_something:
            await self._policies.budgets.charge(self._charges, self._usage)
        checked, notices = await self._check_answer(forward, status, body)
        answer = await forward.finish(status, checked) if forward.finish is not None else None
        headers = self._headers(status, notices)
        if answer is None and checked is body and not headers:
            return None
        answer = answer or Answer(status, {}, checked)
        return Answer(answer.status, {**answer.headers, **headers}, answer.body)

    async def _check_answer(self, forward: Forward, status: int, body: bytes) -> tuple[bytes, tuple[Notice, ...]]:
        if self._guarded is None or not self._checks_answer or status >= 300:
            return body, ()
        try:
            return await self._guarded.check_answer(body)
        except GatewayError:
            if forward.abandoned is not None:
                forward.abandoned()
            raise

    def _headers(self, status: int, notices: Sequence[Notice]) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._policies.usage_header and status < 300:
            headers[HEADER] = header_value(self._usage, self._llm)
        if notices and self._policies.notice_header:
            headers[NOTICE] = _codes("", notices)
        return headers

    def _answered(self, status: int, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Read what the run used, and charge it, unless that is done; see `gateway.ports.Forward`."""
        if self._measured:
            return None
        if len(body) > _SMALL:
            return self._answered_large(status, body)
        self._charge_later(status, read_usage(self._profile, body, self._streaming) if body else None)
        return None

    async def _answered_large(self, status: int, body: bytes) -> None:
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


def _codes(known: str, notices: Sequence[Notice]) -> str:
    """Return the codes of a notice header with those of `notices`."""
    return ", ".join(dict.fromkeys([*([known] if known else []), *(notice.code for notice in notices)]))


class PolicyHandler:
    """An `ExecuteHandler` around another."""

    def __init__(self, handler: Handler, policies: Policies, resolver: Resolver, settings: Settings) -> None:
        self._handler = handler
        self._policies = policies
        self._resolver = resolver
        self._budget = Budget.from_limits(settings.limits)
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
        charges: Sequence[Charge] = ()
        if policies.budgets is not None:
            charges = await policies.budgets.admit(call.agent_id, name, call.headers, call.temporary)
        guardrails = policies.guardrails.for_agent(call.agent_id, name) if policies.guardrails else None
        if guardrails is None:
            forward = await self._handler(call)
            return _attach(forward, PolicyRun(policies, agent, charges, call.streaming))
        guarded = GuardedCall(guardrails, call, agent, self._budget, self._roles)
        try:
            checked, notices = await guarded.check_input()
            forward = await self._handler(checked)
        except GatewayError as error:
            error.guardrails = tuple(guardrails.checks)
            raise
        body = checked.body if checked is not call else None
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
        return run.attach(forward)
    except BaseException:
        if forward.abandoned is not None:
            forward.abandoned()  # it may hold a session
        raise

"""A run of an agent whose memory is the gateway's: its session is opened, sent along, and gets the turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeVar

import msgspec
from typing_extensions import override

from gateway.agents.documents import keeps_sessions, rule_for
from gateway.agents.lookup import Credentials
from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.codes import Notice
from gateway.config.schema import AgentRule, Agents, Settings
from gateway.errors import GatewayError, InvalidInput, Problem, SignatureConflict
from gateway.execute.body import read_async
from gateway.execute.deliveries import (
    BOTH_SENT,
    DELIVERY,
    QUESTION,
    Reporter,
    delivery_value,
    notice_header,
    with_notices,
)
from gateway.execute.output import Outputs
from gateway.execute.rewriter import new_turn_id
from gateway.execute.run_answer import RunAnswer, read_answer
from gateway.execute.session_request import IDS, Earlier, SessionRequest, compose
from gateway.execute.streams import SessionStream
from gateway.memory.cluster_copies import copy_of, with_copy
from gateway.memory.model import PREFIX, Message, Metadata, Turn
from gateway.memory.owner import agent_of, knows_users, owner_of
from gateway.memory.sessions import OpenSession, Sessions
from gateway.memory.window import measure
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.record import Delivery
from gateway.offload import run_here_if
from gateway.ports import Answer, AnswerStage, ExecuteCall, Forward
from gateway.unified.request import ExecuteRequest

ANSWER_MISSING = Notice("MEMORY_ANSWER_MISSING", "the answer could not be read, so the turn is not remembered")
BLOCK_UNKNOWN = Notice(
    "MEMORY_BLOCK_UNKNOWN",
    "the answer has a content block of a kind that is not known, which the session does not hold",
)
_REFUSED = frozenset({401, 403})
"""Statuses of a caller whose credentials the cluster did not accept. Nothing of the request is stored."""
_SMALL = 64 * 1024


class SessionRuns:
    """Begins the runs of agents with gateway memory."""

    def __init__(self, sessions: Sessions, settings: Settings, reporter: Reporter) -> None:
        self.sessions = sessions
        self.settings = settings
        self.reporter = reporter
        self.outputs = Outputs(settings)
        self.credentials = Credentials().of
        self._rules = settings.agents.rules
        self._by_user = knows_users(settings)
        self._replaced = {*_replaced(settings.agents)}

    def rule(self, agent_id: str, name: str = "") -> AgentRule | None:
        """Return the operator's rule for an agent."""
        return rule_for(agent_id, name, self._rules)

    def remembers(self, profile: AgentProfile) -> bool:
        """Return True if the agent's memory is the gateway's."""
        return keeps_sessions(profile, self._rules)

    async def begin(self, call: ExecuteCall, request: ExecuteRequest, profile: AgentProfile) -> SessionRun:
        """Open the session that the request names, or a new one.

        Raises:
            SignatureConflict: the client signed the request, which has to be changed.
            InvalidInput: it runs in the background, its parameters don't name one session, or nothing in its input is
                new.
            GatewayError: as `Sessions.open`.
        """
        refuse_signed(call)
        refuse_background(call)
        routed = call.routed
        agent_id = call.agent_id if routed is None else routed.owner
        by_user = self._by_user if routed is None else routed.by_user
        session_id = read_id(request) if call.session is None else ""
        named = agent_of(session_id)
        if named in routed.owners if routed is not None else (call.agent_id, named) in self._replaced:
            agent_id = named
        owner = await owner_of(call.caller, agent_id, self.settings.memory, by_user)
        if call.session is not None:
            session = await self.sessions.open_thread(owner, call.session.thread)
        else:
            session = await self.sessions.open(owner, session_id)
        try:
            run = SessionRun(self, call, request, profile, session)
            await run.compose()
            return run
        except BaseException:
            session.release()
            raise


def _replaced(agents: Agents) -> Iterator[tuple[str, str]]:
    """Yield the agents that routes lead to, each with the id of such a route: it goes on with the sessions of that."""
    yield from ((new, old) for old, new in agents.aliases.items())
    for route in agents.routes:
        yield from ((target.agent, route.agent) for target in route.targets if not target.cluster)


class SessionRun(AnswerStage):
    """One run. sent: the request to deliver in place of the client's."""

    sent: SessionRequest

    def __init__(
        self,
        runs: SessionRuns,
        call: ExecuteCall,
        request: ExecuteRequest,
        profile: AgentProfile,
        session: OpenSession,
    ) -> None:
        self._runs = runs
        self._call = call
        self._request = request
        self._profile = profile
        self._session = session
        self._turn_id = new_turn_id()
        window = runs.settings.memory.window
        self._inherits = call.session is None or call.session.inherits_system
        self._earlier = Earlier(session.recent, window, session.more, session.system if self._inherits else "")
        model = profile.models[0].id if profile.models else ""
        self._metadata = Metadata(runs.sessions.clock(), "", profile.id, profile.provider, model)
        self._stream = SessionStream(profile, session.id if session.turns else "") if call.streaming else None
        self._held = b""

    async def compose(self) -> None:
        """Write the request with the session's messages."""
        roles = self._runs.settings.agents.roles
        stored = sum(measure(item.message)[0] for item in self._earlier.stored)
        small = self._request.is_small and len(self._call.body) + stored <= _SMALL
        self.sent = await run_here_if(
            small, compose, self._profile, self._request, self._earlier, self._metadata, roles, self._turn_id
        )

    async def compose_without_steps(self) -> bool:
        """Write it again without the tool calls and reasoning in earlier answers. Return False if there are none."""
        if not self._earlier.has_steps:
            return False
        self._earlier = self._earlier.without_steps()
        await self.compose()
        return True

    def release(self) -> None:
        """End the run, which was not sent."""
        self._session.release()

    @override
    def prepare(self, forward: Forward) -> Forward:
        notices = (*self._session.notices, *self.sent.notices)
        delivery = self._describe(forward.delivery, notices)
        headers = {**forward.response_headers, **self._notices(notices, forward.response_headers)}
        if delivery is not None and DELIVERY in headers:
            headers[DELIVERY] = delivery_value(
                delivery.strategy, delivery.provider, delivery.input_type, delivery.proved
            )
        if self._request.input is not None and self._request.has_question:
            headers["Warning"] = BOTH_SENT
        return msgspec.structs.replace(
            forward,
            body=[self.sent.body] if forward.body is None else forward.body,
            response_headers=headers,
            delivery=delivery,
        )

    def _describe(self, delivery: Delivery | None, notices: tuple[Notice, ...]) -> Delivery | None:
        """Return the delivery of the client's own input: what is sent has the session's messages, too."""
        if delivery is None:
            return None
        client_input = self._request.input
        input_type = QUESTION if client_input is None else client_input.type.value
        remembered = self.sent.remembered
        return msgspec.structs.replace(with_notices(delivery, notices), input_type=input_type, remembered=remembered)

    def _notices(self, notices: tuple[Notice, ...], known: Mapping[str, str]) -> dict[str, str]:
        """Count `notices`, and return the header that reports them beside those in `known`."""
        for notice in notices:
            self._runs.reporter.noticed(notice)
        return notice_header(notices, known) if self._runs.settings.answers.notice_header else {}

    # The response

    @override
    def feed(self, piece: bytes) -> bytes:
        return piece if self._stream is None else self._stream.feed(piece)

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """Store the turn and return the answer with the session's id."""
        status, body = answer.status, answer.body
        if status in _REFUSED or 300 <= status < 400:  # no agent answers with a redirect
            self._session.release()
            return answer
        if status >= 400:
            await self._session.fail(self._turn)  # the answer names no conversation of the cluster
            return answer
        small = len(body) <= _SMALL
        stream = self._stream if not body.lstrip().startswith(b"{") else None
        run = await run_here_if(small, self._read, stream, body)
        notices = await self._store(run)  # before the answer is written: the id may be that of no session
        headers = {**answer.headers, **self._notices(notices, answer.headers)}
        return Answer(status, headers, await run_here_if(small, self._write, stream, run, body))

    @override
    def leave(self) -> Mapping[str, str]:
        return notice_header((ANSWER_MISSING,), {}) if self._runs.settings.answers.notice_header else {}

    def abandon(self) -> None:
        """Store the turn as a failed one."""
        self._session.fail_later(self._turn)
        self._session.release()

    def withdraw(self) -> None:
        """See `AnswerStage`: the session has no turn of it."""
        self._session.release()

    def _read(self, stream: SessionStream | None, body: bytes) -> RunAnswer:
        """Return the answer. body: b"" at the end of a stream that was relayed.

        A stream is held like any other answer if it has a length or a content coding. It never begins with a brace.
        """
        if stream is None:
            return read_answer(self._profile, body)
        self._held = stream.feed(body)
        return stream.answer()

    def _write(self, stream: SessionStream | None, run: RunAnswer, body: bytes) -> bytes:
        """Return what is sent to the client of an answer that was read, now that its turn is stored or is not."""
        if stream is None:
            return self._runs.outputs.write(self._profile, run, body, self._session.id)
        return self._held + stream.end(self._session.id)

    async def _store(self, run: RunAnswer) -> tuple[Notice, ...]:
        routed = self._call.routed
        copy = copy_of(self._profile, run.memory_id, routed.cluster if routed is not None else "")
        try:
            if run.failed:
                return await self._session.fail(self._turn, copy)
            if not run.messages:
                return (ANSWER_MISSING, *await self._session.fail(self._turn, copy))
            messages = (*self.sent.new, *self._answer_messages(run))
            turn = with_copy(Turn(self._turn_id, messages, self.sent.system if self._inherits else None), copy)
            notices = (BLOCK_UNKNOWN,) if run.unknown else ()
            return (*notices, *await self._session.commit(turn))
        finally:
            if copies := self._runs.sessions.copies:
                copies.after_turn(copy, self._runs.credentials(self._call.headers), self._session.is_stored)

    def _answer_messages(self, run: RunAnswer) -> list[Message]:
        """Return the answer's messages with what is known about them. The last one has the run's usage if none has."""
        now = self._runs.sessions.clock()
        known = self._metadata
        has_usage = any(message.metadata.usage is not None for message in run.messages)
        messages = []
        for message in run.messages:
            usage = message.metadata.usage
            if not has_usage and message is run.messages[-1]:
                usage = run.usage
            metadata = msgspec.structs.replace(
                message.metadata,
                created=now,
                agent_id=known.agent_id,
                provider=known.provider,
                model=known.model,
                usage=usage,
            )
            messages.append(msgspec.structs.replace(message, metadata=metadata))
        return messages

    @property
    def _turn(self) -> Turn:
        """The turn without an answer."""
        return Turn(self._turn_id, tuple(self.sent.new))


def refuse_signed(call: ExecuteCall) -> None:
    """Refuse a request whose signature would not be valid for the body with the session.

    Raises:
        SignatureConflict: the client signed it.
    """
    if call.signed:
        raise SignatureConflict(
            "The request is signed with SigV4. The agent's memory is the gateway's, which rewrites the body, and the "
            "signature would not be valid for that.",
            help="Let the gateway sign (`upstream.auth.mode: sigv4`) and send the request to it unsigned, or leave the "
            "agent's memory to the cluster (`memory: cluster` in its rule).",
        )


def refuse_background(call: ExecuteCall) -> None:
    """Refuse a run in the background, whose answer does not pass through the gateway.

    Raises:
        InvalidInput: the query has ``async`` with another value than false.
    """
    asked = read_async(call.raw_target)
    if asked != "false":
        reason = "The gateway keeps this agent's sessions, and does not see the answer of a run in the background"
        help = "Send it without async, or leave the agent's memory to the cluster (`memory: cluster` in its rule)."
        raise InvalidInput.of([Problem("?async", reason, "false", asked, help=help, repeats=asked)])


def read_id(request: ExecuteRequest) -> str:
    """Return the id of the session that the request names; "" for none.

    Raises:
        InvalidInput: it is not a string, or the request names two.
    """
    named = [(name, request.parameters[name]) for name in IDS if request.parameters.get(name) not in (None, "")]
    for name, value in named:
        if not isinstance(value, str) or value != named[0][1]:
            place = f"parameters.{name}"
            raise InvalidInput.of([Problem(place, "The request does not name one session", "one id, as a string")])
    return named[0][1] if named else ""


_KNOWN_SECONDS = 300.0
"""How long it is known that memory and form of answer of an agent are the cluster's."""
_UNREADABLE_SECONDS = 60.0
"""Seconds until an agent that a caller can't read is read again."""
_MOST = 10_000


class LegacyAgents:
    """Finds the agents of legacy requests. An agent that can't be read has the cluster's memory.

    So that requests to other agents don't wait, an agent with neither is read again only after minutes.
    """

    def __init__(
        self,
        resolver: Resolver,
        sessions: SessionRuns,
        outputs: Outputs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolver = resolver
        self._sessions = sessions
        self._outputs = outputs
        self._clock = clock
        self._others: dict[str, float] = {}
        self._unreadable: dict[tuple[str, bytes], float] = {}

    async def find(self, call: ExecuteCall, request: ExecuteRequest) -> ResolvedAgent | None:
        """Return the agent if its memory is the gateway's, or its answers are converted.

        None for any other agent, and for a request without `question`.

        Raises:
            GatewayError: the request names a session of the gateway, and the agent can't be read.
        """
        now = self._clock()
        if not request.has_question:
            return None
        rule = self._sessions.rule(call.agent_id)
        if rule is not None and rule.memory == "cluster" and rule.output == "legacy":
            return None
        caller = (call.agent_id, self._resolver.caller(call.headers))
        names_session = any(str(request.parameters.get(name, "")).startswith(PREFIX) for name in IDS)
        known = self._others.get(call.agent_id, now) > now or self._unreadable.get(caller, now) > now
        if known and not names_session:
            return None
        try:
            agent = await self._resolver.agent(call.agent_id, call.headers)
        except GatewayError as error:
            if names_session:
                raise
            if error.status < 500:  # a failing cluster may show it to the next request
                _note(self._unreadable, caller, now + _UNREADABLE_SECONDS)
            return None
        if self._sessions.remembers(agent.profile) or self._outputs.converts(agent.profile):
            return agent
        _note(self._others, call.agent_id, now + _KNOWN_SECONDS)
        return None


_Key = TypeVar("_Key", bound=Hashable)


def _note(known: dict[_Key, float], key: _Key, until: float) -> None:
    if len(known) >= _MOST:
        known.clear()
    known[key] = until


def concerns_memory(error: GatewayError) -> bool:
    """Return True if a problem is about a message of the session."""
    return any(problem.place.startswith("memory[") for problem in error.problems)

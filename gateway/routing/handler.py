"""Sends a request to run an agent to the target of its route: an `ExecuteHandler` around those of the clusters."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from gateway.agents.errors import AgentNotFound, LookupUnavailable
from gateway.config.schema import Settings
from gateway.errors import AnswerTooLarge, GatewayError, InvalidInput, Problem, UpstreamTimeout, UpstreamUnavailable
from gateway.execute.body import is_json, read_async
from gateway.execute.deliveries import notice_header, with_notices
from gateway.memory.model import PREFIX as SESSION
from gateway.memory.model import Owner, SessionKey
from gateway.memory.owner import agent_of, imported_key, owner_of, thread_key
from gateway.memory.sessions import Sessions
from gateway.mlcommons.profile import AgentProfile
from gateway.notices import Notice
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.offload import run_here_if
from gateway.policy.usage import Prices
from gateway.ports import Answer, ExecuteCall, ExecuteHandler, Forward, Retry, Routed
from gateway.routing.caller import Callers, first_message, without_credentials
from gateway.routing.marks import CONVERSATION, marks_in, parameters_of, split_path, without_marks
from gateway.routing.marks import PREFIX as MARK
from gateway.routing.meter import MeterStage, RouteMeter
from gateway.routing.mirrors import Mirrors, MirrorStage
from gateway.routing.profiles import RoutedProfiles
from gateway.routing.stages import MemoryMarks, RunMarks
from gateway.routing.table import Route, Target, point_of
from gateway.unified.limits import ParseLimits, is_small
from gateway.unified.request import ExecuteRequest, read_execute

HANDED_OVER = "ROUTE_HANDED_OVER"
_READABLE = Notice("MEMORY_SHOWN_READABLE", "a memory is shown without the gateway's form")
_MISSING = re.compile(rb"(?i)failed to find agent|agent index not found")
"""How clusters answer a request to run an agent that they don't have, with 404 (docs/evidence/facts.md)."""
_AGENT_IN_PATH = re.compile(rb"(/agents/)[^/?]+")


class Choice(NamedTuple):
    """The target of a request. call: without marks. had_marks: so its body is not what the client sent.

    known_by_all: each target knows the conversation, or it is new. is_whole: it is new, or all of it is in the request.
    mirrored: the target that runs a copy; None for none.
    """

    target: Target
    call: ExecuteCall
    known_by_all: bool
    is_whole: bool = False
    mirrored: Target | None = None
    had_marks: bool = False


class RoutedHandler:
    """Chooses the target of each request whose agent has a route; all others go to the cluster of `upstream`.

    clusters: what runs agents on each cluster, by name; "" for the one of `upstream`. profiles: their agents.
    sessions: the gateway's memory; None without one. draw: returns a random point from 0 (included) to 1 (not).
    """

    def __init__(
        self,
        settings: Settings,
        clusters: Mapping[str, ExecuteHandler],
        profiles: RoutedProfiles,
        metrics: Metrics,
        log: Logger,
        sessions: Sessions | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._clusters = clusters
        self._profiles = profiles
        self._routes = profiles.routes
        self._meter = RouteMeter(metrics, Prices(settings.policy.prices))
        self._sessions = sessions
        self.mirrors = Mirrors(metrics.routes, log, profiles.of_target)
        self._draw = draw
        self._memory = settings.memory
        self._callers = Callers(settings)
        self._limits = ParseLimits.from_limits(settings.limits)
        self._roles = settings.agents.roles
        self._notice_header = settings.answers.notice_header

    async def __call__(self, call: ExecuteCall) -> Forward:
        """Return what to send for `call`.

        Raises:
            InvalidInput: it names a conversation of an agent that the route does not have.
            GatewayError: as the handler of the target's cluster, and as `_admit`.
        """
        route = self._routes.get(call.agent_id)
        if route is None:
            return await self._clusters[""](call)
        choice = await self._choose(route, call)
        return await self._send(route, choice._replace(mirrored=self._mirrored(route, choice)))

    async def read_memory(self, call: ExecuteCall) -> Forward | None:
        """Return what to send for a request about a conversation whose id has a mark; None if no target has that mark.

        Raises:
            GatewayError: as `_admit`.
        """
        mark, target_path = split_path(call.method, call.raw_target.encode("utf-8", "surrogateescape"))
        for route in self._routes.values():
            target = route.marked(mark)
            if target is not None:
                routed = await self._admit(route, target, call)
                stage = MemoryMarks(mark, self._shown_readable if self._memory.readable else None)
                return Forward(stages=(stage,), routed=routed, target=target_path)
        return None

    def _shown_readable(self) -> Mapping[str, str]:
        self._meter.noticed(_READABLE)
        return notice_header([_READABLE], {}) if self._notice_header else {}

    def _mirrored(self, route: Route, choice: Choice) -> Target | None:
        """Return the target that runs a copy of the request; None for no copy."""
        call, mirror = choice.call, route.mirror
        target = route.target_of(mirror.agent) if choice.is_whole else None
        if target is None or call.temporary or call.signed or read_async(call.raw_target) != "false":
            return None
        return target if self._draw() < mirror.ratio else None

    # Which target

    async def _choose(self, route: Route, call: ExecuteCall) -> Choice:
        if call.mirror is not None:
            target = route.target_of(call.mirror.agent) or route.targets[0]
            return Choice(target, call, False)
        request = await self._read(call)
        parameters = await _parameters(call, request)
        if parameters is None:
            return Choice(_unreadable(route, call), call, False)
        if marks := marks_in(parameters):
            target = _marked(route, marks)
            body = await run_here_if(is_small(call.body), without_marks, call.body)
            return Choice(target, replace(call, body=body, request=None), False, had_marks=True)
        call = replace(call, request=request)
        if call.session is not None and call.session.thread:
            return await self._of_thread(route, call, call.session.thread)
        id = next((parameters[name] for name in CONVERSATION if parameters.get(name)), "")
        if not isinstance(id, str) or not id:
            return Choice(await self._draw_target(route, call, request), call, True, True)
        if id.startswith(SESSION):
            agent = await self._last_agent(route, call, id)
            return Choice(route.target_of(agent) or route.draw(point_of(route.agent, id)), call, True)
        if agent := await self._imported_by(route, call, id):
            return Choice(route.target_of(agent) or route.draw(point_of(route.agent, id)), call, True)
        if route.home is not None or len(route.targets) == 1:
            return Choice(route.home or route.targets[0], call, False)
        return Choice(await self._of_gone_agent(route, call, id), call, False)

    async def _read(self, call: ExecuteCall) -> ExecuteRequest | None:
        """Read the request; None for one that is not JSON, which the cluster refuses.

        Raises:
            InvalidInput, BodyTooLarge: see `read_execute`.
        """
        if not is_json(call.headers.get("Content-Type", "")):
            return None
        return await run_here_if(is_small(call.body), read_execute, call.body, self._limits, self._roles)

    async def _of_thread(self, route: Route, call: ExecuteCall, thread: str) -> Choice:
        """Choose for a conversation that an adapter names: who wrote last in its session, or by its name."""
        keys = [thread_key(owner, thread) for owner in await self._owners(route, call, route.owner)]
        agent = await self._last_of(keys)
        return Choice(route.target_of(agent) or route.draw(point_of(route.agent, keys[0].id)), call, True, not agent)

    async def _of_gone_agent(self, route: Route, call: ExecuteCall, id: str) -> Target:
        """Choose for an id of the route's own agent, which is no target: one whose memory is the gateway's may know it.

        Raises:
            InvalidInput: there is no such target.
        """
        for target in route.drawn:
            profile = await self._profiles.find(target, call.headers)
            if profile is not None and self._profiles.remembers(profile):
                return target
        raise _unknown("an id of an agent that the route does not have any more")

    async def _last_agent(self, route: Route, call: ExecuteCall, session_id: str) -> str:
        """Return the agent that wrote last in a session of the caller's; "" if that is not known."""
        if len(route.targets) == 1:
            return ""
        named = agent_of(session_id)
        agent_id = named if named in route.owners else route.owner
        return await self._last_of(SessionKey(owner, session_id) for owner in await self._owners(route, call, agent_id))

    async def _imported_by(self, route: Route, call: ExecuteCall, id: str) -> str:
        """Return the agent that wrote last in the session that a conversation of a cluster became; "" without one."""
        if self._sessions is None:
            return ""
        profiles = [await self._profiles.find(target, call.headers) for target in route.targets]
        if not any(profile is not None and self._profiles.remembers(profile) for profile in profiles):
            return ""
        return await self._last_of(imported_key(owner, id) for owner in await self._owners(route, call, route.owner))

    async def _owners(self, route: Route, call: ExecuteCall, agent_id: str) -> Sequence[Owner]:
        """Return whose sessions the targets would open: they may know the caller in different ways."""
        ways = dict.fromkeys(map(self._knows_user, route.targets))
        return [await owner_of(call.headers, agent_id, self._memory, by_user) for by_user in ways]

    def _knows_user(self, target: Target) -> bool:
        """Return True if somebody checks the user whom the caller's credentials name, before the target runs."""
        return self._callers.by_user and target.callers != "trusted"

    async def _last_of(self, keys: Iterable[SessionKey]) -> str:
        """Return the agent that wrote last in the first of the sessions that there is; "" for none."""
        if self._sessions is None:
            return ""
        for key in keys:
            if agent := await self._sessions.last_agent(key):
                return agent
        return ""

    async def _draw_target(self, route: Route, call: ExecuteCall, request: ExecuteRequest | None) -> Target:
        """Choose for a request that names no conversation: a new one if agents give ids, else by what it comes from."""
        if len(route.drawn) == 1:
            return route.drawn[0]
        has_history = request is not None and request.input is not None and len(request.input.messages) > 1
        is_ag_ui = request is not None and "threadId" in request.other
        keeps_itself = has_history or is_ag_ui or call.session is not None
        if not keeps_itself and await self._all_remember(route, call):
            return route.draw(self._draw())
        caller = self._callers.key(call.headers)
        by_message = route.stick_by == "first_message" or not caller
        return route.draw(point_of(route.agent, caller, first_message(request) if by_message else ""))

    async def _all_remember(self, route: Route, call: ExecuteCall) -> bool:
        """Return True if each target gives its conversations ids. One that can't be read is as the others."""
        profiles = [await self._profiles.find(target, call.headers) for target in route.drawn]
        read = [profile for profile in profiles if profile is not None]
        return bool(read) and all(map(self._gives_ids, read))

    def _gives_ids(self, profile: AgentProfile) -> bool:
        return bool(profile.memory_type) or self._profiles.remembers(profile)

    # What is sent there

    async def _send(self, route: Route, choice: Choice, tried: Sequence[Target] = ()) -> Forward:
        """Return what to send to the target. tried: targets that have failed by themselves."""
        target, call = choice.target, choice.call
        routed = await self._admit(route, target, call)
        if call.steps is not None:
            call.steps.routed = routed
        rest = _rest(route, choice, tried)
        sent = replace(
            call,
            agent_id=target.agent,
            headers=call.headers if routed.passes else without_credentials(call.headers),
            routed=routed,
        )
        try:
            forward = await self._clusters[target.cluster](sent)
        except GatewayError as error:
            failed = _fails_by_itself(error)
            if call.mirror is None:
                self._meter.count(routed, "failed" if failed else "refused")
            if failed and rest:
                with contextlib.suppress(GatewayError):  # the next one can't take it: that it has failed may pass
                    return await self._hand_over(route, choice, tried)
            raise
        is_alias = len(route.targets) == 1 and not target.mark
        profile = None if is_alias else await self._profiles.find(target, call.headers)
        return self._finish(forward, route, choice, routed, rest, tried, profile)

    def _finish(
        self,
        forward: Forward,
        route: Route,
        choice: Choice,
        routed: Routed,
        rest: Sequence[Target],
        tried: Sequence[Target],
        profile: AgentProfile | None,
    ) -> Forward:
        """Return the request with its way to the target, and with what becomes of its answer."""
        target, call = choice.target, choice.call
        stages = forward.stages
        if target.mark and (profile is None or self._gives_ids(profile)):
            stages = (*stages, RunMarks(target.mark))
        if call.mirror is None:
            stages = (*stages, MeterStage(self._meter, routed, profile, call.streaming))
        if choice.mirrored not in (None, target):
            stages = (*stages, MirrorStage(self.mirrors, route, choice.mirrored, call))
        headers = dict(forward.response_headers)
        if tried:
            names = ", ".join(one.agent for one in tried)
            notice = Notice(HANDED_OVER, f"the route went on to {target.agent}, as {names} failed by itself")
            self._meter.noticed(notice)
            headers |= notice_header([notice], headers) if self._notice_header else {}
            delivery = None if forward.delivery is None else with_notices(forward.delivery, [notice])
            forward = msgspec.structs.replace(forward, delivery=delivery)

        def finish(again: Forward) -> Forward:
            return self._finish(again, route, choice, routed, rest, tried, profile)

        def hand_over() -> Awaitable[Forward | Answer]:
            self._meter.count(routed, "failed")
            return self._hand_over(route, choice, tried)

        retry = forward.retry
        if retry is not None or rest:
            retry = _retry(retry, finish, hand_over if rest else None)
        return msgspec.structs.replace(
            forward,
            body=[call.body] if choice.had_marks and forward.body is None else forward.body,
            stages=stages,
            response_headers=headers,
            routed=routed,
            target=_target(call, target.agent) if target.agent != route.agent else b"",
            retry=retry,
            hand_over=hand_over if rest else None,
        )

    async def _hand_over(self, route: Route, choice: Choice, tried: Sequence[Target]) -> Forward:
        """Return what to send to the next target that gets new conversations, in the order of the route."""
        tried = (*tried, choice.target)
        [following, *_] = _rest(route, choice, tried[:-1])
        return await self._send(route, choice._replace(target=following), tried)

    async def _admit(self, route: Route, target: Target, call: ExecuteCall) -> Routed:
        """Return the way to the target, once the caller may go it.

        Raises:
            GatewayError: as `RoutedProfiles.check`.
        """
        await self._profiles.check(target, call.headers)
        by_user, passes = self._knows_user(target), target.passes
        return Routed(
            route.agent, target.agent, target.cluster, route.owner, route.owners, call.headers, passes, by_user
        )


async def _parameters(call: ExecuteCall, request: ExecuteRequest | None) -> Mapping[str, Any] | None:
    """Return the parameters of a request; None if it can't be read."""
    if request is not None and (request.parameters or request.input is not None):
        return request.parameters
    return await run_here_if(is_small(call.body), parameters_of, call.body)


def _unreadable(route: Route, call: ExecuteCall) -> Target:
    """Choose for a request that can't be read, so that the conversation which it may name is not known.

    Raises:
        InvalidInput: it may have an id with a mark.
    """
    if MARK.encode() in call.body:
        raise _unknown("an id of an agent of the route, but is not JSON that the gateway can read")
    return route.home or route.drawn[0]


def _marked(route: Route, marks: frozenset[str]) -> Target:
    """Return the target that gave the marked ids.

    Raises:
        InvalidInput: the route does not have it, or they are of several.
    """
    target = route.marked(next(iter(marks))) if len(marks) == 1 else None
    if target is not None:
        return target
    one = "an id of an agent that the route does not have any more"
    raise _unknown("ids of several agents" if len(marks) > 1 else one)


def _unknown(what: str) -> GatewayError:
    help = "Send no memory_id to begin a new conversation. The operator can put the agent back with a weight of 0."
    problem = Problem("parameters.memory_id", f"The request has {what}", "an id of one target of the route", help=help)
    return InvalidInput.of([problem])


def _fails_by_itself(error: GatewayError) -> bool:
    """Return True if another target could do better with the same request."""
    kinds = UpstreamUnavailable | UpstreamTimeout | AgentNotFound | LookupUnavailable
    return isinstance(error, kinds) and not isinstance(error, AnswerTooLarge)


def _rest(route: Route, choice: Choice, tried: Sequence[Target]) -> list[Target]:
    """Return the targets that may take over, the next one first."""
    if not (route.hands_over and choice.known_by_all):
        return []
    gone = {choice.target.agent, *(target.agent for target in tried)}
    return [target for target in route.drawn if target.agent not in gone]


def _retry(inner: Retry | None, finish: Callable[[Forward], Forward], hand_over: HandOver | None) -> Retry:
    def retry(status: int, body: bytes) -> Forward | Answer | Awaitable[Answer | Forward] | None:
        again = inner(status, body) if inner is not None else None
        if isinstance(again, Forward):
            return finish(again)
        if again is None and hand_over is not None and status == 404 and _MISSING.search(body):
            return hand_over()
        return again

    return retry


HandOver = Callable[[], Awaitable[Forward | Answer]]


def _target(call: ExecuteCall, agent_id: str) -> bytes:
    """Return the raw path and query of the run of another agent."""
    target = call.raw_target.encode("utf-8", "surrogateescape")
    path, mark, query = target.partition(b"?")
    own = quote(agent_id, safe="").encode("ascii")
    return _AGENT_IN_PATH.sub(lambda match: match[1] + own, path, count=1) + mark + query

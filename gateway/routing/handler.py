"""Sends a request to run an agent to the target of its route: an `ExecuteHandler` around those of the clusters."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from gateway.agents.lookup import AgentNotFound, LookupUnavailable
from gateway.codes import Notice
from gateway.config.schema import Settings
from gateway.errors import AnswerTooLarge, GatewayError, UpstreamTimeout, UpstreamUnavailable
from gateway.execute.deliveries import notice_header, with_notices
from gateway.memory.sessions import Sessions
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.policy.usage import Prices
from gateway.ports import Answer, ExecuteCall, ExecuteHandler, Forward, Retry, Routed
from gateway.routing.caller import without_credentials
from gateway.routing.choice import Choice, Chooser
from gateway.routing.marks import MemoryMarks, RunMarks, split_path
from gateway.routing.meter import MeterStage, RouteMeter
from gateway.routing.mirrors import Mirrors, MirrorStage
from gateway.routing.profiles import RoutedProfiles
from gateway.routing.table import Route, Target

HANDED_OVER = "ROUTE_HANDED_OVER"
_READABLE = Notice("MEMORY_SHOWN_READABLE", "a memory is shown without the gateway's form")
_UNMARKED = Notice("ROUTE_IDS_UNMARKED", "the answer was sent as it came, so its ids lead nowhere")
_MISSING = re.compile(rb"(?i)failed to find agent|agent index not found")
"""How clusters answer a request to run an agent that they don't have, with 404 (docs/evidence/facts.md)."""
_AGENT_IN_PATH = re.compile(rb"(/agents/)[^/?]+")


class RoutedHandler:
    """Sends each request whose agent has a route to its target; all others go to the cluster of `upstream`.

    clusters: what runs agents on each cluster, by name; "" for the one of `upstream`. profiles: their agents.
    sessions: the gateway's memory; None without one.
    """

    def __init__(
        self,
        settings: Settings,
        clusters: Mapping[str, ExecuteHandler],
        profiles: RoutedProfiles,
        metrics: Metrics,
        log: Logger,
        sessions: Sessions | None = None,
    ) -> None:
        self._clusters = clusters
        self._profiles = profiles
        self._routes = profiles.routes
        self._meter = RouteMeter(metrics, Prices(settings.policy.prices))
        self._chooser = Chooser(settings, profiles, sessions)
        self.mirrors = Mirrors(metrics.routes, log, profiles.of_target)
        self._readable = settings.memory.readable
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
        choice = await self._chooser.choose(route, call)
        return await self._send(route, choice._replace(mirrored=self._chooser.mirrored(route, choice)))

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
                stage = MemoryMarks(mark, self._left_unmarked, self._shown_readable if self._readable else None)
                return Forward(stages=(stage,), routed=routed, target=target_path)
        return None

    def _shown_readable(self) -> Mapping[str, str]:
        return self._notice(_READABLE)

    def _left_unmarked(self) -> Mapping[str, str]:
        return self._notice(_UNMARKED)

    def _notice(self, notice: Notice) -> Mapping[str, str]:
        self._meter.noticed(notice)
        return notice_header([notice], {}) if self._notice_header else {}

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
        if target.mark and (profile is None or self._chooser.gives_ids(profile)):
            stages = (*stages, RunMarks(target.mark, self._left_unmarked))
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
        by_user, passes = self._chooser.knows_user(target), target.passes
        return Routed(
            route.agent, target.agent, target.cluster, route.owner, route.owners, call.headers, passes, by_user
        )


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

"""Which target of its route a request goes to: the one that knows its conversation, or one that is drawn."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from gateway.config.schema import Settings
from gateway.errors import GatewayError, InvalidInput, Problem
from gateway.execute.body import is_json, read_async
from gateway.memory.model import PREFIX as SESSION
from gateway.memory.model import Owner, SessionKey
from gateway.memory.owner import agent_of, imported_key, owner_of, thread_key
from gateway.memory.sessions import Sessions
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import ExecuteCall
from gateway.routing.caller import Callers, first_message
from gateway.routing.marks import CONVERSATION, marks_in, parameters_of, without_marks
from gateway.routing.marks import PREFIX as MARK
from gateway.routing.profiles import RoutedProfiles
from gateway.routing.table import Route, Target, point_of
from gateway.unified.limits import ParseLimits, is_small
from gateway.unified.request import ExecuteRequest, read_execute


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


class Chooser:
    """Chooses targets. profiles: the agents of all clusters. sessions: the gateway's memory; None without one."""

    def __init__(
        self,
        settings: Settings,
        profiles: RoutedProfiles,
        sessions: Sessions | None = None,
    ) -> None:
        self._profiles = profiles
        self._sessions = sessions
        self._memory = settings.memory
        self._callers = Callers(settings)
        self._limits = ParseLimits.from_limits(settings.limits)
        self._roles = settings.agents.roles

    async def choose(self, route: Route, call: ExecuteCall) -> Choice:
        """Return the target of a request to an agent with a route.

        Raises:
            InvalidInput: it names a conversation of an agent that the route does not have, or can't be read.
        """
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
        ways = dict.fromkeys(map(self.knows_user, route.targets))
        return [await owner_of(call.headers, agent_id, self._memory, by_user) for by_user in ways]

    def knows_user(self, target: Target) -> bool:
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
            return route.draw(random.random())
        caller = self._callers.key(call.headers)
        by_message = route.stick_by == "first_message" or not caller
        return route.draw(point_of(route.agent, caller, first_message(request) if by_message else ""))

    async def _all_remember(self, route: Route, call: ExecuteCall) -> bool:
        """Return True if each target gives its conversations ids. One that can't be read is as the others."""
        profiles = [await self._profiles.find(target, call.headers) for target in route.drawn]
        read = [profile for profile in profiles if profile is not None]
        return bool(read) and all(map(self.gives_ids, read))

    def gives_ids(self, profile: AgentProfile) -> bool:
        """Return True if the agent names its conversations, which their later turns name."""
        return bool(profile.memory_type) or self._profiles.remembers(profile)

    def mirrored(self, route: Route, choice: Choice) -> Target | None:
        """Return the target that runs a copy of the request; None for no copy."""
        call, mirror = choice.call, route.mirror
        target = route.target_of(mirror.agent) if choice.is_whole else None
        if target is None or call.temporary or call.signed or read_async(call.raw_target) != "false":
            return None
        return target if random.random() < mirror.ratio else None


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

"""Which legacy requests, those without `input`, run an agent whose memory or form of answer is the gateway's."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import TypeVar

from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.errors import GatewayError
from gateway.execute.output import Outputs
from gateway.execute.session_request import IDS
from gateway.execute.session_run import SessionRuns
from gateway.memory.model import PREFIX
from gateway.ports import ExecuteCall
from gateway.unified.request import ExecuteRequest

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

"""Which legacy requests, those without `input`, run an agent whose memory or form of answer is the gateway's."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.errors import GatewayError
from gateway.execute.output import Outputs
from gateway.execute.session_request import IDS
from gateway.execute.session_run import SessionRuns
from gateway.memory.model import PREFIX
from gateway.ports import ExecuteCall
from gateway.unified.request import ExecuteRequest

_AGAIN = 60.0
"""Seconds until an agent that a caller can't read is read again."""
_MOST = 1000


class LegacyAgents:
    """Finds the agents of legacy requests. An agent that can't be read has the cluster's memory."""

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
        self._unreadable: dict[tuple[str, bytes], float] = {}

    async def find(self, call: ExecuteCall, request: ExecuteRequest) -> ResolvedAgent | None:
        """Return the agent if its memory is the gateway's, or its answers are converted.

        None for any other agent, and for a request without `question`.

        Raises:
            GatewayError: the request names a session of the gateway, and the agent can't be read.
        """
        if not request.has_question:
            return None
        rule = self._sessions.rule(call.agent_id)
        if rule is not None and rule.memory == "cluster" and rule.output == "legacy":
            return None
        caller = self._resolver.caller(call.headers)
        agent = self._resolver.peek(call.agent_id, caller)
        if agent is None:
            names_session = any(str(request.parameters.get(name, "")).startswith(PREFIX) for name in IDS)
            agent = await self._read(call, (call.agent_id, caller), names_session)
        if agent is None or not (self._sessions.remembers(agent.profile) or self._outputs.converts(agent.profile)):
            return None
        return agent

    async def _read(self, call: ExecuteCall, key: tuple[str, bytes], required: bool) -> ResolvedAgent | None:
        now = self._clock()
        if not required and self._unreadable.get(key, now) > now:
            return None
        try:
            return await self._resolver.agent(call.agent_id, call.headers)
        except GatewayError:
            if required:
                raise
            if len(self._unreadable) >= _MOST:
                self._unreadable.clear()
            self._unreadable[key] = now + _AGAIN
            return None


def concerns_memory(error: GatewayError) -> bool:
    """Return True if a problem is about a message of the session."""
    return any(problem.place.startswith("memory[") for problem in error.problems)

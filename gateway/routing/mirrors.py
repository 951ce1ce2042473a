"""Copies of runs on another target of their route (`agents.routes[].mirror`). Nobody gets their answers.

A copy begins once its original has been answered, and only if that began a conversation or brought all of it: no other
target knows what an agent remembers. It goes through the data port like a client's request, but is in no session, is
not counted by the route or a budget, and takes no slot of a client's (`admission`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from gateway.config.schema import Mirror
from gateway.errors import GatewayError
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.tool_types import MODEL_TOOL
from gateway.observe.logs import Logger
from gateway.observe.metrics import RouteMetrics
from gateway.ports import AnswerStage, ExecuteCall, MirrorUse
from gateway.routing.table import Route, Target

_NOT_COPIED = frozenset(
    {
        "accept",
        "accept-encoding",
        "content-encoding",
        "content-length",
        "expect",
        "keep-alive",
        "te",
        "trailer",
        "traceparent",
        "tracestate",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
    }
)
"""Headers of the original's framing, and those that say which request it is. `Connection` is copied, and so names the
headers that no cluster gets."""


class Copy(NamedTuple):
    """A request to run an agent once more. headers: without those of its framing. body: not encoded."""

    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    use: MirrorUse


SendCopy = Callable[[Copy], Awaitable[int]]
"""Sends a copy to the data port and returns the status of its answer, once that is whole.

Raises:
    ConnectionResetError: it broke off.
"""
ReadProfile = Callable[[Target, Mapping[str, str]], Awaitable[AgentProfile]]
"""Reads the agent of a target, with the caller's headers; raises GatewayError."""


class Mirrors:
    """Runs copies, at most so many at a time for each route. read: reads the agent that runs them.

    send: None until the data port is there.
    """

    def __init__(self, metrics: RouteMetrics, log: Logger, read: ReadProfile) -> None:
        self.send: SendCopy | None = None
        self._metrics = metrics
        self._log = log
        self._read = read
        self._running: defaultdict[str, set[asyncio.Task[None]]] = defaultdict(set)
        self._is_stopped = False
        self._refused: set[str] = set()

    def begin(self, route: Route, target: Target, call: ExecuteCall) -> None:
        """Run a copy of `call` in the background, or drop it."""
        running = self._running[route.agent]
        if self._is_stopped or self.send is None or len(running) >= route.mirror.most_at_a_time:
            self._metrics.mirror((route.agent, target.agent, target.cluster), "dropped")
            return
        task = asyncio.create_task(self._run(route, target, call, self.send))
        running.add(task)
        task.add_done_callback(running.discard)

    def stop(self) -> None:
        """Drop the copies that run, and begin no more."""
        self._is_stopped = True
        for running in self._running.values():
            for task in running:
                task.cancel()

    async def _run(self, route: Route, target: Target, call: ExecuteCall, send: SendCopy) -> None:
        """Run a copy, and count what became of it."""
        outcome = "dropped"
        try:
            if self._is_harmless(route, await self._read(target, call.headers)):
                outcome = "failed"
                status = await send(_copy(route, target, call))
                outcome = "ran" if status < 400 else "failed"
        except asyncio.CancelledError:
            outcome = "dropped"
            raise
        except GatewayError as error:
            outcome = "failed"
            self._log.warning("copy not run", route=route.agent, agent=target.agent, reason=error.reason)
        except ConnectionResetError:
            pass
        except Exception:
            self._log.exception("internal error")
        finally:
            self._metrics.mirror((route.agent, target.agent, target.cluster), outcome)

    def _is_harmless(self, route: Route, profile: AgentProfile) -> bool:
        """Return True if the agent has only tools that the settings declare harmless. Log once which ones are not."""
        tools = other_tools(profile, route.mirror)
        if tools and route.agent not in self._refused:
            self._refused.add(route.agent)
            reason = "agents.routes[].mirror.tools does not name these tools, which would act for copies, too"
            names = ", ".join(tools)
            self._log.warning("copies dropped", route=route.agent, agent=profile.id, tools=names, reason=reason)
        return not tools


_SOURCES = ("mcp_connectors", "executor_agent_id")
"""Parameters of an agent that give it tools which its profile does not list."""


def other_tools(profile: AgentProfile, mirror: Mirror) -> Sequence[str]:
    """Return the agent's tools that `mirror.tools` does not name. The one that calls a flow's LLM does not count.

    Tools of MCP servers and of a planner's executor are named by the agent's parameter.
    """
    named = mirror.tools if isinstance(mirror.tools, list) else ()
    others = (tool for tool in profile.tools if tool.type != MODEL_TOOL)
    listed = [tool.key for tool in others if tool.type not in named and tool.name not in named]
    sources = [name for name in _SOURCES if profile.parameters.get(name) not in (None, "", "[]") and name not in named]
    return [*listed, *sources]


def _copy(route: Route, target: Target, call: ExecuteCall) -> Copy:
    headers = [(name, value) for name, value in call.headers.items() if name.lower() not in _NOT_COPIED]
    path = f"/_plugins/_ml/agents/{quote(route.agent, safe='')}/_execute"
    return Copy(path, headers, call.body, MirrorUse(call.request_id, target.agent))


class MirrorStage(AnswerStage):
    """Begins the copy of a run that was answered."""

    holds = False
    reports = True

    def __init__(self, mirrors: Mirrors, route: Route, target: Target, call: ExecuteCall) -> None:
        self._mirrors = mirrors
        self._route = route
        self._target = target
        self._call = call

    def report(self, status: int, body: bytes) -> Coroutine[Any, Any, None] | None:
        """See `AnswerStage`. Whom the cluster refuses gets no run elsewhere either."""
        if status and status not in (401, 403):
            self._mirrors.begin(self._route, self._target, self._call)
        return None

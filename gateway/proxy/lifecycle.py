"""The open connections and running exchanges of a data port, from its start to its end."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Coroutine, Iterable, Set
from typing import Any, Protocol

from gateway.config.schema import ClientTimeouts
from gateway.upstream.outbound import DeadlineTimer, Timed

PERIOD = 0.4
"""Seconds between two polls: a disconnect is noticed within a second."""

_HANGUP = getattr(select, "POLLRDHUP", 0)
"""The peer has shut down its sending side. Only Linux reports that separately from unread bytes."""


class Pollable(Protocol):
    """A connection."""

    def paused_descriptor(self) -> int:
        """Return the descriptor of the socket if the transport is paused, else -1."""

    def peer_gone(self, cut: bool) -> None:
        """Handle the disconnect. cut: by a reset. Otherwise there may be unread bytes before the end."""


class DisconnectPoller:
    """Polls all paused `connections` with one system call, every `PERIOD` seconds."""

    def __init__(self, connections: Iterable[Pollable]) -> None:
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to poll."""
        self._timer = asyncio.get_running_loop().call_later(PERIOD, self._poll)

    def stop(self) -> None:
        """Stop polling."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        self.start()
        paused = {
            number: connection for connection in self._connections if (number := connection.paused_descriptor()) >= 0
        }
        if paused:
            poll = select.poll()
            for number in paused:
                poll.register(number, _HANGUP)
            for number, events in poll.poll(0):
                paused[number].peer_gone(bool(events & select.POLLERR))


class OpenConnection(Pollable, Timed, Protocol):
    """A client's connection. port: the data port that handles its next request."""

    port: Any

    @property
    def idle(self) -> bool:
        """True between two requests."""

    def close(self) -> None:
        """Send what is left to send, then close."""

    def cut_off(self) -> None:
        """Cut the connection, and end the exchange on it."""


class PlannedRun(Protocol):
    """An exchange that may run an agent."""

    def was_planned_with(self, documents: Set[str], before: float) -> bool:
        """Return True if its plan, made or begun before a time, may depend on one of these documents."""


class Lifecycle:
    """Knows when a data port may end. connections: all that are open. running: exchanges that are not finished.

    runs: those of them that may run an agent, also of the data ports that this one has replaced.

    draining: each response asks its client to close the connection. replaced_by: the data port that serves the
    connections since a reload; None before.
    """

    def __init__(self, timeouts: ClientTimeouts) -> None:
        self.connections: set[OpenConnection] = set()
        self.draining = False
        self.running = 0
        self.runs: set[PlannedRun] = set()
        self.replaced_by: Any = None
        self._idle: asyncio.Event | None = None  # while `ended` waits
        self._reports: set[asyncio.Task[None]] = set()
        seconds = (timeouts.head, timeouts.body, timeouts.send, timeouts.keepalive)
        self._timer = DeadlineTimer(self.connections, seconds)
        self._poller = DisconnectPoller(self.connections)

    def start(self) -> None:
        """Start the timer of the deadlines and the detection of disconnected clients."""
        self._timer.start()
        self._poller.start()

    def exchange_finished(self) -> None:
        """Count one exchange less."""
        self.running -= 1
        if self._idle is not None and not self.running:
            self._idle.set()

    def runs_planned_with(self, documents: Set[str], before: float) -> int:
        """Return how many runs are not finished whose plans, made before a time, depend on one of these documents."""
        return sum(run.was_planned_with(documents, before) for run in self.runs)

    def run_report(self, report: Coroutine[None, None, None]) -> None:
        """Run what reports a response to the use case after its exchange has finished."""
        task = asyncio.get_running_loop().create_task(report)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def ended(self) -> None:
        """Wait until no exchange is running, and all are reported."""
        self._idle = self._idle or asyncio.Event()
        while self.running:
            self._idle.clear()
            await self._idle.wait()
        if self._reports:
            await asyncio.wait(self._reports)  # which `gather` would cancel at the deadline

    def hand_over(self, port: object, successor: Lifecycle) -> None:
        """Give all connections to `port`, whose lifecycle is `successor`. Running exchanges finish here."""
        successor.connections |= self.connections
        successor.runs = self.runs
        for connection in self.connections:
            connection.port = port
        self.connections.clear()
        self.replaced_by = port
        self.stop()

    def stop(self) -> None:
        """Cut the connections that are left. A fault of one is reported to the loop, and the others are cut."""
        self._timer.stop()
        self._poller.stop()
        for connection in list(self.connections):
            _cut(connection)


def close_idle(connection: OpenConnection) -> None:
    """Close a connection. If that fails, report the fault to the loop and cut the connection."""
    try:
        connection.close()
    except Exception as exc:
        _report(exc)
        _cut(connection)


def _cut(connection: OpenConnection) -> None:
    try:
        connection.cut_off()
    except Exception as exc:
        _report(exc)


def _report(exc: Exception) -> None:
    context = {"message": "a connection could not be closed", "exception": exc}
    asyncio.get_running_loop().call_exception_handler(context)

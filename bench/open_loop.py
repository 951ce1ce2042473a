"""Open loop: requests that are due at fixed times, whether or not earlier ones have been answered.

A time counts from the moment its request was due, so that a stall shows in every request that it delays.
It uses plain sockets, as an event loop would cost more than all the rest.
"""

from __future__ import annotations

import ctypes
import math
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bench.load import length

_CONNECTIONS = 64
_PATIENCE = 1.0
"""Seconds to wait for answers after the last request."""
_SET_TIMER_SLACK = 29
"""PR_SET_TIMERSLACK: by default, Linux may wake a thread 50 µs late."""


@dataclass(frozen=True)
class Outcome:
    """p50, p99: seconds from when a request was due to its whole answer.

    late: 99th percentile of the seconds by which the load itself was late; a request that waits for a free connection
    is not late. unanswered: share of the requests without an answer at the end; the time until then counts for them.
    """

    p50: float
    p99: float
    late: float
    unanswered: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


class _Connection:
    """A kept connection with one request at a time. due: of that request."""

    def __init__(self, port: int, raw: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw = raw

    def send(self, due: float) -> None:
        """Send the request that was due then."""
        self.due = due
        self._head, self._left = b"", -1
        self.socket.sendall(self.raw)

    def receive(self) -> bool:
        """Read what is there; return True if the answer is whole."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise RuntimeError("a connection was cut")
        if self._left < 0:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return False
            self._left = length(head)
        self._left -= len(data)
        return self._left == 0


class Schedule:
    """`rate` requests a second to one port, for some seconds."""

    def __init__(self, port: int, raw: bytes, rate: float, seconds: float, connections: int = _CONNECTIONS) -> None:
        self.rate = rate
        self.total = max(1, round(rate * seconds))
        self.connections = [_Connection(port, raw) for _ in range(connections)]
        for connection in self.connections:
            connection.send(0.0)
            while not connection.receive():
                pass
        self._idle = deque(self.connections)
        self._waiting: deque[float] = deque()
        self._times: list[float] = []
        self._late: list[float] = []

    def send_due(self, start: float) -> float:
        """Send what is due, on a free connection each; when the next is due. start: when the first was."""
        sent = len(self._late)
        while sent < self.total:
            due = start + sent / self.rate
            late = time.perf_counter() - due
            if late < 0:
                return due
            sent += 1
            self._late.append(late)
            if self._idle:
                self._idle.popleft().send(due)
            else:
                self._waiting.append(due)
        return math.inf

    def receive(self, connection: _Connection) -> None:
        """Read an answer; a connection that is free again takes the next request that waits for one."""
        if connection.receive():
            self._times.append(time.perf_counter() - connection.due)
            if self._waiting:
                connection.send(self._waiting.popleft())
            else:
                self._idle.append(connection)

    @property
    def done(self) -> bool:
        """Whether every request has been sent and answered."""
        return len(self._times) == self.total

    def close(self) -> Outcome:
        """Close the connections; the result."""
        now = time.perf_counter()
        unanswered = [*self._waiting, *(one.due for one in self.connections if one not in self._idle)]
        times = self._times + [now - due for due in unanswered]
        for connection in self.connections:
            connection.socket.close()
        p50, p99 = (percentile(times, share) for share in (0.5, 0.99))
        return Outcome(p50, p99, percentile(self._late, 0.99), len(unanswered) / self.total)


def run(*schedules: Schedule) -> list[Outcome]:
    """Run all of them at the same time."""
    ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1)
    owners = {c.socket.fileno(): (schedule, c) for schedule in schedules for c in schedule.connections}
    with select.epoll() as poll:
        for number in owners:
            poll.register(number, select.EPOLLIN)
        start = time.perf_counter() + 0.01
        end = start + max(schedule.total / schedule.rate for schedule in schedules) + _PATIENCE
        while not all(schedule.done for schedule in schedules) and time.perf_counter() < end:
            due = min(end, *(schedule.send_due(start) for schedule in schedules))
            # Not epoll's own timeout, as that counts milliseconds.
            if select.select((poll,), (), (), max(0.0, due - time.perf_counter()))[0]:
                for number, _ in poll.poll(0):
                    schedule, connection = owners[number]
                    schedule.receive(connection)
    return [schedule.close() for schedule in schedules]

"""Events of clients, of their requests and of the pool in any order: nothing is left over, nothing is counted twice.

The connections, the pool and the data port are the real ones; transports and `create_connection` are stand-ins that do
what the machine says, so that every order of events can be had, those that only uvloop shows among them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from gateway.ports import ExecuteCall, Forward
from gateway.proxy.client_connection import ClientConnection
from gateway.proxy.data_port import DataPort
from gateway.upstream.client import Upstream
from gateway.upstream.connection import Connection
from gateway.upstream.outbound import NO_DEADLINE
from tests.conftest import settings_for, share
from tests.proxy.use_case import UseCase

LIMIT = 3
EXECUTE = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\nHost: c\r\n"
FROM_CLIENT = (
    b"GET / HTTP/1.1\r\nHost: c\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: c\r\n\r\n" * 2,
    b"HEAD / HTTP/1.1\r\nHost: c\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHo",
    b"st: c\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: c\r\nContent-Length: 4\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: c\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: c\r\nContent-Length: 4\r\n\r\nabcd",
    b"ab",
    b"POST / HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST / HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 500,
    b"11\r\n" + b"x" * 17 + b"\r\n",
    b"0\r\n\r\n",
    EXECUTE + b"Content-Length: 2\r\n\r\n{}",
    EXECUTE + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 500,
    EXECUTE + b"Content-Length: 999999999999\r\n\r\n{}",
    b"GET /ws HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"\x00garbage\r\n\r\n",
)
FROM_UPSTREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
    b"0\r\n\r\n",
    b"cd",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"HTTP/1.1 2",
    b"garbage\r\n\r\n",
)


class Socket:
    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def setsockopt(self, *_: Any) -> None:
        pass


class Transport(asyncio.Transport):
    """One end of a connection; what the other end does is called on it. lost: the protocol was notified of its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, number: int) -> None:
        super().__init__({"socket": Socket(number), "peername": ("127.0.0.1", 1)})
        self._loop, self.protocol = loop, protocol
        self.closing = self.paused = self.stalled = self.lost = self.silent = False

    @property
    def receives(self) -> bool:
        return not (self.closing or self.paused)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return int(self.stalled)

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.receives

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.lose(None)

    def abort(self) -> None:
        self.lose(None)

    def lose(self, exc: Exception | None) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self._tell, exc)

    def _tell(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.silent:
            self.protocol.connection_lost(exc)


class Attempt:
    """A `create_connection` under way; as with uvloop, the protocol has its transport a turn before the caller does."""

    def __init__(self, factory: Callable[[], Connection]) -> None:
        self.factory = factory
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Loop(asyncio.SelectorEventLoop):
    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self.now = 0.0
        self.attempts: list[Attempt] = []
        self.transports: list[Transport] = []

    def time(self) -> float:
        return self.now

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:
        attempt = Attempt(factory)
        self.attempts.append(attempt)
        try:
            outcome = await attempt.outcome
        finally:
            self.attempts.remove(attempt)
        if outcome == "refused":
            raise ConnectionRefusedError
        protocol = factory()
        transport = Transport(self, protocol, self._number)
        self.transports.append(transport)
        protocol.connection_made(transport)
        if outcome == "closed at once":
            transport.lose(ConnectionResetError())
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:  # uvloop closes such a transport without a word to its protocol
            transport.silent = True
            transport.close()
            raise
        return transport, protocol


class Connections(RuleBasedStateMachine):
    """Three clients, a node with `LIMIT` connections."""

    def __init__(self) -> None:
        super().__init__()
        self.pipe = os.pipe()
        self.loop = Loop(self.pipe[0])
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        over = {"upstream": {"url": "http://127.0.0.1:1", "connections": LIMIT, "timeouts": {"connect": 0}}}
        chosen = settings_for("http://127.0.0.1:1", over)
        self.upstream = Upstream(chosen.upstream, chosen.limits, configure("error", "json"))
        use_case = Refusing()
        self.metrics = Metrics()
        self.port = DataPort(
            chosen, self.upstream, use_case.execute, use_case, configure("error", "json"), self.metrics
        )
        self.clients: list[ClientConnection] = []
        self.run(self.upstream.start())
        [self.pool] = self.upstream._pools.values()

    def run(self, work: Any) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(work)

    def turn(self, turns: int = 1) -> None:
        async def wait() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.run(wait())

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call within the loop, as the loop itself would."""

        async def work() -> None:
            function(*args)

        self.run(work())

    # Clients

    @precondition(lambda self: len(self.clients) < 3)
    @rule()
    def client_connects(self) -> None:
        client = ClientConnection(self.port)
        self.clients.append(client)
        self.call(client.connection_made, Transport(self.loop, client, self.pipe[0]))

    def client(self, number: int) -> ClientConnection:
        return self.clients[number % len(self.clients)]

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 2), piece=st.sampled_from(FROM_CLIENT), turns=st.integers(0, 3))
    def client_sends(self, number: int, piece: bytes, turns: int) -> None:
        client = self.client(number)
        if client.transport.receives:
            self.call(client.data_received, piece)
        self.turn(turns)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 2), how=st.sampled_from(["end", "reset"]), turns=st.integers(0, 3))
    def client_goes(self, number: int, how: str, turns: int) -> None:
        transport = self.client(number).transport
        if how == "reset":
            self.call(transport.lose, ConnectionResetError())
        elif transport.receives and not self.eof_received(transport):
            self.call(transport.close)
        self.turn(turns)

    def eof_received(self, transport: Transport) -> bool:
        result: list[Any] = []
        self.call(lambda: result.append(transport.protocol.eof_received()))
        return bool(result[0])

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 2))
    def client_stops_or_goes_on_reading(self, number: int) -> None:
        self.switch(self.client(number).transport)

    def switch(self, transport: Transport) -> None:
        if not transport.closing:
            transport.stalled = not transport.stalled
            protocol = transport.protocol
            self.call(protocol.pause_writing if transport.stalled else protocol.resume_writing)

    # The node

    @precondition(lambda self: self.loop.attempts)
    @rule(outcome=st.sampled_from(["connected", "connected", "refused", "closed at once"]), turns=st.integers(0, 4))
    def attempt_ends(self, outcome: str, turns: int) -> None:
        waiting = [attempt for attempt in self.loop.attempts if not attempt.outcome.done()]
        if waiting:
            self.call(waiting[0].outcome.set_result, outcome)
        self.turn(turns)

    def upstream_transports(self) -> list[Transport]:
        return [transport for transport in self.loop.transports if not transport.closing]

    @precondition(lambda self: self.upstream_transports())
    @rule(number=st.integers(0, 2), piece=st.sampled_from(FROM_UPSTREAM), turns=st.integers(0, 3))
    def node_sends(self, number: int, piece: bytes, turns: int) -> None:
        transport = self.upstream_transports()[number % len(self.upstream_transports())]
        if transport.receives:
            self.call(transport.protocol.data_received, piece)
        self.turn(turns)

    @precondition(lambda self: self.upstream_transports())
    @rule(number=st.integers(0, 2), how=st.sampled_from(["end", "reset", "stall"]), turns=st.integers(0, 3))
    def node_goes(self, number: int, how: str, turns: int) -> None:
        transport = self.upstream_transports()[number % len(self.upstream_transports())]
        if how == "stall":
            self.switch(transport)
        elif how == "reset":
            self.call(transport.lose, ConnectionResetError())
        elif transport.receives and not self.eof_received(transport):
            self.call(transport.close)
        self.turn(turns)

    # Time

    @rule(number=st.integers(0, 5))
    def time_passes(self, number: int) -> None:
        self.loop.now += 0.3
        everyone = [*self.clients, *(transport.protocol for transport in self.loop.transports if not transport.lost)]
        waiting = [one for one in everyone if one.deadline != NO_DEADLINE]
        if waiting:
            one = waiting[number % len(waiting)]
            one.deadline = NO_DEADLINE
            self.call(one.expired)
        self.turn()

    @rule()
    def pool_is_rebuilt(self) -> None:
        self.call(self.pool.rebuild)

    @rule(turns=st.integers(1, 8))
    def loop_turns(self, turns: int) -> None:
        self.turn(turns)

    # What always holds

    @invariant()
    def no_callback_failed(self) -> None:
        """Among others, that no event came in a state whose table has no row for it."""
        assert self.errors == []

    @invariant()
    def slots_are_owned(self) -> None:
        alive = {transport.protocol for transport in self.loop.transports if not transport.lost}
        assert self.pool.connections <= alive
        assert self.pool.used_slots <= LIMIT
        idle = set(self.pool._idle)
        assert idle <= self.pool.connections
        assert all(connection.outbound is None for connection in idle)
        assert len(idle) == len(self.pool._idle)
        busy = [connection for connection in self.pool.connections if connection.outbound is not None]
        assert all(connection.outbound.connection is connection for connection in busy)  # type: ignore[union-attr]
        assert self.pool.node.pending == len(busy)

    @invariant()
    def exchanges_are_counted(self) -> None:
        alive = [client.exchange for client in self.clients if client.exchange is not None]
        assert self.port.lifecycle.running == len(alive)
        assert b"mlc_gateway_in_flight %.1f" % len(alive) in self.metrics.render().splitlines()
        assert self.pool._uploads <= {exchange.outbound for exchange in alive}
        for exchange in alive:
            outbound = exchange.outbound
            assert outbound.owner is exchange
            assert outbound.connection is None or outbound.connection.outbound is outbound

    def teardown(self) -> None:
        """All clients go: every request ends, every connection is idle or gone, and then gone, too."""
        for client in self.clients:
            self.call(client.transport.lose, None)
        for _ in itertools.count():
            self.turn(10)
            waiting = [attempt for attempt in self.loop.attempts if not attempt.outcome.done()]
            if not waiting:
                break
            self.call(waiting[0].outcome.set_result, "connected")
        self.slots_are_owned()
        self.exchanges_are_counted()
        assert self.port.lifecycle.running == 0
        assert self.port.lifecycle.connections == set()
        assert self.pool.connections == set(self.pool._idle)
        assert not self.pool._waiters
        alive = {transport.protocol for transport in self.loop.transports if not transport.lost}
        assert alive == self.pool.connections
        self.run(self.upstream.close())
        self.turn(3)
        assert self.pool.used_slots == 0
        assert not self.upstream._connections
        assert len(asyncio.all_tasks(self.loop)) == 0
        self.loop.close()
        for number in self.pipe:
            os.close(number)


class Refusing(UseCase):
    """Passes every execute on."""

    async def execute(self, call: ExecuteCall) -> Forward:
        return Forward()


TestConnections = Connections.TestCase
TestConnections.settings = settings(
    max_examples=share(400), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
class TestManyConnections(Connections.TestCase):  # type: ignore[name-defined, misc]
    """The same, for longer."""

    settings = settings(
        max_examples=share(1_000), stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
    )

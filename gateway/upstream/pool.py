"""The connections to one node, up to a limit. Idle connections are reused.

A slot of the pool is owned by a connection attempt or by a connection. The number of used slots is the size of these
two sets; there is no counter. An attempt belongs to the pool, not to the request that needed it: if that request is
cancelled, the next one gets the connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.http1.response_heads import ResponseReader
from gateway.upstream.connection import Connection
from gateway.upstream.nodes import Node
from gateway.upstream.outbound import NO_DEADLINE, OutboundRequest
from gateway.upstream.tls import TlsSource

_BRIEF = 0.001
_YEAR = 365 * 86_400.0

Waiter = asyncio.Future[Connection]


class Pool:
    """Connections to `node`. tls: None for plain HTTP. limit: largest number of connections. keepalive: seconds
    that an idle connection stays open, 0 for no limit.

    connect_timeout: seconds for one connection attempt, 0 for no limit. all_connections: shared by all pools, for the
    timer. retry: sends a request again, see `Upstream`.
    """

    def __init__(
        self,
        node: Node,
        tls: TlsSource | None,
        limit: int,
        keepalive: float,
        connect_timeout: float,
        heads: ResponseReader,
        all_connections: set[Connection],
        retry: Callable[[OutboundRequest, Node, bool], bool],
    ) -> None:
        self.node = node
        self.retry = retry
        self.connections: set[Connection] = set()
        self.waiting_since = NO_DEADLINE
        """Time since which no waiting request got a connection; `NO_DEADLINE` if no request waits."""
        self._tls = tls
        self._limit = limit
        self._upload_limit = max(1, limit // 2)
        self._keepalive = keepalive or _YEAR
        self._connect_timeout = connect_timeout
        self._heads = heads
        self._all_connections = all_connections
        self._attempts: set[asyncio.Task[None]] = set()
        self._idle: list[Connection] = []
        self._waiters: OrderedDict[Waiter, bool] = OrderedDict()
        """In the order in which they came; True for one that wants a fresh connection."""
        self._uploads: set[OutboundRequest] = set()
        self._upload_waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def used_slots(self) -> int:
        """Number of connections and connection attempts."""
        return len(self.connections) + len(self._attempts)

    @property
    def saturated(self) -> bool:
        """Every slot is used by a connection with a request."""
        return sum(connection.outbound is not None for connection in self.connections) >= self._limit

    def is_busy_for(self, outbound: OutboundRequest) -> bool:
        """Return True if other requests use every slot that this one may use; see `admit_upload`."""
        return self.saturated or not (outbound.complete or outbound in self._uploads)

    def counts(self) -> tuple[int, int, int, int]:
        """Return the number of idle connections, busy connections, connection attempts, and requests that wait."""
        busy = sum(connection.outbound is not None for connection in self.connections)
        waiting = len(self._waiters) + len(self._upload_waiters)
        return len(self.connections) - busy, busy, len(self._attempts), waiting

    def take(self) -> Connection | None:
        """Return the idle connection that was used last, or None."""
        while self._idle:
            connection = self._idle.pop()
            # Since the loop last polled, unexpected bytes or the end may have arrived. Polling again costs a system
            # call, so a connection that was idle only briefly is not polled.
            idle = time.monotonic() - connection.deadline + self._keepalive
            if not connection.transport.is_closing() and (idle < _BRIEF or not connection.disturbed()):
                connection.reused = True
                self.waiting_since = NO_DEADLINE
                return connection
            connection.transport.abort()
        return None

    async def acquire(self, *, fresh: bool = False) -> Connection:
        """Return a connection: an idle one, or the next one that is opened or given back. fresh: one not used before.

        Raises:
            OSError: a connection attempt failed.
        """
        connection = None if fresh else self.take()
        while connection is None:
            waiter: Waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = fresh
            self.waiting_since = min(self.waiting_since, time.monotonic())
            self._connect()
            try:
                connection = await waiter
            except BaseException:
                self._waiters.pop(waiter, None)
                if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                    self.give_back(waiter.result())  # cancelled when it already had one: the next request gets it
                raise
            if connection.transport.is_closing():
                if not connection.reused:
                    raise ConnectionResetError("the connection was closed at once")
                connection = None
        self.waiting_since = NO_DEADLINE
        return connection

    def give_back(self, connection: Connection) -> None:
        """Hand a connection without a request to the request that has waited longest, or leave it idle."""
        if connection.transport.is_closing():
            return  # `discard` follows
        if self._waiters:
            waiter = self._next_waiter(connection.reused)
            if waiter is not None:
                connection.deadline = NO_DEADLINE
                waiter.set_result(connection)
                return
            if self._waiters and not self._attempts:  # for a fresh connection; there is no slot for it but this one
                connection.transport.abort()
                return
        connection.deadline = time.monotonic() + self._keepalive
        self.waiting_since = NO_DEADLINE
        self._idle.append(connection)

    def discard(self, connection: Connection) -> None:
        """Free the slot of a connection that is lost."""
        self._all_connections.discard(connection)
        self.connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._connect()

    def _next_waiter(self, reused: bool) -> Waiter | None:
        """Remove and return the waiter that has waited longest. reused: pass over those that want a fresh connection,
        unless no attempt is under way for them.
        """
        for waiter, fresh in self._waiters.items():
            if waiter.done():
                continue  # cancelled: `acquire` removes it
            if not (reused and fresh):
                del self._waiters[waiter]
                return waiter
            if not self._attempts:
                return None
        return None

    def _connect(self) -> None:
        """Start a connection attempt for every waiter without one, as long as there are free slots."""
        while len(self._attempts) < len(self._waiters) and self.used_slots < self._limit:
            # Not in the context of this request, whose ids the log would show for all later ones on the connection.
            attempt = asyncio.get_running_loop().create_task(self._attempt(), context=contextvars.Context())
            self._attempts.add(attempt)

    async def _attempt(self) -> None:
        """Open one connection and hand it over. Its slot passes from the attempt to the connection in one step."""
        made: list[Connection] = []
        node = self.node
        failure: OSError | None = None

        def make() -> Connection:
            made.append(Connection(self, self._heads))
            return made[-1]

        tls = self._tls.connect_options(node.host) if self._tls else {}
        try:
            async with asyncio.timeout(self._connect_timeout or None):
                await asyncio.get_running_loop().create_connection(make, node.host, node.port, **tls)
        except asyncio.CancelledError:  # by `rebuild` or `close`, which have freed the slot
            _abort(made)
            raise
        except OSError as exc:  # TimeoutError is one
            failure = exc
        except Exception as exc:  # of the loop or of TLS: the waiting request must fail with it
            failure = OSError(str(exc))
        self._attempts.discard(asyncio.current_task())
        if failure is None and not made[-1].transport.is_closing():
            self.connections.add(made[-1])
            self._all_connections.add(made[-1])
            self.give_back(made[-1])
        else:
            _abort(made)
            self._fail_next(failure or ConnectionResetError("the connection was closed at once"))
            if not self._waiters:
                self.waiting_since = NO_DEADLINE
        self._connect()

    def _fail_next(self, failure: OSError) -> None:
        """Fail the next waiter, unless another attempt is under way for it."""
        if len(self._attempts) < len(self._waiters) and (waiter := self._next_waiter(reused=False)) is not None:
            waiter.set_exception(failure)

    # Uploads

    async def admit_upload(self, outbound: OutboundRequest) -> None:
        """Wait until a request with an incomplete body may take a connection.

        At most half of the connections are used by such requests, so that slow clients leave the rest to others. The
        wait ends when the body is complete. `end_upload` must follow.
        """
        while len(self._uploads) >= self._upload_limit and outbound not in self._uploads and not outbound.complete:
            waiter = outbound.upload_waiter = asyncio.get_running_loop().create_future()
            self._upload_waiters[waiter] = None
            try:
                await waiter
            except BaseException:
                if self._upload_waiters.pop(waiter, None) is None:  # it had been woken: wake the next one instead
                    self._wake_uploads()
                raise
            finally:
                outbound.upload_waiter = None
        if not outbound.complete:
            self._uploads.add(outbound)
        elif len(self._uploads) < self._upload_limit:  # it may have been woken for a place that it no longer needs
            self._wake_uploads()

    def try_upload(self, outbound: OutboundRequest) -> bool:
        """As `admit_upload`, if there is no need to wait. Return False if there is."""
        if len(self._uploads) >= self._upload_limit:
            return False
        self._uploads.add(outbound)
        return True

    def end_upload(self, outbound: OutboundRequest) -> None:
        """End the upload: the request's body is complete, or the request has ended."""
        if outbound in self._uploads:
            self._uploads.remove(outbound)
            self._wake_uploads()

    def _wake_uploads(self) -> None:
        while self._upload_waiters:
            waiter = self._upload_waiters.popitem(last=False)[0]
            if not waiter.done():
                waiter.set_result(None)
                return

    # The end

    def rebuild(self) -> None:
        """Drop all connection attempts and all connections without a request, and connect again for the waiters."""
        self.waiting_since = NO_DEADLINE
        attempts, self._attempts = self._attempts, set()
        for attempt in attempts:
            attempt.cancel()
        for connection in [one for one in self.connections if one.outbound is None]:
            self.connections.discard(connection)
            connection.transport.abort()
        self._idle.clear()
        self._connect()

    async def close(self) -> None:
        """Cut all connections and cancel all attempts."""
        attempts = list(self._attempts)
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for connection in list(self.connections):
            connection.abandon()
        self._attempts.clear()


def _abort(made: list[Connection]) -> None:
    """Cut the connection of an attempt. uvloop may have opened it although the attempt was cancelled."""
    for connection in made:
        if connection.connected:
            connection.transport.abort()

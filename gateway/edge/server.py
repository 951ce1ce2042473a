"""The data port: every request of the cluster's API, passed through or, where the table says so, rewritten."""

from __future__ import annotations

import asyncio
import logging
import ssl

from gateway.config.schema import Settings
from gateway.edge import errors
from gateway.edge.admission import Admission
from gateway.edge.connection import ClientConnection
from gateway.edge.exchange import Exchange
from gateway.edge.execution import Execution
from gateway.edge.requests import Request
from gateway.edge.routes import Intent, intent_of
from gateway.edge.sockets import Door, bind
from gateway.errors import GatewayError
from gateway.execute.ports import ExecuteCall, ExecuteHandler, Forward, ProfileCache
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.upstream.client import Upstream, head_limits
from gateway.upstream.nodes import may_retry
from gateway.upstream.signing import refuse_rewrite
from gateway.upstream.sweeper import Sweeper


class DataPort:
    """What all connections of the data port share. connections: all that are open."""

    def __init__(
        self,
        settings: Settings,
        upstream: Upstream,
        execute: ExecuteHandler,
        profiles: ProfileCache,
        log: Logger,
        metrics: Metrics,
    ) -> None:
        self.connections: set[ClientConnection] = set()
        self.draining = False
        self.loop: asyncio.AbstractEventLoop
        self._log = log
        self._verbose = log.is_enabled_for(logging.DEBUG)
        self._metrics = metrics
        self.use(settings, upstream, execute, profiles)

    def use(self, settings: Settings, upstream: Upstream, execute: ExecuteHandler, profiles: ProfileCache) -> None:
        """Go by these settings from the next request on; those under way end where they began."""
        self.upstream = upstream
        self.profiles = profiles
        self.limits = settings.limits
        self.head_limits = head_limits(settings.limits)
        self.timeouts = settings.listen.timeouts
        self._execute = execute
        self._own_host = settings.upstream.host_header == "upstream"
        self._admission = Admission(settings.admission)
        self._client_header = settings.admission.client_header.lower().encode("ascii")

    def start(self) -> None:
        """Bind it to the running loop."""
        self.loop = asyncio.get_running_loop()
        self.clock = self.loop.time
        timeouts = self.timeouts
        waits = (timeouts.head, timeouts.body, timeouts.send, timeouts.keepalive)
        self._sweeper = Sweeper(self.connections, waits)
        self._sweeper.start()

    def stop(self) -> None:
        """Cut what is left."""
        self._sweeper.stop()
        for connection in list(self.connections):
            connection.cut_off()

    # For connections and exchanges

    def exchange(self, client: ClientConnection, request: Request) -> Exchange:
        """What answers `request`."""
        where = intent_of(request.method, request.target)
        self._metrics.in_flight.inc()
        auth = self.upstream.auth
        if where.intent in _RUNS or (auth is not None and auth.needs_body and request.has_body):
            return Execution(self, client, request, where)
        return Exchange(self, client, request, where)

    async def decide(self, call: ExecuteCall, exchange: Exchange) -> Forward:
        """What to send for a request that was read whole.

        Raises:
            GatewayError: the request is refused.
        """
        if exchange.route.intent not in _RUNS:  # read only to be signed
            return Forward()
        forward = await self._execute(call)
        if forward.body is not None and self.upstream.auth is None:
            refuse_rewrite(exchange.request.target, exchange.request.pairs())
        return forward

    def admit(self, exchange: Exchange) -> None:
        """Let the exchange go when it is its turn."""
        if not self._admission.limited:
            exchange.go()
            return

        def then(refusal: GatewayError | None) -> None:
            if refusal is None:
                exchange.go()
            else:
                exchange.refuse(refusal)

        try:
            ticket = exchange.ticket = self._admission.enter(self._key(exchange), then)
        except GatewayError as refusal:
            exchange.refuse(refusal)
            return
        if ticket.admitted:
            exchange.go()
        elif not exchange.complete:
            exchange.client.pause_reading()

    def _key(self, exchange: Exchange) -> str:
        """What tells a client from others: its own header where one is configured, else its address."""
        if self._client_header:
            for name, value in exchange.request.pairs():
                if name.lower() == self._client_header:
                    return value.decode("latin-1")
        peer = exchange.client.transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def send(self, exchange: Exchange) -> None:
        """Send the exchange's request to the cluster."""
        self.upstream.send(exchange)

    def repeatable(self, request: Request) -> bool:
        """Whether a request that is passed through may be sent twice when a kept connection proves to be dead."""
        return not request.has_body and may_retry(request.method.decode("ascii"), True, False, request.target)

    def host(self, request: Request, authority: bytes) -> bytes:
        """`Host` for the cluster; empty: the client's own goes on."""
        return authority if self._own_host or request.host is None else b""

    def head_came(self, exchange: Exchange) -> None:
        """The cluster has answered."""
        self._metrics.waited(exchange.route.intent.value, self.clock() - exchange.started)

    def failed(self, exchange: Exchange, error: GatewayError) -> None:
        """Log why an exchange ended in an error of the gateway's own."""
        log = self._log.warning if error.status >= 500 else self._log.info
        problems = [problem.as_dict() for problem in error.problems]
        log("refused", request_id=exchange.request_id, type=error.type, reason=error.reason, problems=problems)

    def internal(self, exchange: Exchange) -> GatewayError:
        """Log a fault of the gateway's own, within its handler; what the client is told."""
        self._log.exception("internal error", request_id=exchange.request_id, method=exchange.method.decode("ascii"))
        return errors.internal(exchange.request_id)

    def refused(self, error: GatewayError) -> None:
        """What came was no request."""
        self._metrics.request(Intent.PASSTHROUGH.value, error.status)
        self._log.info("refused", type=error.type, reason=error.reason)

    def finished(self, exchange: Exchange) -> None:
        """The exchange is over, however it ended."""
        if exchange.ticket is not None:
            exchange.ticket.leave()
        intent = exchange.route.intent
        self._metrics.in_flight.dec()
        self._metrics.request(intent.value, exchange.status)
        if intent is not Intent.PASSTHROUGH or self._verbose:
            self._told(exchange)

    def _told(self, exchange: Exchange) -> None:
        level = self._log.debug if exchange.route.intent is Intent.PASSTHROUGH else self._log.info
        request = exchange.request
        level(
            "request",
            request_id=exchange.request_id,
            intent=exchange.route.intent.value,
            method=request.method.decode("ascii"),
            path=request.target.partition(b"?")[0].decode("utf-8", "replace"),
            status=exchange.status,
            s=round(self.clock() - exchange.started, 6),
        )


_RUNS = (Intent.EXECUTE, Intent.EXECUTE_STREAM)


class DataListener:
    """The listening sockets of the data port. grace: seconds that requests in flight get when it stops.

    tls: None for plain HTTP. shared: other processes listen on the same port.
    """

    def __init__(
        self,
        data_port: DataPort,
        host: str,
        port: int,
        log: Logger,
        grace: float,
        *,
        tls: ssl.SSLContext | None = None,
        shared: bool = False,
    ) -> None:
        self._data_port = data_port
        self._host = host
        self._port = port
        self._log = log
        self._tls = tls
        self._shared = shared
        self.grace = grace
        self.port = 0

    async def start(self) -> None:
        """Bind and listen; `port` then holds the port that was bound. Raises OSError: it can't be had."""
        sockets = await bind(self._host, self._port, shared=self._shared)
        self._data_port.start()
        self._door = Door(sockets, lambda: ClientConnection(self._data_port), self._tls)
        await self._door.open()
        self.port = self._door.port
        self._log.info("listening", address=f"{self._host}:{self.port}")

    def drain(self) -> None:
        """From now on each answer asks its client to close the connection."""
        self._data_port.draining = True

    async def stop(self, linger: float = 0) -> None:
        """Let nobody in, let requests in flight finish within the grace period, then cut what is left.

        linger: seconds that idle connections are kept, so that a request just on its way on one is answered.
        """
        self.drain()
        await self._door.close()
        port = self._data_port
        until = port.clock() + self.grace
        await self._emptied(min(until, until - self.grace + linger))
        for connection in [connection for connection in port.connections if connection.idle]:
            connection.close()
        await self._emptied(until)
        port.stop()
        await asyncio.sleep(0)

    async def _emptied(self, until: float) -> None:
        """Wait until no connection is left, but no longer than `until`."""
        while self._data_port.connections and self._data_port.clock() < until:
            await asyncio.sleep(0.02)  # connections are too many to tell each that it is the last

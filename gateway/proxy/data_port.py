"""The data port: every request of the cluster's API, passed through or, where the table says so, rewritten."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from dataclasses import replace
from urllib.parse import quote

from gateway.config.schema import Settings
from gateway.errors import GatewayError, UnresolvedAgent, UpstreamTimeout, UpstreamUnavailable
from gateway.http1.request_heads import Reader, Request
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.observe.redact import describe_error
from gateway.ports import Answer, ExecuteCall, ExecuteHandler, FastHandler, Forward, ManageHandler, ProfileCache
from gateway.proxy import error_responses
from gateway.proxy.acceptor import Acceptor, bind
from gateway.proxy.admission import Admission, per_client_limit
from gateway.proxy.backlog import Backlog
from gateway.proxy.client_connection import ClientConnection
from gateway.proxy.disconnects import DisconnectPoller
from gateway.proxy.exchange import Exchange
from gateway.proxy.execution import Execution, known_as
from gateway.proxy.forwarded import Forwarding
from gateway.proxy.max_forwards import LastHop, is_last_hop, with_one_hop_less
from gateway.proxy.routes import MANAGED, RUNS, Intent, Route, intent_of
from gateway.upstream.auth.authenticator import client_signature, refuse_rewrite
from gateway.upstream.client import Upstream, head_limits
from gateway.upstream.deadlines import DeadlineTimer


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
        manage: ManageHandler | None = None,
    ) -> None:
        self.connections: set[ClientConnection] = set()
        self.draining = False
        self._running = 0
        self._last = asyncio.Event()
        self._log = log
        self._payloads = settings.logs.payloads
        self._log_requests = log.is_enabled_for(logging.INFO)
        self._tells_all = log.is_enabled_for(logging.DEBUG)
        self._metrics = metrics
        self.upstream = upstream
        self.profiles = profiles
        self.limits = settings.limits
        self.reader = Reader(head_limits(settings.limits))
        self.timeouts = settings.listen.timeouts
        self._execute = execute
        self._at_once = execute if isinstance(execute, FastHandler) else None
        self._manage = manage
        self._handled_intents = RUNS if manage is None else (*RUNS, *MANAGED)
        self._aliases = settings.agents.aliases
        self.own_host = settings.upstream.host_header == "upstream"
        self._admission = Admission(settings.admission, per_client_limit(settings))
        self._forwarding = Forwarding(settings.listen)
        self._client_header = settings.admission.client_header.lower().encode("ascii")
        times = self.timeouts
        self._sweeper = DeadlineTimer(self.connections, (times.head, times.body, times.send, times.keepalive))
        self._presence = DisconnectPoller(self.connections)
        self.backlog = Backlog()

    def start(self) -> None:
        """Begin to keep time, and to look who is there."""
        self._sweeper.start()
        self._presence.start()

    def hand_over(self, successor: DataPort) -> None:
        """Give all connections to `heir`; what is being answered on them ends here."""
        successor.connections |= self.connections
        for connection in self.connections:
            connection.port = successor
        self.connections.clear()
        self.stop()

    async def ended(self) -> None:
        """Wait until no exchange is under way."""
        while self._running:
            self._last.clear()
            await self._last.wait()

    def stop(self) -> None:
        """Cut what is left."""
        self._sweeper.stop()
        self._presence.stop()
        for connection in list(self.connections):
            connection.cut_off()

    # For connections and exchanges

    def exchange(self, client: ClientConnection, request: Request) -> Exchange:
        """What answers `request`."""
        where = intent_of(request.method, request.target)
        self._metrics.began()
        self._running += 1
        if request.fields.max_forwards is not None:
            if is_last_hop(request):
                return LastHop(self, client, request, where)
            request = with_one_hop_less(request)
        if self._forwarding.changes:
            request = self._forwarding.of(request, _peer(client))
        auth = self.upstream.auth
        if self._aliases and where.intent in RUNS and where.id in self._aliases:
            request, where = aliased(request, where, self._aliases[where.id])
        asked = where.intent is not _PASSTHROUGH and where.intent in self._handled_intents
        if asked or (auth is not None and auth.needs_body and request.has_body):
            return Execution(self, client, request, where)
        return Exchange(self, client, request, where)

    def try_fast(self, exchange: Exchange, body: bytes) -> Forward | None:
        """What to send for a request that was read whole, where that is known without waiting."""
        request = exchange.request
        if self._at_once is None or exchange.route.intent is not _EXECUTE or _QUERY in request.target:
            return None
        fields = request.fields
        if fields.caller is None:
            fields.caller = self._at_once.caller(fields.lines)
        return self._at_once.try_fast(exchange.route.id, fields.caller, body) if fields.caller else None

    async def decide(self, call: ExecuteCall, exchange: Exchange) -> Forward | Answer:
        """What to send for a request that was read whole.

        Raises:
            GatewayError: the request is refused.
        """
        passes = self.upstream.auth is None  # the client's own credentials, and its signature, go on
        if exchange.route.intent not in RUNS:
            signed = passes and bool(client_signature(exchange.request.target, exchange.request.fields.pairs()))
            return await self._managed(exchange.route.intent, replace(call, signed=signed))
        if exchange.route.aliased and passes:
            refuse_rewrite(exchange.request.target, exchange.request.fields.pairs())
        try:
            forward = await self._execute(call)
        except UnresolvedAgent:
            if passes:  # the agent was to be read with them
                refuse_rewrite(exchange.request.target, exchange.request.fields.pairs())
            raise
        if forward.body is not None and passes:
            refuse_rewrite(exchange.request.target, exchange.request.fields.pairs())
        return forward

    async def _managed(self, intent: Intent, call: ExecuteCall) -> Forward | Answer:
        manage = self._manage
        if manage is not None:
            match intent:
                case Intent.REGISTER:
                    return await manage.register(call)
                case Intent.QUICK_EXECUTE:
                    return await manage.quick_execute(call)
                case Intent.UPDATE_AGENT:
                    return await manage.update_agent(call)
                case Intent.DELETE_AGENT:
                    return await manage.delete_agent(call)
        return Forward()  # read only to be signed

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
            for name, value in exchange.request.fields.pairs():
                if name.lower() == self._client_header:
                    return value.decode("latin-1")
        return self._forwarding.client(exchange.request.fields.lines, _peer(exchange.client))

    def send(self, exchange: Exchange) -> None:
        """Send the exchange's request to the cluster."""
        self.upstream.send(exchange)

    def head_came(self, exchange: Exchange) -> None:
        """The cluster has answered."""
        self._metrics.waited(exchange.route.intent, time.monotonic() - exchange.started)

    def failed(self, exchange: Exchange, error: GatewayError) -> None:
        """Log why an exchange ended in an error of the gateway's own."""
        log = self._log.warning if error.status >= 500 else self._log.info
        known = known_as(exchange.request.fields)
        event = "no answer" if isinstance(error, UpstreamUnavailable | UpstreamTimeout) else "refused"
        log(event, request_id=exchange.request_id, **known, **describe_error(error, self._payloads))

    def internal(self, exchange: Exchange) -> GatewayError:
        """Log a fault of the gateway's own, within its handler; what the client is told."""
        known = known_as(exchange.request.fields)
        method = exchange.method.decode("ascii")
        self._log.exception("internal error", **{"request_id": exchange.request_id, **known}, method=method)
        return error_responses.internal(exchange.request_id)

    def refused(self, error: GatewayError) -> None:
        """What came was no request."""
        self._metrics.request(Intent.PASSTHROUGH, error.status)
        told = describe_error(error, self._payloads)
        self._log.info("refused", type=told["type"], reason=told["reason"])

    def finished(self, exchange: Exchange) -> None:
        """The exchange is over, however it ended."""
        if exchange.ticket is not None:
            exchange.ticket.leave()
        intent = exchange.route.intent
        self._metrics.ended()
        self._running -= 1
        if not self._running:
            self._last.set()
        self._metrics.request(intent, exchange.status)
        if self._tells_all or (self._log_requests and intent is not _PASSTHROUGH):
            self._told(exchange)

    def _told(self, exchange: Exchange) -> None:
        level = self._log.debug if exchange.route.intent is Intent.PASSTHROUGH else self._log.info
        request = exchange.request
        level(
            "request",
            request_id=exchange.request_id,
            **known_as(request.fields),
            intent=str(exchange.route.intent),
            method=request.method.decode("ascii"),
            path=request.target.partition(b"?")[0].decode("utf-8", "replace"),
            status=exchange.status,
            s=round(time.monotonic() - exchange.started, 6),
        )


_LAST_CALL = 0.25
"""Seconds that idle connections have left when the port stops: a request that is under way on one is answered."""
# Names of the module: an attribute of an Enum is found four times as slowly.
_PASSTHROUGH, _EXECUTE = Intent.PASSTHROUGH, Intent.EXECUTE
_QUERY = ord("?")


def aliased(request: Request, where: Route, agent_id: str) -> tuple[Request, Route]:
    """The request for another agent: only the id in its target differs."""
    before, mark, rest = request.target.partition(b"/agents/")
    behind = rest.partition(b"/")[2]
    target = b"%b%b%b/%b" % (before, mark, quote(agent_id, safe="").encode("ascii"), behind)
    return Request(request.method, target, request.minor, request.fields), replace(where, id=agent_id, aliased=True)


def _peer(client: ClientConnection) -> str:
    """The address at the other end of a connection; "" where there is none."""
    peer = client.transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


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
        tls: ssl.SSLContext | None = None,
        shared: bool = False,
    ) -> None:
        self._data_port = data_port
        self._host = host
        self._port = port
        self._log = log
        self._tls = tls
        self._shared = shared
        self._hurried = False
        self.grace = grace
        self.port = 0

    async def start(self) -> None:
        """Bind and listen; `port` then holds the port that was bound. Raises OSError: it can't be had."""
        sockets = await bind(self._host, self._port, shared=self._shared)
        self._data_port.start()
        self._door = Acceptor(sockets, lambda: ClientConnection(self._data_port), self._tls)
        await self._door.open()
        self.port = self._door.port
        self._log.info("listening", address=f"{self._host}:{self.port}")

    def replace(self, data_port: DataPort, grace: float) -> None:
        """Answer from `data_port` from the next request on, on connections that are open, too."""
        old, self._data_port = self._data_port, data_port
        self.grace = grace
        data_port.draining = old.draining
        data_port.start()
        old.hand_over(data_port)

    def drain(self) -> None:
        """From now on each answer asks its client to close the connection."""
        self._data_port.draining = True

    def stop_now(self) -> int:
        """Wait for nothing when it stops, or any longer if it does so now; the connections that are cut by that."""
        self._hurried = True
        return len(self._data_port.connections)

    async def stop(self, linger: float = _LAST_CALL) -> None:
        """Let nobody in, let requests in flight finish within the grace period, then cut what is left.

        linger: seconds that idle connections are kept, so that a request just on its way on one is answered.
        """
        self.drain()
        await self._door.close()
        port = self._data_port
        until = time.monotonic() + self.grace
        await self._emptied(min(until, until - self.grace + linger))
        for connection in [connection for connection in port.connections if connection.idle]:
            connection.close()
        await self._emptied(until)
        port.stop()
        await asyncio.sleep(0)

    async def _emptied(self, until: float) -> None:
        """Wait until no connection is left, but no longer than `until`."""
        while self._data_port.connections and time.monotonic() < until and not self._hurried:  # noqa: ASYNC110  # seldom and short
            await asyncio.sleep(0.005)

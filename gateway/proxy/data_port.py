"""The data port: what all its connections share."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gateway.config.schema import Settings
from gateway.errors import GatewayError
from gateway.http1.request_heads import Request, RequestReader
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.observe.trace_context import NewTraces
from gateway.ports import ExecuteHandler, ManageHandler, ProfileCache, RoutedMemory, SessionHandler
from gateway.proxy.admission import Admission, per_client_limit
from gateway.proxy.capture import Capture
from gateway.proxy.client_connection import ClientConnection
from gateway.proxy.dispatch import Dispatcher
from gateway.proxy.exchange import Exchange
from gateway.proxy.forwarded import Forwarding
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.request_log import RequestLog
from gateway.proxy.request_receiver import Backlog
from gateway.proxy.router import Router
from gateway.upstream.client import Upstream, head_limits


class DataPort:
    """The parts that connections and exchanges use, made from one set of settings."""

    def __init__(
        self,
        settings: Settings,
        upstream: Upstream,
        execute: ExecuteHandler,
        profiles: ProfileCache,
        log: Logger,
        metrics: Metrics,
        manage: ManageHandler | None = None,
        sessions: SessionHandler | None = None,
        capture: Capture | None = None,
        clusters: Mapping[str, Upstream] | None = None,
        routed_memory: RoutedMemory | None = None,
    ) -> None:
        self.upstream = upstream
        self.clusters: Mapping[str, Upstream] = {"": upstream, **(clusters or {})}
        self.profiles = profiles
        self.limits = settings.limits
        self.timeouts = settings.listen.timeouts
        self.notice_header = settings.answers.notice_header
        self.docs_url = settings.answers.docs_url
        self.reader = RequestReader(head_limits(settings.limits))
        self.capture = capture
        traces = settings.telemetry.traces
        self.new_traces = NewTraces(traces.ratio) if traces.endpoint else None
        self.backlog = Backlog()
        self.log = RequestLog(log, metrics, settings.logs.payloads)
        self.received = metrics.traffic.received
        self.lifecycle = Lifecycle(self.timeouts)
        metrics.watch(self.lifecycle)
        self.dispatcher = Dispatcher(execute, manage, upstream.auth is not None, sessions, routed_memory)
        self._forwarding = Forwarding(settings.listen)
        copies = capture is not None and capture.passthrough and capture.bodies
        self._router = Router(
            settings, self._forwarding, upstream.auth, manage is not None, sessions is not None, copies
        )
        self._admission = Admission(settings.admission, per_client_limit(settings))
        self.limits_requests = self._admission.limited
        self._client_header = settings.admission.client_header.lower().encode("ascii")

    def exchange(self, client: ClientConnection, request: Request) -> Exchange:
        """Begin the exchange that handles `request`; `finished` ends it."""
        exchange = self._router.exchange(self, client, request)
        self.lifecycle.running += 1
        if exchange.reads_body:
            self.lifecycle.runs.add(exchange)
        return exchange

    def admit(self, exchange: Exchange) -> None:
        """Start the exchange, at once or when it is its turn, or refuse it. A copy takes no client's turn."""
        if exchange.client.mirror is not None:
            exchange.start()
            return

        def then(refusal: GatewayError | None) -> None:
            try:
                if refusal is None:
                    exchange.start()
                else:
                    exchange.refuse(refusal)
            except Exception:  # its caller has other exchanges to admit
                exchange.break_off()

        try:
            ticket = exchange.ticket = self._admission.enter(self.client_key(exchange), then)
        except GatewayError as refusal:
            exchange.refuse(refusal)
            return
        if ticket.admitted:
            exchange.start()
        elif not exchange.outbound.complete:
            exchange.client.pause_reading()

    def client_key(self, exchange: Exchange) -> str:
        """Identify the client by the configured header, if the request has it, else by the client's address."""
        if self._client_header:
            for name, value in exchange.request.fields.pairs():
                if name.lower() == self._client_header:
                    return value.decode("latin-1")
        return self._forwarding.client(exchange.request.fields.lines, exchange.client.peer)

    def finished(self, exchange: Exchange) -> None:
        """Release what the exchange held; it is over, however it ended. A fault here leaves its response as it is."""
        try:
            if exchange.ticket is not None:
                exchange.ticket.leave()
        except Exception:
            self.log.internal_error(exchange)
        self.lifecycle.exchange_finished()
        if exchange.reads_body:
            self.lifecycle.runs.discard(exchange)
        try:
            self.log.finished(exchange)
            capture = self.capture
            if capture is not None and (exchange.is_recorded if exchange.reads_body else capture.passthrough):
                capture.add(exchange, time.monotonic())
        except Exception:
            self.log.internal_error(exchange)

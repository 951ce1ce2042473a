"""The data port: what all its connections share, and which kind of exchange each request becomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from typing_extensions import override

from gateway.config.schema import Settings
from gateway.errors import GatewayError
from gateway.http1.request_heads import COUNTED, MOST_FORWARDS, Fields, Request, RequestReader
from gateway.http1.response_heads import ResponseHead
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.observe.secrets import is_secret_header
from gateway.observe.trace_context import NewTraces
from gateway.ports import Answer, ExecuteHandler, ManageHandler, ProfileCache, RoutedMemory, SessionHandler
from gateway.proxy.admission import Admission, per_client_limit
from gateway.proxy.capture import Bodies, BodyCopy, Capture, Captured, ResponseCopy
from gateway.proxy.client_connection import ClientConnection
from gateway.proxy.dispatch import Dispatcher
from gateway.proxy.exchange import Exchange, ExchangePort
from gateway.proxy.forwarded import Forwarding
from gateway.proxy.interfaces import Client
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.memory_read import MemoryRead, MemorySearch, is_small_search
from gateway.proxy.request_log import RequestLog
from gateway.proxy.request_receiver import Backlog
from gateway.proxy.routes import MANAGED, RUNS, Intent, Route, intent_of
from gateway.proxy.run import Run
from gateway.routing.marks import PREFIX, split_path
from gateway.upstream.auth.authenticator import Authenticator
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


class _Copied(Exchange):
    """Copies the bodies, whatever else its other base class does with them."""

    __slots__ = ()

    @override
    def begin(self, piece: bytes, complete: bool) -> None:
        self._request_copy = BodyCopy(self._limit)
        self._request_copy.add(piece, complete)
        self._response_copy = None
        super().begin(piece, complete)

    @property
    def _limit(self) -> int:
        capture = self._port.capture
        return capture.body_limit if capture is not None else 0

    @override
    def upload(self, piece: bytes, complete: bool) -> None:
        if not self._request_copy.complete:  # what follows belongs to a tunnel
            self._request_copy.add(piece, complete)
        super().upload(piece, complete)

    @override
    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        is_tunnel = head.status == 101  # what follows does not belong to a body
        first, last = (b"", True) if is_tunnel else (piece, complete)
        self._response_copy = ResponseCopy(self._limit, head, self.outbound.decode, first, last)
        super().on_head(head, piece, complete)

    @override
    def on_body(self, piece: bytes, complete: bool) -> None:
        if self.status != 101:
            assert self._response_copy is not None
            self._response_copy.add(piece, complete)
        super().on_body(piece, complete)

    @property
    @override
    def held(self) -> int:  # type: ignore[override]
        copies = getattr(self, "_request_copy", None), getattr(self, "_response_copy", None)
        return sum(copy.held for copy in copies if copy is not None)

    @override
    def captured(self, ended: float) -> Captured:
        if not hasattr(self, "_request_copy"):  # refused before `begin`: the first bytes of its body are not valid
            return self._captured(ended, Bodies(BodyCopy(self._limit), self.request.fields.chunked))
        bodies = Bodies(self._request_copy, self.request.fields.chunked, response=self._response_copy)
        return self._captured(ended, bodies)


class CopiedExchange(_Copied):
    """See `Exchange`."""

    __slots__ = ()


class CopiedMemoryRead(_Copied, MemoryRead):
    """See `MemoryRead`."""

    __slots__ = ()


class CopiedMemorySearch(_Copied, MemorySearch):
    """See `MemorySearch`."""

    __slots__ = ()


_METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, TRACE"
_IDENTITY = "x-proxy-"
"""Prefix of headers with which a proxy tells the cluster who the user is."""


def is_last_hop(request: Request) -> bool:
    """Return True if the gateway must answer the request itself."""
    left = request.fields.max_forwards
    return left is not None and request.method in COUNTED and not left.strip(b"0")


HeadEdit = Callable[[Request, str], Request]
"""Returns the request to go on with; the one that it got if nothing changes. str: the address of the client."""


def head_edits(forwarding: Forwarding) -> tuple[HeadEdit, ...]:
    """Return what the gateway changes in the head of every request, in order, before anything else sees it.

    What depends on the connection to the cluster comes later: headers per hop and Host (`Fields.lines_for`), length and
    trace of a run (`gateway.proxy.run`), credentials (`gateway.upstream.auth`).

    An edit that adds a header takes the client's own line of that name away, and widens the limits of the head, as
    `Forwarding.of` does. A client can't have it removed (`Connection: X-Mine`) if it is in `PROTECTED` of
    `gateway.http1.fields`; another cluster of a route gets it if it is in `OPEN_HEADERS` of `gateway.routing.caller`.
    """
    return (with_one_hop_less, *((forwarding.of,) if forwarding.changes else ()))


def with_one_hop_less(request: Request, _: str = "") -> Request:
    """Return the request with the `Max-Forwards` of an OPTIONS or a TRACE, which is above 0, reduced by one."""
    fields = request.fields
    if fields.max_forwards is None or request.method not in COUNTED:
        return request
    digits = fields.max_forwards.lstrip(b"0")
    left = int(digits) - 1 if len(digits) < len(str(MOST_FORWARDS)) else MOST_FORWARDS
    lines = [b"%b: %d" % (line[:12], left) if line[:13].lower() == b"max-forwards:" else line for line in fields.lines]
    head = b"\r\n".join((*lines, b"", b""))
    return Request(request.method, request.target, request.minor, Fields(head, 0, request.minor, fields.limits))


class LastHop(Exchange):
    """An OPTIONS or a TRACE that the gateway responds to, even if more of its body follows."""

    __slots__ = ()

    @override
    def start(self) -> None:
        self.reply(_reflect(self.request) if self.request.method == b"TRACE" else Answer(200, {"Allow": _METHODS}, b""))


def _reflect(request: Request) -> Answer:
    """Return the request as `message/http`, without headers that hold credentials (RFC 9110, 9.3.8)."""
    lines = [line for line in request.fields.lines if not _is_sensitive(line.partition(b":")[0].decode("ascii"))]
    first = b"%b %b HTTP/1.%d" % (request.method, request.target, request.minor)
    return Answer(200, {"Content-Type": "message/http"}, b"\r\n".join((first, *lines, b"", b"")))


def _is_sensitive(name: str) -> bool:
    return is_secret_header(name) or name.lower().startswith(_IDENTITY)


_MARK = f"/{PREFIX}".encode()


def _is_marked(request: Request) -> bool:
    """Return True for a request about a conversation or a task whose id has the mark of a route's target."""
    return _MARK in request.target and bool(split_path(request.method.decode("ascii"), request.target)[0])


_PASSTHROUGH, _READ_MEMORY = Intent.PASSTHROUGH, Intent.READ_MEMORY


class Router:
    """Makes the exchange for each request. manages, shows_sessions: there is a use case for that.

    copies: bodies that pass unchanged are recorded.
    """

    def __init__(
        self,
        settings: Settings,
        forwarding: Forwarding,
        auth: Authenticator | None,
        manages: bool,
        shows_sessions: bool = False,
        copies: bool = False,
    ) -> None:
        self._exchange = CopiedExchange if copies else Exchange
        self._memory_read = CopiedMemoryRead if copies else MemoryRead
        self._memory_search = CopiedMemorySearch if copies else MemorySearch
        self._edits = head_edits(forwarding)
        self._auth = auth
        self._shows_sessions = shows_sessions
        self._shows_memory = settings.memory.readable
        self._has_marks = bool(settings.agents.routes)
        self._handled_intents = (
            *RUNS,
            *(MANAGED if manages else ()),
            *((Intent.SESSION,) if shows_sessions else ()),
        )

    def exchange(self, port: ExchangePort, client: Client, request: Request) -> Exchange:
        """Make the exchange for `request`, whose head is changed as the settings say."""
        route = intent_of(request.method, request.target)
        if is_last_hop(request):
            return LastHop(port, client, request, route)
        for edit in self._edits:
            request = edit(request, client.peer)
        if self._has_marks and _is_marked(request):
            return Run(port, client, request, Route(Intent.ROUTED_MEMORY))
        handled = route.intent is not _PASSTHROUGH and route.intent in self._handled_intents
        if handled or (self._auth is not None and self._auth.needs_body and request.has_body):
            return Run(port, client, request, route)
        if self._shows_sessions and is_small_search(request, route):
            return self._memory_search(port, client, request, route, self._shows_memory)
        if self._shows_memory and route.intent is _READ_MEMORY:
            return self._memory_read(port, client, request, route)
        return self._exchange(port, client, request, route)

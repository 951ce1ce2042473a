"""One request of a client and its response, relayed piece by piece between the two connections.

Everything runs in the event loop's callbacks of either connection. When one side is slow, the other one is paused.
"""

from __future__ import annotations

import asyncio
import time
from random import getrandbits
from typing import Protocol

from gateway.config.schema import Limits
from gateway.errors import GatewayError
from gateway.http1 import state
from gateway.http1.request_heads import Request
from gateway.http1.response_heads import ResponseHead
from gateway.http1.state import EXCHANGE, ExchangeEvent
from gateway.observe.record import TraceContext
from gateway.ports import Answer, ProfileCache
from gateway.proxy import error_responses
from gateway.proxy.admission import Ticket
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.capture import Capture, Captured, Passed
from gateway.proxy.dispatch import Dispatcher
from gateway.proxy.interfaces import Client
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.relayed_head import encode_chunk, relayed_head
from gateway.proxy.request_log import RequestLog
from gateway.proxy.routes import WRITES, Intent, Route
from gateway.upstream.client import Upstream
from gateway.upstream.nodes import may_retry
from gateway.upstream.outbound import Buffers, OutboundRequest

_JOIN = 64 * 1024
"""A head and a piece of a body up to this size are joined for one write; beyond it, the copy costs more."""
_BODY_WAIT = 0.2
"""Seconds in which the first piece of a body should follow its head; after that, the head is sent without it."""

# Module constants, because an attribute of an Enum takes four times as long to look up.
_WAITING, _SENT, _ANSWERED, _TUNNEL, _FINISHED = state.Exchange
_PASSTHROUGH = Intent.PASSTHROUGH
SEND, _ANSWER, _SWITCH, _FINISH = (EXCHANGE.on(event) for event in ExchangeEvent)


def new_id() -> str:
    """Return an id that no other request has, of any gateway: 16 hexadecimal digits. It is no secret."""
    return f"{getrandbits(64):016x}"


class ExchangePort(Protocol):
    """The data port, as exchanges use it.

    own_host: `Host` is replaced by the cluster's. trace_ratio: `telemetry.traces.ratio`; None if traces are off.
     capture: None if nothing is
    recorded.
    """

    upstream: Upstream
    profiles: ProfileCache
    dispatcher: Dispatcher
    lifecycle: Lifecycle
    log: RequestLog
    limits: Limits
    own_host: bool
    trace_ratio: float | None
    capture: Capture | None

    def admit(self, exchange: Exchange) -> None:
        """Start the exchange when it is its turn, or refuse it."""

    def finished(self, exchange: Exchange) -> None:
        """Release what the exchange held."""


class Exchange:
    """A request that is passed through. It owns the request to the cluster; see `gateway.upstream.outbound`.

    status: of the response; 0 until there is one, and when it was cut. For the recorder: head, answered_at: the
    cluster's response, and when it began (0 without one). answer, error: the gateway's own response.
    """

    __slots__ = (
        "_chunk", "_copies", "_half_open", "_id", "_keep", "_pending", "_pending_size", "_port", "_state", "answer",
        "answered_at", "arrived", "client", "error", "head", "outbound", "request", "route", "started", "status",
        "ticket",
    )  # fmt: skip

    _copies: tuple[BodyCopy, ResponseCopy]
    """Copies of both bodies; only `gateway.proxy.copied` makes them."""
    trace: TraceContext | None = None
    """Set for runs of agents, if traces are on."""
    is_recorded = True
    """The recorder gets the exchange, if it reads the body."""
    reads_body = False
    """The exchange needs the data of the request's body; otherwise the body is relayed with its chunk lines."""

    def __init__(self, port: ExchangePort, client: Client, request: Request, route: Route) -> None:
        outbound = self.outbound = OutboundRequest(self, request.method, request.target, port.upstream.timeouts)
        outbound.upgrade = request.fields.upgrade
        outbound.expects = request.fields.expectation
        outbound.decode = request.minor == 0
        self.client = client
        self.request = request
        self.route = route
        self.started = self.arrived = time.monotonic()
        self.status = 0
        self.head: ResponseHead | None = None
        self.answered_at = 0.0
        self.answer: Answer | None = None
        self.error: GatewayError | None = None
        self.ticket: Ticket | None = None
        self._port = port
        self._state = _WAITING
        self._chunk = self._half_open = self._keep = False
        self._id = ""
        self._pending: list[bytes] = []
        self._pending_size = 0

    @property
    def request_id(self) -> str:
        """The name of this request in the log and in the gateway's own responses."""
        if not self._id:
            self._id = new_id()
        return self._id

    # From the client

    def begin(self, piece: bytes, complete: bool) -> None:
        """The head has arrived. piece: the body as far as it has arrived. complete: that is the whole body."""
        self.outbound.complete = complete
        if piece and complete:
            self._pending.append(piece)
        elif piece:
            self._hold_back(piece)
        self._port.admit(self)

    def start(self) -> None:
        """Run the request, which has been admitted. It takes a connection once there is something to send on it."""
        if self.outbound.complete or self._pending or self.outbound.expects:
            self._send_on()
        else:
            asyncio.get_running_loop().call_later(_BODY_WAIT, self._send_head)

    def _send_on(self) -> None:
        self._state = SEND[self._state]
        self._port.upstream.send(self.outbound)
        if not self.outbound.complete:
            self._pause_client()

    def _send_head(self) -> None:
        """Send the head without any body: the client may wait for a response before it sends more."""
        if self._state is _WAITING:
            self._send_on()

    def upload(self, piece: bytes, complete: bool) -> None:
        """Relay more of the request's body, or of a tunnel."""
        outbound = self.outbound
        outbound.complete = complete
        if complete:
            self.arrived = time.monotonic()
        if outbound.connection is not None:
            outbound.connection.write([piece])
            return
        self._hold_back(piece)
        if self._state is not _WAITING:
            if not complete:
                self._pause_client()
            elif outbound.upload_waiter is not None and not outbound.upload_waiter.done():
                outbound.upload_waiter.set_result(None)
        elif self.ticket is None or self.ticket.admitted:
            self._send_on()

    def _hold_back(self, piece: bytes) -> None:
        self._pending.append(piece)
        self._pending_size += len(piece)

    def _pause_client(self) -> None:
        """Buffer no more of an incomplete body than `_JOIN` until there is a connection to send it on."""
        if self.outbound.connection is None and self._pending_size > _JOIN:
            self.client.pause_reading()

    def fail_upload(self, error: GatewayError) -> None:
        """End the exchange because the rest of the request's body is late or malformed; the cluster must not use it."""
        self.abandon()
        self._fail(error)

    def client_lost(self) -> None:
        """End the exchange because the client is gone. In a tunnel, what it sent last still reaches the cluster."""
        if self._state is _TUNNEL and self.outbound.connection is not None:
            self.outbound.connection.close()
        self.abandon()
        self.status = 0
        self._finish()

    def client_ended(self) -> bool:
        """Pass on the end of the client's half of a tunnel. Return True to keep the other half open."""
        connection = self.outbound.connection
        if self._half_open or connection is None or not connection.transport.can_write_eof():
            return False
        connection.transport.write_eof()
        self._half_open = True
        return True

    def client_writable(self, writable: bool) -> None:
        """The connection to the client can, or can no longer, take more of the response."""
        if self.outbound.connection is not None:
            if writable:
                self.outbound.connection.resume_reading()
            else:
                self.outbound.connection.pause_reading()

    def may_keep(self) -> bool:
        """Return True if the client's connection can be used again after this request."""
        return self.request.fields.keep_alive and self.outbound.complete and not self._port.lifecycle.draining

    def abandon(self) -> None:
        """Stop working on the request; nothing of a response will arrive."""
        self.outbound.abandon()

    # Towards the cluster; see `RequestOwner`

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """See `RequestOwner`: the client's own lines without those that are per hop."""
        pieces: Buffers = ()
        if self._pending:
            pieces, self._pending = self._pending, []
        return self.request.fields.lines_for(self._host(authority)), pieces

    def _host(self, authority: bytes) -> bytes:
        """Return the Host to send; empty: the client's own."""
        return authority if self._port.own_host or self.request.fields.host is None else b""

    def repeatable(self) -> bool:
        """See `RequestOwner`."""
        request = self.request
        return not request.has_body and may_retry(request.method.decode("ascii"), True, False, request.target)

    def on_connection(self) -> None:
        """See `RequestOwner`."""
        if not self.outbound.complete or self._pending:
            assert self.outbound.connection is not None
            for piece in self._pending:
                self.outbound.connection.write([piece])
            self._pending = []
            self.client.resume_reading()

    def on_writable(self, writable: bool) -> None:
        """See `RequestOwner`: the client is paused, or read again."""
        if writable:
            self.client.resume_reading()
        elif not self.outbound.complete or self._state is _TUNNEL:
            self.client.pause_reading()

    # From the cluster; see `RequestOwner`

    def on_interim(self, head: ResponseHead) -> None:
        """See `RequestOwner`. HTTP/1.0 has no such responses (RFC 9110, 15.2)."""
        if self.request.minor:
            self.client.transport.write(b"\r\n".join((head.first_line()[:-2], *head.end_to_end(), b"\r\n")))

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if self.route.kind:
            self._invalidate()  # before the client learns that its write is done
        self.answered_at = now = time.monotonic()
        self._port.log.response_began(self, now)
        self.head = head
        self.status = head.status
        if head.status == 101:
            self._state = _SWITCH[self._state]
            self.client.transport.write(head.raw + piece)
            self.client.tunnel()
            return
        self._state = _ANSWER[self._state]
        start, self._chunk, self._keep = relayed_head(head, self.request, self.added_lines(), self.may_keep())
        if self._chunk:
            piece = encode_chunk(piece, complete)
        if len(piece) <= _JOIN:
            self.client.transport.write(start + piece)
        else:
            self.client.transport.writelines((start, piece))
        if complete:
            self._end()

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if self._chunk:
            piece = encode_chunk(piece, complete)
        if piece:
            self.client.transport.write(piece)
        if complete:
            self._end()

    def on_end(self) -> bool:
        """See `RequestOwner`."""
        if self._half_open or not self.client.transport.can_write_eof():
            return False
        self.client.transport.write_eof()
        self._half_open = True
        return True

    def on_failure(self, error: GatewayError) -> None:
        """See `RequestOwner`."""
        self._fail(error)

    def added_lines(self) -> bytes:
        """Return the header lines that the gateway adds to the response, each with its CRLF."""
        return b""

    # The end

    def reply(self, answer: Answer) -> None:
        """Send a response of the gateway's own."""
        self.answer = answer
        self.status = answer.status
        keep = self.may_keep()
        self._finish()
        self.client.transport.write(error_responses.encode(answer, self.request_id, close=not keep))
        self.client.done(keep)

    def refuse(self, error: GatewayError) -> None:
        """Send an error response of the gateway's own."""
        self._port.log.failed(self, error)
        self.error = error
        self.status = error.status
        self._finish()
        self.client.refuse(error, self)

    def _end(self) -> None:
        tunnel = self._state is _TUNNEL
        self._finish()
        if tunnel:
            self.client.close()
        else:
            self.client.done(self._keep)

    def _fail(self, error: GatewayError) -> None:
        if self._state is _ANSWERED or self._state is _TUNNEL:  # the client must not take the response for complete
            self._port.log.failed(self, error)
            self.error = error
            self.status = 0
            self._finish()
            self.client.cut()
        else:
            self.refuse(error)

    def _invalidate(self) -> None:
        """Drop from the cache what a write may have changed."""
        if self.route.intent in WRITES:
            self._port.profiles.invalidate(self.route.kind, self.route.id or None)

    def _finish(self) -> None:
        if self.route.kind and (self._state is _WAITING or self._state is _SENT):
            self._invalidate()  # the cluster may have applied a write without a response
        self._state = _FINISH[self._state]
        self.outbound.abandon()
        self._port.finished(self)

    def passed(self, now: float) -> Passed | None:
        """Return what the recorder gets of this exchange, which ends now; None if `captured` has more."""
        if self.route.intent is not _PASSTHROUGH or self.error is not None or self._id:
            return None
        request, client = self.request, self.client
        return (
            request.fields,
            request.method,
            request.target,
            request.minor,
            client.number,
            client.peer,
            self.started,
            self.answered_at,
            now,
            self.status,
            self.head,
        )

    def captured(self, now: float) -> Captured:
        """Return what the recorder gets of this exchange, which ends now."""
        return Captured(
            self.request_id,
            self.request,
            self.route,
            self.client.number,
            self.client.peer,
            self.started,
            now,
            self.status,
            self.answered_at,
            self.head,
            self.answer,
            self.error,
        )

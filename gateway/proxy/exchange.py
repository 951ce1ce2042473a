"""One request of a client and its response: how they begin, how pieces pass between the two connections, how they end.

They end with the cluster's response, with one of the gateway's own, or without the client. Everything runs in the event
loop's callbacks of either connection. When one side is slow, the other one is paused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Set
from typing import Protocol

from gateway.config.schema import Limits
from gateway.errors import GatewayError
from gateway.http1 import state
from gateway.http1.fields import without
from gateway.http1.request_heads import Request
from gateway.http1.response_heads import BODYLESS, ResponseHead
from gateway.http1.rules import HeadLimits
from gateway.http1.state import EXCHANGE, ExchangeEvent
from gateway.observe.record import TraceContext
from gateway.observe.trace_context import NewTraces
from gateway.ports import Answer, ProfileCache
from gateway.proxy import error_responses
from gateway.proxy.admission import Ticket
from gateway.proxy.capture import Bodies, BodyCopy, Capture, Captured, ResponseCopy, capture_error
from gateway.proxy.dispatch import Dispatcher
from gateway.proxy.interfaces import Client
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.request_log import RequestLog, new_id
from gateway.proxy.routes import WRITES, Route
from gateway.upstream.client import Upstream
from gateway.upstream.nodes import may_retry
from gateway.upstream.outbound import Buffers, OutboundRequest

_JOIN = 64 * 1024
"""A head and a piece of a body up to this size are joined for one write; beyond it, the copy costs more."""
_BODY_WAIT = 0.2
"""Seconds in which the first piece of a body should follow its head; after that, the head is sent without it."""

_WAITING, _SENT, _ANSWERED, _TUNNEL, _ = state.Exchange
SEND = EXCHANGE.on(ExchangeEvent.SEND)
_ANSWER = EXCHANGE.on(ExchangeEvent.ANSWER)
_SWITCH = EXCHANGE.on(ExchangeEvent.SWITCH)
_FINISH = EXCHANGE.on(ExchangeEvent.FINISH)


class ExchangePort(Protocol):
    """The data port, as exchanges use it. clusters: all of them by name, "" for `upstream`.

    new_traces: None if traces are off. capture: None if nothing is recorded. limits_requests: the number of running
    requests is limited, so `admit` must be asked. notice_header: `answers.notice_header`.
    """

    upstream: Upstream
    clusters: Mapping[str, Upstream]
    profiles: ProfileCache
    lifecycle: Lifecycle
    log: RequestLog
    dispatcher: Dispatcher
    limits: Limits
    limits_requests: bool
    notice_header: bool
    new_traces: NewTraces | None
    capture: Capture | None

    def admit(self, exchange: Exchange) -> None:
        """Start the exchange when it is its turn, or refuse it."""

    def finished(self, exchange: Exchange) -> None:
        """Release what the exchange held."""


class Exchange:
    """A request that is passed through, and its response.

    It owns the request to the cluster; see `gateway.upstream.outbound`. status: of the response; 0 until there is one,
    and when it was cut. For the recorder: head, answered_at: the cluster's response, and when it began (0 without one).
    answer, error: a response of the gateway's own.
    """

    __slots__ = (
        "_chunk", "_half_open", "_handed_over", "_id", "_keep", "_pending", "_pending_size", "_port", "_request_copy",
        "_response_copy", "_state", "answer", "answered_at", "arrived", "client", "error", "head", "outbound",
        "request", "route", "started", "status", "ticket",
    )  # fmt: skip

    _request_copy: BodyCopy
    _response_copy: ResponseCopy | None
    """Copies of both bodies; only `gateway.proxy.data_port` makes them."""
    is_recorded = True
    """The recorder gets the exchange, if it reads the body."""
    held: int = 0
    """Bytes of bodies that it keeps for the recorder, but for the first piece of the response, which is small."""
    reads_body = False
    """The exchange needs the data of the request's body; otherwise the body is relayed with its chunk lines."""

    def __init__(self, port: ExchangePort, client: Client, request: Request, route: Route) -> None:
        fields, timeouts = request.fields, port.upstream.timeouts
        self.outbound = OutboundRequest(
            self, request.method, request.target, timeouts, request.minor == 0, fields.expectation, fields.upgrade
        )
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
        self._handed_over = 0  # number of pending pieces that `parts` has returned

    @property
    def request_id(self) -> str:
        """The name of this request in the log and in the gateway's own responses."""
        if not self._id:
            self._id = new_id()
        return self._id

    @property
    def trace(self) -> TraceContext | None:
        """The trace of a run of an agent, if traces are on."""
        return None

    # From the client

    def begin(self, piece: bytes, complete: bool) -> None:
        """The head has arrived. piece: the body as far as it has arrived. complete: that is the whole body."""
        self.outbound.complete = complete
        if piece and complete:
            self._pending.append(piece)
        elif piece:
            self._hold_back(piece)
        if self._port.limits_requests:
            self._port.admit(self)
        else:
            self.start()

    def start(self) -> None:
        """Run the request, which has been admitted. It takes a connection once there is something to send on it."""
        if self.outbound.complete or self._pending or self.outbound.expects:
            self._send_on()
        else:
            self.client.resume_reading()  # it was paused if the request had to wait
            asyncio.get_running_loop().call_later(_BODY_WAIT, self._send_head)

    def _send_on(self) -> None:
        self._state = SEND[self._state]
        self._port.upstream.send(self.outbound)
        if not self.outbound.complete:
            self._pause_client()

    def _send_head(self) -> None:
        """Send the head without any body: the client may wait for a response before it sends more."""
        if self._state is _WAITING:
            try:
                self._send_on()
            except Exception:  # the loop would only log it
                self.break_off()

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

    # Towards the cluster; see `RequestOwner`

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """See `RequestOwner`: the client's own lines without those that are per hop."""
        pieces: Buffers = ()
        if self._pending:
            pieces = self._pending.copy()
            self._handed_over = len(pieces)
        return self.request.fields.lines_for(self._host(authority)), pieces

    def _host(self, authority: bytes) -> bytes:
        """Return the Host to send; empty: the client's own."""
        return authority if self._port.upstream.own_host or self.request.fields.host is None else b""

    def repeatable(self) -> bool:
        """See `RequestOwner`."""
        request = self.request
        return not request.has_body and may_retry(request.method.decode("ascii"), True, False, request.target)

    def on_connection(self) -> None:
        """See `RequestOwner`."""
        if self._pending:
            rest, self._pending = self._pending[self._handed_over :], []
        else:
            rest = self._pending
        if not self.outbound.complete or rest:
            connection = self.outbound.connection
            assert connection is not None
            for piece in rest:
                connection.write([piece])
            self.on_writable(not connection.stalled)

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
        if self.route.intent in WRITES:
            self._invalidate()  # before the client learns that its write is done
        if not self.answered_at:
            self.response_began()
        self.head = head
        status = self.status = head.status
        if status == 101:
            self._state = _SWITCH[self._state]
            self.client.transport.write(head.raw + piece)
            self.client.tunnel()
            return
        start, self._chunk, self._keep = relayed_head(head, self.request, self.added_lines(), self.may_keep())
        self._state = _ANSWER[self._state]
        if self._chunk:
            piece = encode_chunk(piece, complete)
        if len(piece) <= _JOIN:
            self.client.transport.write(start + piece)
        else:
            self.client.transport.writelines((start, piece))
        if complete:
            self._end()

    def response_began(self) -> None:
        """Note that the head of the cluster's response has arrived."""
        self.answered_at = now = time.monotonic()
        self._port.log.response_began(self, now)

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

    def may_keep(self) -> bool:
        """Return True if the client's connection can be used again after this request."""
        return self.request.fields.keep_alive and self.outbound.complete and not self._port.lifecycle.draining

    def _invalidate(self) -> None:
        """Drop from the cache what a write may have changed."""
        self._port.profiles.invalidate(self.route.kind, self.route.id or None)

    # Its end

    def reply(self, answer: Answer) -> None:
        """Send a response of the gateway's own."""
        self.answer = answer
        self.status = answer.status
        keep = self.may_keep() and self.request.minor == 1  # for HTTP/1.0, the response would have to say so
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

    def fail_upload(self, error: GatewayError) -> None:
        """End the exchange because the rest of the request's body is late or malformed; the cluster must not use it."""
        try:
            self.abandon()
            self._fail(error)
        except Exception:
            self.break_off()

    def break_off(self) -> None:
        """End the exchange after an exception that nothing else handles: its client would wait for ever."""
        try:
            self._fail(self._port.log.internal_error(self))
        except Exception:  # it has finished, but its response was not sent
            self._port.log.internal_error(self)
            self.client.cut()

    def client_lost(self) -> None:
        """End the exchange because the client is gone, which is the usual end of a tunnel.

        What the client sent last in a tunnel still reaches the cluster.
        """
        tunnel = self._state is _TUNNEL
        if tunnel and self.outbound.connection is not None:
            self.outbound.connection.close()
        self.abandon()
        if not tunnel:
            self.status = 0
        self._finish()

    def abandon(self) -> None:
        """Stop working on the request; nothing of a response will arrive."""
        self.outbound.abandon()

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

    def _finish(self) -> None:
        unanswered = self._state is _WAITING or self._state is _SENT
        self._state = _FINISH[self._state]
        try:
            if unanswered and self.route.intent in WRITES:
                self._invalidate()  # the cluster may have applied a write without a response
            self.outbound.abandon()
        finally:
            self._port.finished(self)

    def was_planned_with(self, documents: Set[str], before: float) -> bool:
        """See `gateway.proxy.lifecycle.PlannedRun`."""
        return False

    def captured(self, ended: float) -> Captured:
        """Return what the recorder gets of the exchange. ended: when it ended."""
        return self._captured(ended)

    def _captured(self, ended: float, bodies: Bodies | None = None) -> Captured:
        """Return all that the recorder gets. Without an id, it makes one. bodies: None if they are not recorded."""
        request, answer, error = self.request, self.answer, self.error
        return Captured(
            self._id if answer is None and error is None else self.request_id,
            request.fields,
            request.method,
            request.target,
            request.minor,
            self.route,
            self.client.number,
            self.client.peer,
            self.started,
            ended,
            self.status,
            self.answered_at,
            self.head,
            answer,
            None if error is None else capture_error(error),
            bodies,
            self.trace,
        )


_LAST_CHUNK = b"0\r\n\r\n"
UNLIMITED = HeadLimits(line=2**24, head=2**24, fields=2**16)
"""For a head with other fields than the cluster's, which was within the limits that are configured."""
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_OF_THE_BODY = _FRAMING | {b"content-encoding", b"etag"}


def relayed_head(head: ResponseHead, request: Request, own: bytes, keep: bool) -> tuple[bytes, bool, bool]:
    """Return the head to send to the client, whether to send the body as chunks, and whether to keep the connection.

    head: the cluster's. own: header lines of the gateway's own, each with its CRLF. keep: the connection may be used
    again after this response.
    """
    modern = request.minor == 1
    if head.forwardable_verbatim and modern and keep:  # nothing below would change it
        return head.raw[:-2] + own + b"\r\n" if own else head.raw, False, True
    bodyless = request.method == b"HEAD" or head.status in BODYLESS
    chunk = False
    if not bodyless and head.length is None:
        chunk = modern and not head.chunked
        keep = keep and modern
        if modern and (chunk or not head.no_hop_headers):
            own += b"Transfer-Encoding: chunked\r\n"
    if not keep and modern:
        own += b"Connection: close\r\n"
    elif keep and not modern:
        own += b"Connection: keep-alive\r\n"
    verbatim = head.no_hop_headers and head.minor == 1 and (not head.chunked or (modern and not bodyless))
    lines = head.raw[:-2] if verbatim else head.first_line() + b"".join(line + b"\r\n" for line in head.end_to_end())
    return b"%b%b\r\n" % (lines, own), chunk, keep


def head_with_length(
    head: ResponseHead, length: int, changed: bool = True, replaced: Iterable[str] = ()
) -> ResponseHead:
    """Return the head for a whole body of `length` bytes. changed: the body is another one than the cluster's.

    replaced: names of headers to leave out, as others take their place.

    A response that has no body keeps its head: a 204 has no length, and that of a 304 is another response's (RFC 9110,
    8.6).
    """
    if head.status in BODYLESS:
        return head
    dropped = (_OF_THE_BODY if changed else _FRAMING) | {name.lower().encode("ascii") for name in replaced}
    lines = (head.first_line()[:-2], *without(head.end_to_end(), dropped), b"Content-Length: %d" % length)
    return ResponseHead(b"\r\n".join((*lines, b"", b"")), UNLIMITED)


def encode_chunk(piece: bytes, complete: bool) -> bytes:
    """Encode a piece of a body as a chunk. complete: it is the last piece."""
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
    return chunk + _LAST_CHUNK if complete else chunk

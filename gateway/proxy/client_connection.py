"""A client's connection to the data port: reads requests one after the other, and writes their responses.

An idle connection costs this object and its transport: no task, no timer, no buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import time
from typing import Protocol

from gateway.config.schema import ClientTimeouts
from gateway.errors import GatewayError
from gateway.http1 import state
from gateway.http1.bodies import Body
from gateway.http1.head_buffer import RequestHeadBuffer
from gateway.http1.request_heads import Request, RequestReader
from gateway.http1.rules import Malformed
from gateway.http1.state import CLIENT, ClientEvent
from gateway.observe.traffic_metrics import Received
from gateway.proxy import error_responses
from gateway.proxy.backlog import Backlog
from gateway.proxy.interfaces import ClientExchange
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.request_log import RequestLog
from gateway.upstream.deadlines import NO_DEADLINE

_HELD = 64 * 1024
"""Bytes of pipelined requests that are read ahead while a response is under way."""
_STEPS = 256
"""Steps through the chunks of a body per read of a connection; the rest waits in the backlog."""
_LARGE = 250_000
"""Bytes that fill the loop's read buffer: more is waiting, and libuv would read up to 32 times in a row."""
_LINGER = 2.0
"""Seconds that a client has to receive the last response, while its input is discarded. Closing at once would reset the
connection, and the client could lose the response (RFC 9112, 9.6)."""

_RESET = struct.pack("ii", 1, 0)
_numbers = itertools.count(1)

# Module constants, because an attribute of an Enum takes four times as long to look up.
_IDLE, _HEAD, _BODY, _RESPONSE, _PIPELINED, _TUNNEL, _CLOSING, _CLOSED = state.Client
_HEAD_BEGAN, _HEAD_READ, _REQUEST_READ, _RESPONSE_SENT, _NEXT_BUFFERED, _NEXT, _SWITCHED, _LAST_SENT, _LOST = (
    CLIENT.on(event) for event in ClientEvent
)


class ConnectionPort(Protocol):
    """The data port, as its connections use it."""

    timeouts: ClientTimeouts
    reader: RequestReader
    backlog: Backlog
    lifecycle: Lifecycle
    log: RequestLog
    received: Received

    def exchange(self, client: ClientConnection, request: Request) -> ClientExchange:
        """Begin the exchange that handles `request`."""


class ClientConnection(asyncio.Protocol):
    """A client's connection.

    exchange: handles the current request; None between requests. port: handles the next request. number: see `Client`.
    """

    __slots__ = (
        "_body",
        "_body_began",
        "_body_size",
        "_head",
        "_held",
        "_paused_at",
        "_peer",
        "_received_at",
        "_state",
        "_unsent",
        "deadline",
        "exchange",
        "number",
        "port",
        "stalled",
        "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, port: ConnectionPort) -> None:
        self.port = port
        self.number = next(_numbers)
        self._peer: str | None = None
        self._state = _IDLE
        self._head: RequestHeadBuffer | None = None
        self._body: Body | None = None
        self._body_began = 0.0
        self._body_size = 0
        self._paused_at = 0.0
        self._held = b""
        self._unsent = 0
        self._received_at = 0.0
        self.exchange: ClientExchange | None = None
        self.stalled = False
        self.deadline = NO_DEADLINE

    @property
    def idle(self) -> bool:
        """The connection is between two requests."""
        return self._state is _IDLE

    @property
    def peer(self) -> str:
        """The client's address; "" if the socket has none."""
        if self._peer is None:
            peer = self.transport.get_extra_info("peername")
            self._peer = str(peer[0]) if peer else ""
        return self._peer

    def _within(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds if seconds else NO_DEADLINE

    def _within_body(self) -> None:
        """Set the deadline for more of the body: `timeouts.body`, or when the body is slower than `timeouts.body_rate`.

        The time in which the client is paused does not count.
        """
        times = self.port.timeouts
        deadline = time.monotonic() + times.body if times.body else NO_DEADLINE
        if times.body_rate:
            enough_until = max(times.body_rate_after, self._body_size / times.body_rate)
            deadline = min(deadline, self._body_began + enough_until)
        self.deadline = deadline

    # From the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection. The first request has `timeouts.head` seconds to arrive."""
        self.transport = transport  # type: ignore[assignment]
        self.port.lifecycle.connections.add(self)
        self._within(self.port.timeouts.head)

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        self.port.received.size += len(data)
        state = self._state
        if state is _IDLE or state is _HEAD:
            self._read_head(data)
        elif state is _BODY:
            self._read_body(data)
        elif state is _RESPONSE or state is _PIPELINED:
            self._held += data
            if len(self._held) > _HELD:
                self.transport.pause_reading()
        elif state is _TUNNEL and self.exchange is not None:
            self.exchange.upload(data, False)

    def eof_received(self) -> bool:
        """Handle the end of the client's input. It looks like a disconnect, so the current request is dropped."""
        return self._state is _TUNNEL and self.exchange is not None and self.exchange.client_ended()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange; the transport is gone."""
        self.port.lifecycle.connections.discard(self)
        self._state = _LOST[self._state]
        self.deadline = NO_DEADLINE
        if (exchange := self.exchange) is not None:
            self.exchange = None
            exchange.client_lost()

    def pause_writing(self) -> None:
        """Pause the response: the client does not read."""
        self.stalled = True
        self._within(self.port.timeouts.send)
        if self.exchange is not None:
            self.exchange.client_writable(False)

    def resume_writing(self) -> None:
        """Resume the response: the client reads again."""
        self.stalled = False
        self.deadline = NO_DEADLINE
        if self._state is _CLOSING:
            self._await_receipt()
        elif self.exchange is not None:
            self.exchange.client_writable(True)
        elif self._state is _PIPELINED:
            self._next()
        elif self._state is _IDLE or self._state is _HEAD:
            self._within(self.port.timeouts.keepalive)

    def expired(self) -> None:
        """Close the connection, or refuse the request: the deadline has passed."""
        if self._state is _CLOSING:
            self._expire_linger()
        elif self.stalled:
            self.transport.abort()
        elif self._state is _BODY and self.exchange is not None:
            self.exchange.fail_upload(error_responses.late("the rest of the request's body"))
        elif self.idle:
            self.transport.close()
        else:
            self.refuse(error_responses.late("the rest of the request's head"))

    # Reading

    def _read_head(self, data: bytes) -> None:
        reader = self.port.reader
        head = self._head or RequestHeadBuffer()
        try:
            found = head.feed(data, reader.limits)
            if found is None:
                self._head = head
                if self._state is _IDLE:
                    self._state = _HEAD_BEGAN[self._state]
                    self._within(self.port.timeouts.head)
                return
            self._head = None
            self._begin(reader.read(found[0]), found[1])
        except Malformed as exc:
            self.refuse(error_responses.malformed(exc))

    def _begin(self, request: Request, rest: bytes) -> None:
        exchange = self.port.exchange(self, request)
        body = request.fields.body(exchange.reads_body)
        piece = b""
        self.exchange = exchange
        if body is None:
            self._held = rest
            self._state = _REQUEST_READ[self._state]
            self.deadline = NO_DEADLINE
        else:
            self._body = body
            self._state = _HEAD_READ[self._state]
            self._body_began = 0.0
            self._body_size = 0
            try:
                piece = self._feed(body, rest)
            except Malformed as exc:  # the exchange exists, so it must be finished
                exchange.refuse(error_responses.malformed(exc))
                return
        exchange.begin(piece, self._state is _RESPONSE)

    def _read_body(self, data: bytes) -> None:
        body, exchange = self._body, self.exchange
        assert body is not None
        assert exchange is not None
        try:
            piece = self._feed(body, data)
        except Malformed as exc:
            exchange.fail_upload(error_responses.malformed(exc))
            return
        if piece or body.done:
            exchange.upload(piece, body.done)

    def _feed(self, body: Body, data: bytes) -> bytes:
        """Return what may be sent on of a body. If that takes long, the rest of `data` waits in the backlog."""
        piece = body.feed(data, _STEPS)
        if body.done:
            self._held = body.rest
            self._body = None
            self._state = _REQUEST_READ[self._state]
            self.deadline = NO_DEADLINE
            return piece
        self._body_size += len(piece)
        self._body_began = self._body_began or time.monotonic()
        self._within_body()
        if body.unread or len(data) >= _LARGE:
            self.transport.pause_reading()
            self.port.backlog.add(self)
        return piece

    def continue_reading(self) -> None:
        """Continue with the body, buffered input first. Called by the backlog."""
        if self._state is not _BODY or self._paused_at or self._body is None:
            return
        if self._body.unread:
            self._read_body(b"")
        if not self._paused_at and (self._body is None or not self._body.unread):
            self.resume_reading()

    # For exchanges

    def pause_reading(self) -> None:
        """Pause the request's body. The client's deadline does not run meanwhile."""
        self.deadline = NO_DEADLINE
        if self._state is not _CLOSING:
            self._paused_at = self._paused_at or time.monotonic()
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume the request's body."""
        if self._paused_at:
            self._body_began += time.monotonic() - self._paused_at
            self._paused_at = 0.0
        if self._state is _CLOSING or len(self._held) > _HELD:
            return
        if self._state is _BODY and self._body is not None and self._body.unread:
            self.port.backlog.add(self)
            return
        self.transport.resume_reading()
        if self._state is _BODY:
            self._within_body()

    def paused_descriptor(self) -> int:
        """See `Pollable`."""
        if self.transport.is_reading() or self.transport.is_closing():
            return -1
        number: int = self.transport.get_extra_info("socket").fileno()
        return number

    def peer_gone(self, cut: bool) -> None:
        """See `Pollable`. In a tunnel, bytes that were sent before an orderly end are relayed first."""
        if cut or self._state is not _TUNNEL:
            self.transport.abort()

    def tunnel(self) -> None:
        """Relay all further bytes to the exchange: they belong to another protocol."""
        self._state = _SWITCHED[self._state]
        self._paused_at = 0.0
        held, self._held = self._held, b""
        self.transport.resume_reading()
        if held and self.exchange is not None:
            self.exchange.upload(held, False)

    def done(self, keep: bool) -> None:
        """Finish the response. keep: another request may follow on this connection."""
        self.exchange = None
        if self._state is _BODY or not keep:
            self._linger()
        elif self._held:
            self._state = _NEXT_BUFFERED[self._state]
            if not self.stalled:  # in another turn: a direct call would nest one level per pipelined request
                asyncio.get_running_loop().call_soon(self._next)
        else:
            self._state = _RESPONSE_SENT[self._state]
            if not self.stalled:
                self._within(self.port.timeouts.keepalive)

    def _next(self) -> None:
        """Read the next request from the buffered bytes."""
        if self._state is not _PIPELINED:
            return
        held, self._held = self._held, b""
        self._state = _NEXT[self._state]
        self._paused_at = 0.0
        self.transport.resume_reading()
        self._read_head(held)

    def refuse(self, error: GatewayError, exchange: ClientExchange | None = None) -> None:
        """Send an error of the gateway's own. The connection stays open only if the request was read completely."""
        keep = self._state is _RESPONSE and exchange is not None and exchange.may_keep()
        request_id = exchange.request_id if exchange is not None else self.port.log.no_request(error)
        bodyless = exchange is not None and exchange.request.method == b"HEAD"
        self.transport.write(error_responses.encode_error(error, request_id, close=not keep, bodyless=bodyless))
        if exchange is None:
            self._linger()
        elif keep:
            self.done(True)
        else:
            self.exchange = None
            self._linger()

    def cut(self) -> None:
        """Reset the connection in the middle of a response, so that the client does not take it for complete.

        An orderly close would end the body for an HTTP/1.0 client (RFC 9112, 6.3).
        """
        self.exchange = None
        self._state = _LAST_SENT[self._state]
        with contextlib.suppress(OSError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def cut_off(self) -> None:
        """Reset the connection and end its exchange."""
        exchange = self.exchange
        self.cut()
        if exchange is not None:
            exchange.client_lost()

    def close(self) -> None:
        """Send the buffered output, then close."""
        self.exchange = None
        self._linger()

    def _linger(self) -> None:
        """Close the connection after the client has received the last response; see `_LINGER`.

        The loop's TLS transports have no half-close. With TLS, the connection stays open for that time only if the
        client may still be sending.
        """
        unread = self._state is _BODY or bool(self._held)
        self._state = _LAST_SENT[self._state]
        self._body = None
        self._head = None
        self._held = b""
        self._paused_at = 0.0
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        elif not unread:
            self._within(self.port.timeouts.send)
            self.transport.close()
            return
        self.transport.resume_reading()
        self._received_at = time.monotonic()
        self._await_receipt()

    def _await_receipt(self) -> None:
        """Set the deadline for the client to receive the rest of the response and to close."""
        self._unsent = self.transport.get_write_buffer_size()
        self._within(min(_LINGER, self.port.timeouts.send or _LINGER))

    def _expire_linger(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if self.transport.is_closing():
            self.transport.abort()
        elif unsent < self._unsent:
            self._received_at = time.monotonic()
            self._await_receipt()
        elif not unsent:
            self.transport.close()
            self._within(_LINGER)
        elif self.port.timeouts.send and time.monotonic() - self._received_at >= self.port.timeouts.send:
            self.transport.abort()
        else:
            self._await_receipt()

"""A client's connection to the data port: begins the exchange of each request, ends its response, and closes.

`gateway.proxy.request_receiver` reads the requests; `LingeringClose` and `reset` are the two ways to close.

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

from typing_extensions import override

from gateway.errors import GatewayError
from gateway.http1 import state
from gateway.http1.request_heads import Request
from gateway.http1.rules import Malformed
from gateway.http1.state import CLIENT, ClientEvent
from gateway.ports import MirrorUse, SessionUse
from gateway.proxy import error_responses
from gateway.proxy.interfaces import ClientExchange
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.request_log import RequestLog
from gateway.proxy.request_receiver import ReceiverPort, RequestReceiver, Upload
from gateway.upstream.outbound import NO_DEADLINE, deadline_in

LINGER = 2.0
"""Seconds that a client has to receive the last response, while its input is discarded. Closing at once would reset the
connection, and the client could lose the response (RFC 9112, 9.6)."""

_RESET = struct.pack("ii", 1, 0)


class LingeringClose:
    """Closes a connection after the client has received the last response; see `LINGER`. Methods return a deadline.

    send: `timeouts.send`. The loop's TLS transports have no half-close. With TLS, the connection stays open for that
    time only if the client may still be sending.
    """

    __slots__ = ("_received_at", "_send", "_transport", "_unsent")

    def __init__(self, transport: asyncio.Transport, send: float) -> None:
        self._transport = transport
        self._send = send
        self._received_at = 0.0
        self._unsent = 0

    def start(self, unread: bool, ended: bool) -> float:
        """End the output. unread: the client may still be sending. ended: it has ended its half of the connection.

        asyncio's loop does not report that end again, so there is nothing to wait for once all has been written.
        """
        if ended and not self._transport.get_write_buffer_size():
            self._transport.close()
            return NO_DEADLINE
        if self._transport.can_write_eof():
            self._transport.write_eof()
        elif not unread:
            self._transport.close()
            return deadline_in(self._send)
        self._transport.resume_reading()
        self._received_at = time.monotonic()
        return self.await_receipt()

    def await_receipt(self) -> float:
        """Return the deadline for the client to receive the rest of the response and to close."""
        self._unsent = self._transport.get_write_buffer_size()
        return deadline_in(min(LINGER, self._send or LINGER))

    def expire(self) -> float:
        """Handle the deadline: wait on if the client still receives; else close or cut the connection."""
        unsent = self._transport.get_write_buffer_size()
        if self._transport.is_closing():
            self._transport.abort()
            return NO_DEADLINE
        if unsent < self._unsent:
            self._received_at = time.monotonic()
        elif not unsent:
            self._transport.close()
            return deadline_in(LINGER)
        elif self._send and time.monotonic() - self._received_at >= self._send:
            self._transport.abort()
            return NO_DEADLINE
        return self.await_receipt()


def reset(transport: asyncio.Transport) -> None:
    """Reset the connection in the middle of a response, so that the client does not take it for complete.

    An orderly close would end the body for an HTTP/1.0 client (RFC 9112, 6.3).
    """
    if (own := transport.get_extra_info("socket")) is not None:
        with contextlib.suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


_numbers = itertools.count(1)

_IDLE, _HEAD, _BODY, _RESPONSE, _PIPELINED, _TUNNEL, _CLOSING, _ = state.Client
_HEAD_READ = CLIENT.on(ClientEvent.HEAD_READ)
_REQUEST_READ = CLIENT.on(ClientEvent.REQUEST_READ)
_RESPONSE_SENT = CLIENT.on(ClientEvent.RESPONSE_SENT)
_NEXT_BUFFERED = CLIENT.on(ClientEvent.NEXT_BUFFERED)
_SWITCHED = CLIENT.on(ClientEvent.SWITCHED)
_LAST_SENT = CLIENT.on(ClientEvent.LAST_SENT)
_LOST = CLIENT.on(ClientEvent.LOST)


class ConnectionPort(ReceiverPort, Protocol):
    """The data port, as its connections use it. docs_url: `answers.docs_url`."""

    lifecycle: Lifecycle
    log: RequestLog
    docs_url: str

    def exchange(self, client: ClientConnection, request: Request) -> ClientExchange:
        """Begin the exchange that handles `request`."""


class ClientConnection(RequestReceiver):
    """A client's connection. stalled: the client does not read its response. session, mirror: see `ExecuteCall`."""

    __slots__ = ("_closing", "_ended", "_number", "_peer", "mirror", "session", "stalled")

    port: ConnectionPort

    def __init__(self, port: ConnectionPort) -> None:
        super().__init__(port)
        self._number = 0
        self.stalled = False
        self.session: SessionUse | None = None
        self.mirror: MirrorUse | None = None
        self._peer: str | None = None
        self._closing: LingeringClose | None = None
        self._ended = False  # its half of a tunnel

    @property
    def number(self) -> int:
        """See `Client`. An idle connection of which nothing was recorded does not hold one."""
        if not self._number:
            self._number = next(_numbers)
        return self._number

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

    # From the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection. The first request has `timeouts.head` seconds to arrive."""
        self.transport = transport  # type: ignore[assignment]
        while self.port.lifecycle.replaced_by is not None:  # during the TLS handshake
            self.port = self.port.lifecycle.replaced_by
        self.port.lifecycle.connections.add(self)
        self.deadline = deadline_in(self.port.timeouts.head)

    def eof_received(self) -> bool:
        """Handle the end of the client's input. It looks like a disconnect, so the current request is dropped."""
        self._ended = self._state is _TUNNEL and self.exchange is not None and self.exchange.client_ended()
        return self._ended

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
        self.deadline = deadline_in(self.port.timeouts.send)
        self._report_writable(False)

    def resume_writing(self) -> None:
        """Resume the response: the client reads again."""
        self.stalled = False
        self.deadline = NO_DEADLINE
        if self._closing is not None:
            self.deadline = self._closing.await_receipt()
        elif self.exchange is not None:
            self._report_writable(True)
        elif self._state is _PIPELINED:
            self._read_next()

    def _report_writable(self, writable: bool) -> None:
        try:
            if self.exchange is not None:
                self.exchange.client_writable(writable)
        except Exception:  # the loop would only log it
            self.break_off()

    def expired(self) -> None:
        """Close the connection, or refuse the request: the deadline has passed."""
        if self._closing is not None:
            self.deadline = self._closing.expire()
        elif self.stalled or self._state is _CLOSING:
            self.transport.abort()
        elif self._state is _BODY and self.exchange is not None:
            self.exchange.fail_upload(error_responses.late("the rest of the request's body"))
        elif self.idle:
            self.transport.close()
        else:
            self.refuse(error_responses.late("the rest of the request's head"))

    # For the detection of disconnected clients

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

    # From the receiver

    @override
    def begin(self, request: Request, rest: bytes) -> None:
        try:
            exchange = self.exchange = self.port.exchange(self, request)
        except Exception:
            self.refuse(self.port.log.fault(self.peer))
            return
        if request.fields.length == len(rest):  # most bodies arrive with their heads
            piece, rest, body = rest, b"", None
        else:
            piece, body = b"", request.fields.body(exchange.reads_body)
        if body is None:
            self._held = rest
            self._state = _REQUEST_READ[self._state]
            self.deadline = NO_DEADLINE
        else:
            upload = self._upload = Upload(body)
            self._state = _HEAD_READ[self._state]
            try:
                piece = self._feed(upload, rest)
            except Malformed as exc:  # the exchange exists, so it must be finished
                exchange.refuse(error_responses.malformed(exc))
                return
        exchange.begin(piece, self._state is _RESPONSE)

    def break_off(self) -> None:
        """See `RequestReceiver`. Without an exchange, a response may have been sent already: there is no second one."""
        if self.exchange is not None:
            self.exchange.break_off()
        else:
            self.port.log.fault(self.peer)
            self.transport.abort()

    # For exchanges

    def tunnel(self) -> None:
        """Relay all further bytes to the exchange: they belong to another protocol."""
        self._state = _SWITCHED[self._state]
        held, self._held = self._held, b""
        self.transport.resume_reading()
        if held and self.exchange is not None:
            self.exchange.upload(held, False)

    def done(self, keep: bool) -> None:
        """Finish the response. keep: another request may follow on this connection."""
        self.exchange = None
        if self._state is _BODY or not keep:
            self._linger()
        elif self._held or self.stalled:  # responses to a client that does not read would pile up
            self._state = _NEXT_BUFFERED[self._state]
            if not self.stalled:  # in another turn: a direct call would nest one level per pipelined request
                asyncio.get_running_loop().call_soon(self._read_next)
        else:
            self._state = _RESPONSE_SENT[self._state]
            self.deadline = deadline_in(self.port.timeouts.keepalive)

    def refuse(self, error: GatewayError, exchange: ClientExchange | None = None) -> None:
        """Send an error of the gateway's own.

        The connection stays open only after an HTTP/1.1 request that was read completely.
        """
        keep = self._state is _RESPONSE and exchange is not None and exchange.may_keep() and exchange.request.minor == 1
        request_id = self.port.log.no_request(error, self.peer) if exchange is None else exchange.request_id
        bodyless = exchange is not None and exchange.request.method == b"HEAD"
        error.docs_url = self.port.docs_url
        self.transport.write(error_responses.encode_error(error, request_id, close=not keep, bodyless=bodyless))
        if exchange is None:
            self._linger()
        elif keep:
            self.done(True)
        else:
            self.exchange = None
            self._linger()

    def cut(self) -> None:
        """Reset the connection in the middle of a response; see `reset`."""
        self.exchange = None
        self._state = _LAST_SENT[self._state]
        reset(self.transport)

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
        """Close the connection after the client has received the last response; see `LingeringClose`."""
        unread = self._state is _BODY or bool(self._held)
        self._state = _LAST_SENT[self._state]
        self._upload = None
        self._head = None
        self._held = b""
        self._closing = LingeringClose(self.transport, self.port.timeouts.send)
        if not self.transport.is_closing():
            self.deadline = self._closing.start(unread, self._ended)

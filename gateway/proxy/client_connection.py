"""One client's connection to the data port: requests in, one after the other, and whatever answers them out.

An idle connection is this object and its transport, nothing else: no task, no timer, no buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from typing import TYPE_CHECKING

from gateway.errors import GatewayError
from gateway.http1 import state
from gateway.http1.bodies import Body
from gateway.http1.head_buffer import RequestHeadBuffer
from gateway.http1.request_heads import Request
from gateway.http1.rules import Malformed
from gateway.http1.state import CLIENT, ClientEvent
from gateway.proxy import error_responses
from gateway.upstream.deadlines import NO_DEADLINE

if TYPE_CHECKING:
    from gateway.proxy.data_port import DataPort
    from gateway.proxy.exchange import Exchange

_HELD = 64 * 1024
"""Bytes of pipelined requests that are read ahead while one is being answered."""
_STEPS = 256
"""Steps through the chunks of a body that are taken for one read of a connection; the rest waits in the backlog."""
_LARGE = 250_000
"""Bytes that fill the read buffer of the loop: more is waiting, and libuv would read up to 32 times in one go."""
_LINGER = 2.0
"""Seconds in which a client may take in the last answer, while what it still sends is thrown away: closing at once
would reset the connection, and the answer with it (RFC 9112, 9.6)."""

_RESET = struct.pack("ii", 1, 0)

# Module constants, because an attribute of an Enum takes four times as long to look up.
_IDLE, _HEAD, _BODY, _RESPONSE, _PIPELINED, _TUNNEL, _CLOSING, _CLOSED = state.Client
_HEAD_BEGAN, _HEAD_READ, _REQUEST_READ, _RESPONSE_SENT, _NEXT_BUFFERED, _NEXT, _SWITCHED, _LAST_SENT, _LOST = (
    CLIENT.on(event) for event in ClientEvent
)


class ClientConnection(asyncio.Protocol):
    """A client's connection.

    exchange: answers the request that is being dealt with, None between requests. port: what the next one goes to.
    """

    __slots__ = (
        "_body", "_body_began", "_body_size", "_head", "_held", "_paused_at", "_state", "_taken_at", "_unsent",
        "deadline", "exchange", "port", "stalled", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, port: DataPort) -> None:
        self.port = port
        self._state = _IDLE
        self._head = RequestHeadBuffer()
        self._body: Body | None = None
        self._body_began = 0.0
        self._body_size = 0
        self._paused_at = 0.0
        self._held = b""
        self._unsent = 0
        self._taken_at = 0.0
        self.exchange: Exchange | None = None
        self.stalled = False
        self.deadline = NO_DEADLINE

    @property
    def idle(self) -> bool:
        """Between two requests."""
        return self._state is _IDLE

    @property
    def peer(self) -> str:
        """The client's address; "" if the socket has none."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def _within(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds if seconds else NO_DEADLINE

    def _within_body(self) -> None:
        """Wait for more of the body: `timeouts.body`, and no longer than it keeps to `timeouts.body_rate`.

        The time in which nothing is read from the client does not count.
        """
        times = self.port.timeouts
        deadline = time.monotonic() + times.body if times.body else NO_DEADLINE
        if times.body_rate:
            enough_until = max(times.body_rate_after, self._body_size / times.body_rate)
            deadline = min(deadline, self._body_began + enough_until)
        self.deadline = deadline

    # From the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there; its first request must come as soon as any other's rest."""
        self.transport = transport  # type: ignore[assignment]
        self.port.lifecycle.connections.add(self)
        self._within(self.port.timeouts.head)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
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
        """The client sends no more, which is how one that has gone away looks: what it asked for is dropped."""
        return self._state is _TUNNEL and self.exchange is not None and self.exchange.client_ended()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.port.lifecycle.connections.discard(self)
        self._state = _LOST[self._state]
        self.deadline = NO_DEADLINE
        if (exchange := self.exchange) is not None:
            self.exchange = None
            exchange.client_lost()

    def pause_writing(self) -> None:
        """The client does not read."""
        self.stalled = True
        self._within(self.port.timeouts.send)
        if self.exchange is not None:
            self.exchange.client_writable(False)

    def resume_writing(self) -> None:
        """The client reads again."""
        self.stalled = False
        self.deadline = NO_DEADLINE
        if self._state is _CLOSING:
            self._await_taken()
        elif self.exchange is not None:
            self.exchange.client_writable(True)
        elif self._state is _PIPELINED:
            self._next()
        elif self._state is _IDLE or self._state is _HEAD:
            self._within(self.port.timeouts.keepalive)

    def expired(self) -> None:
        """The client was waited for long enough."""
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
        try:
            found = self._head.feed(data, reader.limits)
            if found is None:
                if self._state is _IDLE:
                    self._state = _HEAD_BEGAN[self._state]
                    self._within(self.port.timeouts.head)
                return
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
            self._body_began = time.monotonic()
            self._body_size = 0
            try:
                piece = self._feed(body, rest)
            except Malformed as exc:  # the exchange has begun, so it is the exchange that must end
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
        """What of a body may go on; where that takes long, the rest of `data` waits for its turn in the backlog."""
        piece = body.feed(data, _STEPS)
        if body.done:
            self._held = body.rest
            self._body = None
            self._state = _REQUEST_READ[self._state]
            self.deadline = NO_DEADLINE
            return piece
        self._body_size += len(piece)
        self._within_body()
        if body.unread or len(data) >= _LARGE:
            self.transport.pause_reading()
            self.port.backlog.add(self)
        return piece

    def go_on(self) -> None:
        """Read on, first in what came before; the backlog calls it."""
        if self._state is not _BODY or self._paused_at or self._body is None:
            return
        if self._body.unread:
            self._read_body(b"")
        if not self._paused_at and (self._body is None or not self._body.unread):
            self.resume_reading()

    # For exchanges

    def pause_reading(self) -> None:
        """Take no more of the request's body for now; the client is not waited for meanwhile."""
        self.deadline = NO_DEADLINE
        if self._state is not _CLOSING:
            self._paused_at = self._paused_at or time.monotonic()
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on with the request's body."""
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

    def held_back(self) -> int:
        """See `Pollable`."""
        if self.transport.is_reading() or self.transport.is_closing():
            return -1
        number: int = self.transport.get_extra_info("socket").fileno()
        return number

    def peer_gone(self, cut: bool) -> None:
        """See `Pollable`: as `eof_received`; in a tunnel, what was said before an orderly end still goes on first."""
        if cut or self._state is not _TUNNEL:
            self.transport.abort()

    def tunnel(self) -> None:
        """From now on, bytes of another protocol go to the exchange."""
        self._state = _SWITCHED[self._state]
        self._paused_at = 0.0
        held, self._held = self._held, b""
        self.transport.resume_reading()
        if held and self.exchange is not None:
            self.exchange.upload(held, False)

    def done(self, keep: bool) -> None:
        """The answer is complete. keep: another request may follow on this connection."""
        self.exchange = None
        if self._state is _BODY or not keep:
            self._linger()
        elif self._held:
            self._state = _NEXT_BUFFERED[self._state]
            if not self.stalled:  # not at once: a chain of short answers would be as deep as it is long
                asyncio.get_running_loop().call_soon(self._next)
        else:
            self._state = _RESPONSE_SENT[self._state]
            if not self.stalled:
                self._within(self.port.timeouts.keepalive)

    def _next(self) -> None:
        """Go on with what was held."""
        if self._state is not _PIPELINED:
            return
        held, self._held = self._held, b""
        self._state = _NEXT[self._state]
        self._paused_at = 0.0
        self.transport.resume_reading()
        self._read_head(held)

    def refuse(self, error: GatewayError, exchange: Exchange | None = None) -> None:
        """Answer with the gateway's own error; the connection goes on only if the request was read whole."""
        keep = self._state is _RESPONSE and exchange is not None and exchange.may_keep()
        request_id = exchange.request_id if exchange is not None else ""
        bodyless = exchange is not None and exchange.request.method == b"HEAD"
        self.transport.write(error_responses.answer(error, request_id, close=not keep, bodyless=bodyless))
        if exchange is None:
            self.port.log.no_request(error)
            self._linger()
        elif keep:
            self.done(True)
        else:
            self.exchange = None
            self._linger()

    def cut(self) -> None:
        """End the connection in the middle of an answer, so that what came of it can't look whole.

        With a reset: an orderly end is the end of the body to a client of HTTP/1.0 (RFC 9112, 6.3).
        """
        self.exchange = None
        self._state = _LAST_SENT[self._state]
        with contextlib.suppress(OSError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def cut_off(self) -> None:
        """End the connection and whatever it was for."""
        exchange = self.exchange
        self.cut()
        if exchange is not None:
            exchange.client_lost()

    def close(self) -> None:
        """Send what is left to send, then close."""
        self.exchange = None
        self._linger()

    def _linger(self) -> None:
        """End the connection so that the client gets all of the last answer, see `_LINGER`.

        TLS has no half-close on the loop's transports: there the connection stays open for that time, but only where
        the client may still be sending.
        """
        unread = self._state is _BODY or bool(self._held)
        self._state = _LAST_SENT[self._state]
        self._body = None
        self._head.clear()
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
        self._taken_at = time.monotonic()
        self._await_taken()

    def _await_taken(self) -> None:
        """Give the client its time: to take in what is left of the answer, then to close."""
        self._unsent = self.transport.get_write_buffer_size()
        self._within(min(_LINGER, self.port.timeouts.send or _LINGER))

    def _expire_linger(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if self.transport.is_closing():
            self.transport.abort()
        elif unsent < self._unsent:
            self._taken_at = time.monotonic()
            self._await_taken()
        elif not unsent:
            self.transport.close()
            self._within(_LINGER)
        elif self.port.timeouts.send and time.monotonic() - self._taken_at >= self.port.timeouts.send:
            self.transport.abort()
        else:
            self._await_taken()

"""Reads requests off a client's connection one after the other: heads, bodies, and requests that are pipelined."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Protocol

from gateway.config.schema import ClientTimeouts
from gateway.errors import GatewayError
from gateway.http1 import state
from gateway.http1.bodies import Body
from gateway.http1.head_buffer import RequestHeadBuffer, split_head
from gateway.http1.request_heads import Request, RequestReader
from gateway.http1.rules import Malformed
from gateway.http1.state import CLIENT, ClientEvent
from gateway.observe.metrics import Received
from gateway.proxy import error_responses
from gateway.proxy.interfaces import ClientExchange
from gateway.upstream.outbound import NO_DEADLINE, deadline_in

SLICE = 0.001
"""Seconds that the backlog may take in one turn of the loop."""


class Resumable(Protocol):
    """A connection."""

    def continue_reading(self) -> None:
        """Do a bounded amount of work, and add itself again if there is more."""

    def break_off(self) -> None:
        """End after the exception that is being handled."""


class Backlog:
    """Calls its connections in order, each at most once per turn of the loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Resumable, None] = OrderedDict()
        self._scheduled = False

    def add(self, connection: Resumable) -> None:
        """Queue `connection`. If it is queued already, its position does not change."""
        self._waiting[connection] = None
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        until = time.monotonic() + SLICE
        for _ in range(len(self._waiting)):
            connection = self._waiting.popitem(last=False)[0]
            try:
                connection.continue_reading()
            except Exception:  # it must not stop the others
                connection.break_off()
            if time.monotonic() >= until:
                break
        self._scheduled = False
        self._schedule()


_HELD = 64 * 1024
"""Bytes of pipelined requests that are read ahead while a response is under way."""
_STEPS = 256
"""Steps through the chunks of a body per read of a connection; the rest waits in the backlog."""
_LARGE = 250_000
"""Bytes that fill the loop's read buffer: more is waiting, and libuv would read up to 32 times in a row."""

_IDLE, _HEAD, _BODY, _RESPONSE, _PIPELINED, _TUNNEL, _CLOSING, _ = state.Client
_HEAD_BEGAN = CLIENT.on(ClientEvent.HEAD_BEGAN)
_REQUEST_READ = CLIENT.on(ClientEvent.REQUEST_READ)
_NEXT = CLIENT.on(ClientEvent.NEXT)


class ReceiverPort(Protocol):
    """The data port, as the receiver uses it."""

    timeouts: ClientTimeouts
    reader: RequestReader
    backlog: Backlog
    received: Received


class Upload:
    """The body of the current request, while it arrives. began, paused_at: of `time.monotonic`, 0.0 for not yet.

    size: bytes of it that were read.
    """

    __slots__ = ("began", "body", "paused_at", "size")

    def __init__(self, body: Body) -> None:
        self.body = body
        self.began = 0.0
        self.size = 0
        self.paused_at = 0.0

    def add(self, size: int) -> None:
        """Count bytes that were read; the first ones start the clock."""
        self.size += size
        self.began = self.began or time.monotonic()

    def pause(self) -> None:
        """Stop the clock."""
        self.paused_at = self.paused_at or time.monotonic()

    def resume(self) -> None:
        """Go on with the clock."""
        if self.paused_at:
            self.began += time.monotonic() - self.paused_at
            self.paused_at = 0.0

    def deadline(self, times: ClientTimeouts) -> float:
        """Return when more must have come: after `timeouts.body`, or when it is slower than `timeouts.body_rate`.

        The time in which the client is paused does not count.
        """
        deadline = time.monotonic() + times.body if times.body else NO_DEADLINE
        if times.body_rate:
            deadline = min(deadline, self.began + max(times.body_rate_after, self.size / times.body_rate))
        return deadline


class RequestReceiver(asyncio.Protocol):
    """The input of a client's connection; `gateway.proxy.client_connection` adds the output and the end.

    exchange: handles the current request; None between requests. port: handles the next request.
    """

    __slots__ = ("_head", "_held", "_state", "_upload", "deadline", "exchange", "port", "transport")

    transport: asyncio.Transport

    def __init__(self, port: ReceiverPort) -> None:
        self.port = port
        self._state = _IDLE
        self._head: RequestHeadBuffer | None = None
        self._upload: Upload | None = None
        self._held = b""
        self.exchange: ClientExchange | None = None
        self.deadline = NO_DEADLINE

    def begin(self, request: Request, rest: bytes) -> None:
        """Begin the exchange of a request. rest: the bytes after its head."""
        raise NotImplementedError

    def refuse(self, error: GatewayError, exchange: ClientExchange | None = None) -> None:
        """Send an error of the gateway's own. exchange: of the request; None if its head is not valid."""
        raise NotImplementedError

    def break_off(self) -> None:
        """End the request after the exception that is being handled; the loop would close the connection."""
        raise NotImplementedError

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

    # The head

    def _read_head(self, data: bytes) -> None:
        reader = self.port.reader
        try:
            found = split_head(data, reader.limits) if self._head is None else None
            if found is None:
                head = self._head = self._head or RequestHeadBuffer()
                found = head.feed(data, reader.limits)
            if found is not None:
                self._head = None
                self.begin(reader.read(found[0]), found[1])
            elif self._state is _IDLE:
                self._state = _HEAD_BEGAN[self._state]
                self.deadline = deadline_in(self.port.timeouts.head)
        except Malformed as exc:
            self.refuse(error_responses.malformed(exc))
        except Exception:
            self.break_off()

    def _read_next(self) -> None:
        """Read the next request from the buffered bytes, if it was pipelined."""
        if self._state is not _PIPELINED:
            return
        held, self._held = self._held, b""
        self._state = _NEXT[self._state]
        self.transport.resume_reading()
        if held:
            self._read_head(held)
        else:
            self.deadline = deadline_in(self.port.timeouts.keepalive)

    # The body

    def _read_body(self, data: bytes) -> None:
        upload, exchange = self._upload, self.exchange
        assert upload is not None
        assert exchange is not None
        try:
            piece = self._feed(upload, data)
            if piece or upload.body.done:
                exchange.upload(piece, upload.body.done)
        except Malformed as exc:
            exchange.fail_upload(error_responses.malformed(exc))
        except Exception:
            self.break_off()

    def _feed(self, upload: Upload, data: bytes) -> bytes:
        """Return what may be sent on of a body. If that takes long, the rest of `data` waits in the backlog.

        What follows the end of the body is held: it belongs to the next request.
        """
        body = upload.body
        piece = body.feed(data, _STEPS)
        if body.done:
            self._held = body.rest
            self._upload = None
            self._state = _REQUEST_READ[self._state]
            self.deadline = NO_DEADLINE
            return piece
        upload.add(len(piece))
        self.deadline = upload.deadline(self.port.timeouts)
        if body.unread or len(data) >= _LARGE:
            self.transport.pause_reading()
            self.port.backlog.add(self)
        return piece

    def continue_reading(self) -> None:
        """Continue with the body, buffered input first. Called by the backlog."""
        upload = self._upload
        if self._state is not _BODY or upload is None or upload.paused_at:
            return
        if upload.body.unread:
            self._read_body(b"")
        if not upload.paused_at and (self._upload is None or not upload.body.unread):
            self.resume_reading()

    # Flow control, for exchanges

    def pause_reading(self) -> None:
        """Pause the request's body. The client's deadline does not run meanwhile."""
        self.deadline = NO_DEADLINE
        if self._state is not _CLOSING:
            if self._upload is not None:
                self._upload.pause()
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume the request's body."""
        upload = self._upload
        if upload is not None:
            upload.resume()
        if self._state is _CLOSING or len(self._held) > _HELD:
            return
        if self._state is _BODY and upload is not None and upload.body.unread:
            self.port.backlog.add(self)
            return
        self.transport.resume_reading()
        if self._state is _BODY and upload is not None:
            self.deadline = upload.deadline(self.port.timeouts)

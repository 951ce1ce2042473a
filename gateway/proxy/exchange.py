"""One request of the data port and its answer, passed on as they come.

Everything happens in the loop's callbacks, from either connection; a slow side holds the other one back.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

from gateway.errors import GatewayError
from gateway.http1 import state
from gateway.http1.request_heads import Request
from gateway.http1.response_heads import BODYLESS, Head
from gateway.http1.state import EXCHANGE, ExchangeEvent
from gateway.ports import Answer
from gateway.proxy import error_responses
from gateway.proxy.routes import WRITES, Route
from gateway.upstream.connection import Buffers, Outbound
from gateway.upstream.nodes import may_retry

if TYPE_CHECKING:
    from gateway.proxy.admission import Ticket
    from gateway.proxy.client_connection import ClientConnection
    from gateway.proxy.data_port import DataPort

_JOIN = 64 * 1024
"""Bytes up to which a head and a piece of body are put together for one write; above, the copy costs more."""
_BODY_WAIT = 0.2
"""Seconds in which the first piece of a body should follow its head; only then the head goes on without it."""
_LAST_CHUNK = b"0\r\n\r\n"

# Module constants, because an attribute of an Enum takes four times as long to look up.
_WAITING, _SENT, _ANSWERED, _TUNNEL, _FINISHED = state.Exchange
SEND, _ANSWER, _SWITCH, _FINISH = ExchangeEvent


class Exchange(Outbound):
    """A request that is passed through. status: of the answer; 0 as long as there is none, or when it was cut."""

    __slots__ = (
        "_chunk", "_half_open", "_id", "_keep", "_pending", "_pending_size", "_port", "_state", "client", "request",
        "route", "started", "status", "ticket",
    )  # fmt: skip

    reads_body = False
    """Whether the data of its body are wanted rather than the body as it came."""

    def __init__(self, port: DataPort, client: ClientConnection, request: Request, route: Route) -> None:
        super().__init__(request.method, request.target, port.upstream.patience)
        self.client = client
        self.request = request
        self.route = route
        self.started = time.monotonic()
        self.status = 0
        self.ticket: Ticket | None = None
        self.upgrade = request.fields.upgrade
        self.expects = request.fields.expectation
        self.decode = request.minor == 0
        self._port = port
        self._state = _WAITING
        self._chunk = self._half_open = self._keep = False
        self._id = ""
        self._pending: list[bytes] = []
        self._pending_size = 0

    def _advance(self, event: ExchangeEvent) -> None:
        self._state = EXCHANGE[self._state, event]

    @property
    def request_id(self) -> str:
        """What the log and the gateway's own answers call this request."""
        if not self._id:
            self._id = uuid.uuid4().hex[:16]
        return self._id

    # From the client

    def begin(self, piece: bytes, complete: bool) -> None:
        """The head has come, with what is there of the body. complete: that is all of it."""
        self.complete = complete
        if piece:
            self._hold_back(piece)
        self._port.admit(self)

    def go(self) -> None:
        """It is this request's turn. It takes a connection to the cluster once there is something to send on it."""
        if self.complete or self._pending or self.expects:
            self._send_on()
        else:
            asyncio.get_running_loop().call_later(_BODY_WAIT, self._send_head)

    def _send_on(self) -> None:
        self._advance(SEND)
        self._port.send(self)
        self._pause_client()

    def _send_head(self) -> None:
        """Send the head by itself: its client may wait for an answer before it sends more."""
        if self._state is _WAITING:
            self._send_on()

    def upload(self, piece: bytes, complete: bool) -> None:
        """More of the request's body has come."""
        self.complete = complete
        if self.connection is not None:
            self.connection.write([piece])
            return
        self._hold_back(piece)
        if self._state is not _WAITING:
            self._pause_client()
            if complete and self.upload_waiter is not None and not self.upload_waiter.done():
                self.upload_waiter.set_result(None)
        elif self.ticket is None or self.ticket.admitted:
            self._send_on()

    def _hold_back(self, piece: bytes) -> None:
        self._pending.append(piece)
        self._pending_size += len(piece)

    def _pause_client(self) -> None:
        """Take no more of the body than `_JOIN` until there is a connection to send it on."""
        if self.connection is None and not self.complete and self._pending_size > _JOIN:
            self.client.pause_reading()

    def spoiled(self, error: GatewayError) -> None:
        """The rest of the request's body will not come, or is malformed: neither end may take it for whole."""
        self.abandon()
        self._fail(error)

    def client_lost(self) -> None:
        """The client has gone: so has the request; in a tunnel, what it said last still goes on."""
        if self._state is _TUNNEL and self.connection is not None:
            self.connection.close()
        self.abandon()
        self.status = 0
        self._finished()

    def client_ended(self) -> bool:
        """The client says no more in a tunnel; whether the cluster still may."""
        if self._half_open or self.connection is None or not self.connection.transport.can_write_eof():
            return False
        self.connection.transport.write_eof()
        self._half_open = True
        return True

    def on_end(self) -> bool:
        """See `Outbound`: the other half of a tunnel."""
        if self._half_open or not self.client.transport.can_write_eof():
            return False
        self.client.transport.write_eof()
        self._half_open = True
        return True

    def client_writable(self, writable: bool) -> None:
        """The client stopped or began to take more of the answer."""
        if self.connection is not None:
            if writable:
                self.connection.resume_reading()
            else:
                self.connection.pause_reading()

    def may_keep(self) -> bool:
        """Whether the client's connection can be used again after this request."""
        return self.request.fields.keep_alive and self.complete and not self._port.draining

    # Towards the cluster

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """See `Outbound`: the client's own lines but those that end here."""
        pieces: Buffers = ()
        if self._pending:
            pieces, self._pending = self._pending, []
        return self.request.fields.onward(self._host(authority)), pieces

    def _host(self, authority: bytes) -> bytes:
        """What goes on in place of the client's own Host; empty: that one does."""
        return authority if self._port.own_host or self.request.fields.host is None else b""

    def repeatable(self) -> bool:
        """See `Outbound`."""
        return not self.request.has_body and may_retry(self.method.decode("ascii"), True, False, self.target)

    def on_connection(self) -> None:
        """See `Outbound`."""
        if not self.complete or self._pending:
            for piece in self._pending:
                self.upload(piece, self.complete)
            self._pending = []
            self.client.resume_reading()

    def on_writable(self, writable: bool) -> None:
        """See `Outbound`: the client's side follows."""
        if writable:
            self.client.resume_reading()
        elif not self.complete or self._state is _TUNNEL:
            self.client.pause_reading()

    # From the cluster

    def on_interim(self, head: Head) -> None:
        """See `Outbound`. Only HTTP/1.1 has such answers (RFC 9110, 15.2)."""
        if self.request.minor:
            self.client.transport.write(b"\r\n".join((head.first_line()[:-2], *head.end_to_end(), b"\r\n")))

    def on_head(self, head: Head, piece: bytes, complete: bool) -> None:
        """See `Outbound`."""
        self._forget()  # before the client knows that its write is done
        self._port.head_came(self)
        self.status = head.status
        if head.status == 101:
            self._advance(_SWITCH)
            self.client.transport.write(head.raw + piece)
            self.client.tunnel()
            return
        self._advance(_ANSWER)
        start = self._start_of(head)
        if self._chunk:
            piece = _chunked(piece, complete)
        if len(piece) <= _JOIN:
            self.client.transport.write(start + piece)
        else:
            self.client.transport.writelines((start, piece))
        if complete:
            self._end()

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `Outbound`."""
        if self._chunk:
            piece = _chunked(piece, complete)
        if piece:
            self.client.transport.write(piece)
        if complete:
            self._end()

    def on_failure(self, error: GatewayError) -> None:
        """See `Outbound`."""
        self._fail(error)

    def added(self) -> bytes:
        """Header lines of the gateway's own, each with its CRLF."""
        return b""

    def _start_of(self, head: Head) -> bytes:
        """The answer's head as this hop sends it: framing and connection are this hop's own (RFC 9112, 6 and 9)."""
        modern = self.request.minor == 1
        keep = self.may_keep()
        own = self.added()
        if head.forwardable_verbatim and modern and keep:  # nothing of what follows would change it
            self._keep = True
            return b"%b%b\r\n" % (head.raw[:-2], own) if own else head.raw
        bodyless = self.method == b"HEAD" or head.status in BODYLESS
        if not bodyless and head.length is None:
            self._chunk = modern and not head.chunked
            keep = keep and modern
            if modern and (self._chunk or not head.no_hop_headers):
                own += b"Transfer-Encoding: chunked\r\n"
        if not keep and modern:
            own += b"Connection: close\r\n"
        elif keep and not modern:
            own += b"Connection: keep-alive\r\n"
        self._keep = keep
        as_it_came = head.no_hop_headers and head.minor == 1 and (not head.chunked or (modern and not bodyless))
        if not as_it_came:
            return b"%b%b\r\n" % (head.first_line() + b"".join(line + b"\r\n" for line in head.end_to_end()), own)
        return b"%b%b\r\n" % (head.raw[:-2], own)

    def _end(self) -> None:
        tunnel = self._state is _TUNNEL
        self._finished()
        if tunnel:
            self.client.close()
        else:
            self.client.done(self._keep)

    def _fail(self, error: GatewayError) -> None:
        if self._state is _ANSWERED or self._state is _TUNNEL:  # the client must not take it for complete
            self._log(error)
            self.status = 0
            self._finished()
            self.client.cut()
        else:
            self.refuse(error)

    def reply(self, answer: Answer) -> None:
        """Answer in the cluster's place."""
        self.status = answer.status
        keep = self.may_keep()
        self._finished()
        self.client.transport.write(error_responses.whole(answer, self.request_id, close=not keep))
        self.client.done(keep)

    def refuse(self, error: GatewayError) -> None:
        """Answer with an error of the gateway's own."""
        self._log(error)
        self.status = error.status
        self._finished()
        self.client.refuse(error, self)

    def _log(self, error: GatewayError) -> None:
        self._port.failed(self, error)

    def _forget(self) -> None:
        if self.route.kind and self.route.intent in WRITES:
            self._port.profiles.invalidate(self.route.kind, self.route.id or None)

    def _finished(self) -> None:
        if self._state is _WAITING or self._state is _SENT:
            self._forget()  # the cluster may have done what it did not say
        self._advance(_FINISH)
        self._port.finished(self)


def _chunked(piece: bytes, complete: bool) -> bytes:
    """A piece of a body without a length, in a chunk of its own."""
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
    return chunk + _LAST_CHUNK if complete else chunk

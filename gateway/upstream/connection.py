"""A connection to a node of the cluster: sends a request, and ends with its response or with an error.

Then it takes the next request, or closes. Everything runs in the event loop's callbacks; a request needs no task and no
future.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gateway.errors import GatewayError, UpstreamTimeout, UpstreamUnavailable
from gateway.http1 import state
from gateway.http1.bodies import Body, ToEnd
from gateway.http1.head_buffer import ResponseHeadBuffer
from gateway.http1.response_heads import ResponseHead, ResponseReader
from gateway.http1.rules import Malformed
from gateway.http1.state import UPSTREAM, UpstreamEvent
from gateway.upstream.nodes import Kind, Node
from gateway.upstream.outbound import NO_DEADLINE, Buffers, OutboundRequest, RequestOwner

_REFUSALS = frozenset({400, 413, 414, 431})
"""Statuses with which the cluster refuses a head that is too long."""

_MOST_INTERIM = 5
"""Interim responses to one request, as many as Go's client takes. One that sends more may never send a final one."""

_CONNECTING, _, _SENT, _HEAD, _BODY, _TUNNEL, _ = state.Upstream
_RESPONSE_BEGAN = UPSTREAM.on(UpstreamEvent.RESPONSE_BEGAN)
_INTERIM = UPSTREAM.on(UpstreamEvent.INTERIM)
_HEAD_READ = UPSTREAM.on(UpstreamEvent.HEAD_READ)
_SWITCHED = UPSTREAM.on(UpstreamEvent.SWITCHED)


class ResponseReceiver(asyncio.Protocol):
    """The input of a connection: reads the responses, and reports each to the request's owner as it arrives.

    `Connection` adds the output and the end. outbound: the request whose response is awaited; None if it is idle.
    """

    __slots__ = (
        "_body", "_continued", "_head", "_heads", "_interims", "_long", "_persistent", "_state", "deadline", "node",
        "outbound", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, node: Node, heads: ResponseReader) -> None:
        self.node = node
        self.outbound: OutboundRequest | None = None
        self.deadline = NO_DEADLINE
        self._heads = heads
        self._head = ResponseHeadBuffer()
        self._state = _CONNECTING
        self._continued = self._long = False
        self._interims = 0
        self._persistent = True
        self._body: Body | None = None

    @property
    def _answered(self) -> bool:
        """Something of the response has arrived."""
        return self._state is _HEAD or self._state is _BODY or self._state is _TUNNEL

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the response. Bytes on an idle connection are a fault and end it."""
        self.node.tally.received += len(data)
        outbound = self.outbound
        if outbound is None:
            self.transport.abort()
            return
        owner = outbound.owner
        try:
            if self._body is not None:
                piece = self._body.feed(data)
                if self._body.done:
                    self._finish(outbound, self._body, None, piece)
                else:
                    self._wait_for_more()
                    outbound.owner.on_body(piece, False)
            elif self._state is _TUNNEL:
                outbound.owner.on_body(data, False)
            else:
                if self._state is _SENT:
                    self._state = _RESPONSE_BEGAN[self._state]
                self._read_head(outbound, data)
        except Malformed as exc:
            self._fail(UpstreamUnavailable(f"The cluster's response is not valid HTTP: {exc}."), "invalid")
        except Exception:
            self._break_off(owner)

    def _break_off(self, owner: RequestOwner) -> None:
        """Handle an exception that would go to the loop: the owner would wait for ever.

        The connection may be idle by then, or in use by the next request.
        """
        owner.break_off()
        if self.outbound is None:
            self.transport.abort()  # which frees its slot

    def _read_head(self, outbound: OutboundRequest, data: bytes) -> None:
        heads = self._heads
        while (found := self._head.feed(data, heads.limits)) is not None:
            head = heads.read(found[0])
            if head.status >= 200:
                self._answer(outbound, head, found[1])
                return
            if head.status == 101:
                self._switch(outbound, head, found[1])
                return
            self._interims += 1
            if self._interims > _MOST_INTERIM:
                raise Malformed("interim")
            self._state = _INTERIM[self._state]
            self._continued |= head.status == 100
            outbound.owner.on_interim(head)
            data = found[1]

    def _answer(self, outbound: OutboundRequest, head: ResponseHead, data: bytes) -> None:
        if self.node.failures:
            self.node.report(True)
        self._state = _HEAD_READ[self._state]
        self._persistent = head.persistent
        if outbound.expects or self._long:
            self._persistent &= not self._misreads_after(outbound, head.status)
        if head.body_length == len(data) and outbound.method != b"HEAD":  # most bodies arrive with their heads
            self._finish(outbound, None, head, data)
            return
        body = self._body = head.body(outbound.method, outbound.decode)
        piece = body.feed(data) if data else b""
        if body.done:
            self._finish(outbound, body, head, piece)
        else:
            self._wait_for_more()
            outbound.owner.on_head(head, piece, False)

    def _misreads_after(self, outbound: OutboundRequest, status: int) -> bool:
        """Return True if the cluster may misread the next request on this connection. Measured on OpenSearch 3.6.0:

        after a 417 it reads the body as the next request; after refusing a head for its length it reads nothing more.
        """
        return (outbound.expects and not self._continued) or (self._long and status in _REFUSALS)

    def _switch(self, outbound: OutboundRequest, head: ResponseHead, data: bytes) -> None:
        if not outbound.upgrade:
            raise Malformed("switch")
        self._state = _SWITCHED[self._state]
        self.deadline = NO_DEADLINE
        outbound.owner.on_head(head, data, False)

    def _wait_for_more(self) -> None:
        outbound = self.outbound
        if outbound is not None and outbound.timeouts.idle and self._state is not _TUNNEL:
            self.deadline = time.monotonic() + outbound.timeouts.idle

    def _finish(self, outbound: OutboundRequest, body: Body | None, head: ResponseHead | None, piece: bytes) -> None:
        """End the request: its response is complete.

        body: None if `piece` is all of it. head: not reported yet; None if it was. piece: of the body.
        """
        raise NotImplementedError

    def _fail(self, error: GatewayError, kind: Kind) -> None:
        """End the request with an error."""
        raise NotImplementedError


LARGE = 2 * 1024 * 1024
"""Bytes from which a body is written in parts, which takes a tenth more CPU time."""
_PART = 256 * 1024
"""Bytes of a part."""


class LargeBody:
    """What is still to be written to a transport, a part per turn of the event loop."""

    __slots__ = ("_buffers", "_is_paused", "_is_waiting", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, buffers: Buffers) -> None:
        self._transport = transport
        self._buffers = deque(memoryview(buffer) for buffer in buffers)
        self._is_paused = False
        self._is_waiting = False
        """For the next turn."""

    def write(self) -> None:
        """Write the next part."""
        self._is_waiting = False
        if not self._buffers or self._is_paused or self._transport.is_closing():
            return
        self._transport.writelines(self._next_part())
        if self._buffers:
            self._is_waiting = True
            asyncio.get_running_loop().call_soon(self.write)

    def _next_part(self) -> list[memoryview]:
        part, room = [], _PART
        while self._buffers and room:
            first = self._buffers.popleft()
            part.append(first[:room])
            if len(first) > room:
                self._buffers.appendleft(first[room:])
            room -= len(part[-1])
        return part

    def pause(self) -> None:
        """Wait: the other end does not read."""
        self._is_paused = True

    def resume(self) -> None:
        """Continue."""
        self._is_paused = False
        if not self._is_waiting:
            self.write()

    def drop(self) -> None:
        """Write nothing more."""
        self._buffers.clear()

    @property
    def is_written(self) -> bool:
        """True if nothing is left."""
        return not self._buffers


_JOIN = 64 * 1024
"""A head and a piece of a body up to this size are joined for one write; beyond it, the copy costs more."""

_LONG = 4096
"""Size of a head above which the cluster may refuse it as too long (netty: 4 KB of request line, 8 KB of headers)."""
_MAY_HAVE_RUN = "The cluster may have run the request. "
_CHECK = "Check the cluster's log, and any proxy between the gateway and the cluster."
_READS = frozenset({b"GET", b"HEAD", b"OPTIONS"})

_CONNECTED = UPSTREAM.on(UpstreamEvent.CONNECTED)
_REQUEST = UPSTREAM.on(UpstreamEvent.REQUEST)
_COMPLETE = UPSTREAM.on(UpstreamEvent.COMPLETE)
_CLOSE = UPSTREAM.on(UpstreamEvent.CLOSE)
_LOST = UPSTREAM.on(UpstreamEvent.LOST)


class ConnectionOwner(Protocol):
    """The pool, as its connections use it; see `gateway.upstream.pool.Pool`."""

    node: Node
    retry: Callable[[OutboundRequest, Node, bool], bool]

    def end_upload(self, outbound: OutboundRequest) -> None:
        """End the upload of a request."""

    def give_back(self, connection: Connection) -> None:
        """Take back a connection that has no request."""

    def discard(self, connection: Connection) -> None:
        """Free the slot of a connection that is lost."""


class Connection(ResponseReceiver):
    """A connection of a pool: idle, or in use by one request. stalled: the cluster does not read what was sent."""

    __slots__ = ("_large", "_poll", "pool", "reused", "stalled")

    def __init__(self, pool: ConnectionOwner, heads: ResponseReader) -> None:
        super().__init__(pool.node, heads)
        self.pool = pool
        self.reused = self.stalled = False
        self._large: LargeBody | None = None
        self._poll = select.poll()

    @property
    def connected(self) -> bool:
        """The connection has, or had, a transport."""
        return self._state is not _CONNECTING

    # Towards the cluster

    def disturbed(self) -> bool:
        """Return True if there is input on the idle connection: its end, or bytes without a request."""
        return bool(self._poll.poll(0))

    def start(self, outbound: OutboundRequest, lines: bytes, pieces: Buffers) -> None:
        """Send a request on the idle connection. lines, pieces: its `parts`."""
        self._state = _REQUEST[self._state]
        self.outbound = outbound
        outbound.connection = self
        node = self.node
        node.pending += 1
        node.tally.requests += 1
        head = b"%b %b HTTP/1.1\r\n%b" % (outbound.method, outbound.target, lines)
        self._long = len(head) > _LONG
        self.deadline = NO_DEADLINE  # the pool's deadline no longer applies
        if not pieces:
            self.transport.write(head)
        elif len(pieces) == 1 and len(pieces[0]) <= _JOIN:
            self.transport.write(head + pieces[0])
        elif outbound.complete and sum(map(len, pieces)) >= LARGE:
            self._large = LargeBody(self.transport, (head, *pieces))
            self._large.write()
        else:
            self.transport.writelines((head, *pieces))
        if outbound.complete:
            self._wait_for_head(outbound)
        outbound.owner.on_connection()

    def write(self, pieces: Buffers) -> None:
        """Send more of the request: the last piece, if the request is complete."""
        outbound = self.outbound
        if outbound is not None and outbound.complete:
            self.pool.end_upload(outbound)
        if len(pieces) == 1:
            self.transport.write(pieces[0])
        else:
            self.transport.writelines(pieces)
        if outbound is not None and outbound.complete and self._body is None:
            self._wait_for_head(outbound)

    def _wait_for_head(self, outbound: OutboundRequest) -> None:
        now = time.monotonic()
        outbound.sent_at = outbound.sent_at or now
        seconds = outbound.timeouts.header
        self.deadline = now + seconds if seconds else NO_DEADLINE

    def abandon(self) -> None:
        """Cut the connection in the middle of an exchange."""
        self._detach()
        self._state = _CLOSE[self._state]
        self.transport.abort()

    def close(self) -> None:
        """Send the buffered output, then close."""
        self._detach()
        self._state = _CLOSE[self._state]
        self.transport.close()

    def _detach(self) -> None:
        if self._large is not None:
            self._large.drop()
            self._large = None
        outbound, self.outbound = self.outbound, None
        if outbound is not None:
            outbound.connection = None
            if not outbound.complete:
                self.pool.end_upload(outbound)
            self.node.pending -= 1

    def pause_reading(self) -> None:
        """Pause the response. Its deadline does not run meanwhile."""
        self.transport.pause_reading()
        self.deadline = NO_DEADLINE

    def resume_reading(self) -> None:
        """Resume the response."""
        self.transport.resume_reading()
        self._wait_for_more()

    # From the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the transport."""
        self.transport = transport  # type: ignore[assignment]
        self._state = _CONNECTED[self._state]
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def pause_writing(self) -> None:
        """Pause the request's body: the cluster does not read. It has as long as for a piece of a response."""
        self.stalled = True
        if self._large is not None:
            self._large.pause()
        if self.outbound is not None:
            if self._uploading():
                self._wait_for_more()
            self._report_writable(self.outbound.owner, False)

    def resume_writing(self) -> None:
        """Resume the request's body: the cluster reads again."""
        self.stalled = False
        if self._large is not None:
            self._large.resume()
        if self.outbound is not None:
            if self._uploading():
                self.deadline = NO_DEADLINE
            self._report_writable(self.outbound.owner, True)

    def _report_writable(self, owner: RequestOwner, writable: bool) -> None:
        try:
            owner.on_writable(writable)
        except Exception:  # the loop would only log it
            owner.break_off()

    def _uploading(self) -> bool:
        return self.outbound is not None and not self.outbound.complete and self._body is None

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange, if there is one: the transport is gone.

        An orderly end is reported by `eof_received`. Any other is a reset or, over TLS, an end without a TLS closure
        alert: a body without a length is incomplete then (RFC 9112, 9.8).
        """
        self.deadline = NO_DEADLINE
        try:
            self.pool.discard(self)
        finally:
            self._fail(self._broken(), "reset")
            self._state = _LOST[self._state]

    def eof_received(self) -> bool:
        """Handle the end of input: of a body without a length, or of half a tunnel. Anywhere else it is a fault."""
        outbound = self.outbound
        if outbound is None:
            self.transport.close()
            return False
        owner = outbound.owner
        try:
            if isinstance(self._body, ToEnd):
                self._finish(outbound, self._body, None, b"")
            elif self._state is _TUNNEL:
                if owner.on_end():
                    return True
                self.close()
                owner.on_body(b"", True)
            else:
                self._fail(self._broken(), "reset")
        except Exception:
            self._break_off(owner)
        return False

    def expired(self) -> None:
        """Close the idle connection, or fail the request: the deadline has passed."""
        if self.outbound is None:
            self.transport.close()
        else:
            self._fail(UpstreamTimeout("The cluster did not answer in time."), "timeout")

    # The end of a request; see `ResponseReceiver`

    def _finish(self, outbound: OutboundRequest, body: Body | None, head: ResponseHead | None, piece: bytes) -> None:
        self.deadline = NO_DEADLINE
        # Bytes after the response belong to no request; RFC 9112, 6.3 forbids to use them for the next one.
        ended = body is None or not (body.rest or isinstance(body, ToEnd))
        sent = outbound.complete and (self._large is None or self._large.is_written)
        reusable = self._persistent and sent and ended
        self._detach()
        if reusable:
            self._state = _COMPLETE[self._state]
            self._continued = False
            self._interims = 0
            self._body = None
            self.reused = True
            self.pool.give_back(self)
        else:
            self._state = _CLOSE[self._state]
            self.transport.abort()
        if head is None:
            outbound.owner.on_body(piece, True)
        else:
            outbound.owner.on_head(head, piece, True)

    def _fail(self, error: GatewayError, kind: Kind) -> None:
        outbound = self.outbound
        if outbound is None:
            return
        owner = outbound.owner
        lost = kind == "reset" and not self._answered
        try:
            self._detach()
            self._state = _CLOSE[self._state]
            self.transport.abort()
            stale = lost and self.reused  # RFC 9112, 9.3.1: the idle connection may have been closed meanwhile
            if not stale:
                self.node.report(False, kind)
            if not (lost and owner.repeatable() and self.pool.retry(outbound, self.node, stale)):
                owner.on_failure(error)
        except Exception:  # as in `data_received`
            owner.break_off()

    def _broken(self) -> UpstreamUnavailable:
        """Return the error of a connection that ended in the middle of an exchange."""
        what = "The cluster's response broke off."
        if not self._answered:
            what = "The cluster closed the connection without a response."
        reads = self.outbound is None or self.outbound.method in _READS
        return UpstreamUnavailable(what, help=_CHECK if reads else _MAY_HAVE_RUN + _CHECK)

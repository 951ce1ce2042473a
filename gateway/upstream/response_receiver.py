"""Reads the responses on a connection to the cluster, and reports each one to the request's owner as it arrives."""

from __future__ import annotations

import asyncio
import time

from gateway.errors import GatewayError, UpstreamUnavailable
from gateway.http1 import state
from gateway.http1.bodies import Body
from gateway.http1.head_buffer import ResponseHeadBuffer
from gateway.http1.response_heads import ResponseHead, ResponseReader
from gateway.http1.rules import Malformed
from gateway.http1.state import UPSTREAM, UpstreamEvent
from gateway.upstream.nodes import Kind, Node
from gateway.upstream.outbound import NO_DEADLINE, OutboundRequest, RequestOwner

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
    """The input of a connection to the cluster; `gateway.upstream.connection` adds the output and the end.

    outbound: the request whose response is awaited; None on an idle connection.
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

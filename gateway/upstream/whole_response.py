"""A request of the gateway's own, whose response is collected in full."""

from __future__ import annotations

import asyncio
import sys

from gateway.errors import AnswerTooLarge, GatewayError
from gateway.http1.fields import RawHeader
from gateway.http1.response_heads import ResponseHead
from gateway.upstream.nodes import may_retry
from gateway.upstream.outbound import Buffers, OutboundRequest, ResponseTimeouts, UpstreamConnection

_LARGE = 64 * 1024


def encode_fields(fields: list[RawHeader]) -> bytes:
    """Encode header fields as lines, with the empty line."""
    return b"".join((*(b"%b: %b\r\n" % field for field in fields), b"\r\n"))


class WholeResponse:
    """Owns one request and collects its response. response: the head, and the data of the body.

    most: bytes of the body, decoded. A longer one is not collected: `response` raises AnswerTooLarge.
    """

    __slots__ = ("_body", "_fields", "_head", "_left", "_most", "_pieces", "outbound", "response")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        fields: list[RawHeader],
        body: Buffers,
        timeouts: ResponseTimeouts,
        most: int,
    ) -> None:
        self.outbound = OutboundRequest(self, method, target, timeouts)
        self.outbound.decode = True
        self.response: asyncio.Future[tuple[ResponseHead, bytes]] = asyncio.get_running_loop().create_future()
        self._fields = fields
        self._body = body
        self._head: ResponseHead
        self._pieces: list[bytes] = []
        self._most = self._left = most

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """See `RequestOwner`."""
        return encode_fields([(b"Host", authority), *self._fields]), self._body

    def repeatable(self) -> bool:
        """See `RequestOwner`."""
        return not self._body and may_retry(self.outbound.method.decode("ascii"), True, False, self.outbound.target)

    def on_connection(self) -> None:
        """See `RequestOwner`."""

    def on_interim(self, head: ResponseHead) -> None:
        """See `RequestOwner`."""

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        self._head = head
        self.on_body(piece, complete)

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if self.response.done():
            return
        self._left -= len(piece)
        if self._left < 0:
            self._pieces.clear()
            path = self.outbound.target.partition(b"?")[0].decode("utf-8", "replace")
            self.response.set_exception(
                AnswerTooLarge(f"The cluster's answer for {path} is longer than {self._most} bytes.")
            )
            return
        self._pieces.append(piece)
        if complete:
            self.response.set_result((self._head, b"".join(self._pieces)))
        elif len(piece) >= _LARGE:
            self._take_turns()

    def _take_turns(self) -> None:
        """Read on in the loop's next turn: it may read a connection for as long as the cluster sends faster."""
        connection = self.outbound.connection
        if connection is not None:
            connection.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on, connection)

    def _read_on(self, connection: UpstreamConnection) -> None:
        if self.outbound.connection is connection:
            connection.resume_reading()

    def on_end(self) -> bool:
        """See `RequestOwner`."""
        return False

    def on_failure(self, error: GatewayError) -> None:
        """See `RequestOwner`."""
        if not self.response.done():
            self.response.set_exception(error)

    def on_writable(self, writable: bool) -> None:
        """See `RequestOwner`."""

    def break_off(self) -> None:
        """See `RequestOwner`."""
        fault = sys.exc_info()[1]
        if not self.response.done():
            self.response.set_exception(fault if isinstance(fault, Exception) else RuntimeError("broken off"))

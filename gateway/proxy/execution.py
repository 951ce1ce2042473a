"""A request that runs or manages an agent: read whole, shown to the use case, sent or answered as that says."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import GatewayError, release_frames
from gateway.http1.bodies import Chunked
from gateway.http1.fields import encode_fields
from gateway.http1.request_heads import Fields, Request
from gateway.http1.response_heads import Head
from gateway.ports import Answer, ExecuteCall, Forward
from gateway.proxy import content_coding as bodies
from gateway.proxy import error_responses
from gateway.proxy.exchange import SEND, Exchange
from gateway.proxy.routes import MANAGED, RUNS, Intent, Route
from gateway.upstream.connection import Buffers

if TYPE_CHECKING:
    from gateway.proxy.client_connection import ClientConnection
    from gateway.proxy.data_port import DataPort

RETRY_BODY = 64 * 1024
"""Most bytes of an error answer that the execute use case is shown."""
_AS_IT_CAME = Forward()
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_AGENT = b"X-MLC-Agent"


class Execution(Exchange):
    """An exchange whose request the gateway answers for: its body is held, and may be another on its way on."""

    __slots__ = ("_forward", "_held", "_held_head", "_held_size", "_raw", "_read", "_retry", "_task")

    reads_body = True

    def __init__(self, port: DataPort, client: ClientConnection, request: Request, route: Route) -> None:
        super().__init__(port, client, request, route)
        self.patience = port.upstream.run_patience if route.intent in RUNS else port.upstream.patience
        self.expects = False  # the gateway meets it
        self._read: io.BytesIO | None = None
        self._raw = b""
        self._forward = _AS_IT_CAME
        self._task: asyncio.Task[None] | None = None
        self._held_head: Head | None = None
        self._held: list[bytes] = []
        self._held_size = 0
        self._retry = False

    def go(self) -> None:
        """See `Exchange`: read the body first."""
        limit = self._port.limits.body
        length = self.request.fields.length
        if length is not None and length > limit:
            self.refuse(bodies.too_large(limit, f"{length} bytes"))
            return
        if self.request.fields.expects and not self.complete and not self._pending:
            self.client.transport.write(_CONTINUE)
        pending, self._pending = self._pending, []
        self.upload(b"".join(pending), self.complete)
        if not self.complete:
            self.client.resume_reading()  # it was told to wait if the request was

    def upload(self, piece: bytes, complete: bool) -> None:
        """See `Exchange`."""
        self.complete = complete
        if self.ticket is not None and not self.ticket.admitted:
            self._pending.append(piece)
            return
        size = len(piece)
        if not complete or self._read is not None:
            # Its bytes become the body without another copy, and it grows no further than what has come.
            read = self._read = self._read or io.BytesIO()
            read.write(piece)
            size = read.tell()
        if size > (limit := self._port.limits.body):
            self.refuse(bodies.too_large(limit, f"more than {limit} bytes"))
        elif complete:
            self._whole(piece if self._read is None else self._read.getvalue())

    def _whole(self, raw: bytes) -> None:
        """The body is there."""
        self._read = None
        forward = self._port.try_fast(self, raw)
        if forward is not None:
            self._retry = forward.retry is not None
            self._send(forward, raw)
        else:
            self._task = asyncio.get_running_loop().create_task(self._run(raw))

    def abandon(self) -> None:
        """See `Outbound`."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        super().abandon()

    async def _run(self, raw: bytes) -> None:
        request = self.request
        names = _decoded(request.fields)
        structlog.contextvars.bind_contextvars(request_id=self.request_id, **known_as(request.fields))
        try:
            said = await self._decided(raw, names)
        except GatewayError as exc:
            self._task = None
            release_frames(exc)
            self.refuse(exc)
        except Exception:
            self._task = None
            self.refuse(self._port.internal(self))
        else:
            self._task = None
            if isinstance(said, Answer):
                self.reply(said)
            else:
                self._retry = said.retry is not None
                self._send(said, raw)

    async def _decided(self, raw: bytes, names: CIMultiDict[str]) -> Forward | Answer:
        """What the use case says to the body. One that can't be unpacked is refused, unless the cluster may know it."""
        codings = names.getall("Content-Encoding", [])
        try:
            body = await bodies.decompress(raw, codings, self._port.limits.decompressed)
        except GatewayError:
            if self.route.intent in MANAGED:
                return _AS_IT_CAME
            raise
        call = ExecuteCall(
            agent_id=self.route.id,
            method=self.request.method.decode("ascii"),
            raw_target=self.request.target.decode("utf-8", "surrogateescape"),
            headers=CIMultiDictProxy(names),
            body=body,
            request_id=self.request_id,
            streaming=self.route.intent is Intent.EXECUTE_STREAM,
        )
        return await self._port.decide(call, self)

    def _send(self, forward: Forward, raw: bytes) -> None:
        self._forward = forward
        self._raw = raw
        self._advance(SEND)
        self._port.send(self)

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """See `Outbound`."""
        body = self._forward.body
        pieces: Buffers = [self._raw] if body is None else body
        before, behind = self.request.fields.around_length(self._host(authority), replaced=body is not None)
        return b"%b%d%b" % (before, sum(map(len, pieces)), behind), list(filter(None, pieces))

    def repeatable(self) -> bool:
        """See `Outbound`: an agent's tools may have acted."""
        return False

    def added(self) -> bytes:
        """See `Exchange`."""
        lines = encode_fields(self._forward.response_headers)
        if self.route.aliased:
            lines += b"%b: %b\r\n" % (_AGENT, quote(self.route.id).encode("ascii"))
        return lines

    def on_head(self, head: Head, piece: bytes, complete: bool) -> None:
        """See `Outbound`: an error answer is held until the use case has said whether it is the last word."""
        if self._retry and head.status >= 400:
            self._held_head = head
            self._hold(piece, complete)
        else:
            super().on_head(head, piece, complete)

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `Outbound`."""
        if self._held_head is not None:
            self._hold(piece, complete)
        else:
            super().on_body(piece, complete)

    def _hold(self, piece: bytes, complete: bool) -> None:
        head = self._held_head
        assert head is not None
        self._held.append(piece)
        self._held_size += len(piece)
        if complete:
            self._ask(head)
        elif self._held_size > RETRY_BODY:
            self._release(head, False)

    def _release(self, head: Head, complete: bool) -> None:
        piece = b"".join(self._held)
        self._held.clear()
        self._held_head = None
        self._retry = False
        super().on_head(head, piece, complete)

    def _ask(self, head: Head) -> None:
        """Ask the use case what it makes of an error answer, once."""
        retry = self._forward.retry
        assert retry is not None
        piece = b"".join(self._held)
        if len(piece) > RETRY_BODY:
            self._release(head, True)
            return
        try:
            again = retry(head.status, _readable(head, piece, self.decode))
        except GatewayError as exc:
            self.refuse(exc)
        except Exception:
            self.refuse(self._port.internal(self))
        else:
            if again is None:
                self._release(head, True)
                return
            self._held.clear()
            self._held_head = None
            self._retry = False
            if isinstance(again, Answer):
                self.reply(again)
            else:
                self._send(again, self._raw)


_NAMES = {b"x-opaque-id": "opaque_id", error_responses.REQUEST_ID.lower().encode(): "client_request_id"}


def known_as(fields: Fields) -> dict[str, str]:
    """The client's own names for its request, for the log."""
    found = ((_NAMES.get(name.lower()), value) for name, value in fields.pairs())
    return {key: value.decode("utf-8", "replace") for key, value in found if key and value}


def _decoded(fields: Fields) -> CIMultiDict[str]:
    pairs = fields.pairs()
    return CIMultiDict((name.decode("ascii"), value.decode("utf-8", "surrogateescape")) for name, value in pairs)


def _readable(head: Head, body: bytes, decoded: bool) -> bytes:
    """The data of an answer's body with its codings undone; as they came where that can't be."""
    if head.chunked and not decoded:
        body = Chunked(decode=True).feed(body)
    codings = [value.decode("latin-1") for name, value in head.pairs() if name.lower() == b"content-encoding"]
    try:
        return bodies.decompress_small(body, codings, RETRY_BODY)
    except GatewayError:
        return body

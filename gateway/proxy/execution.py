"""A request that runs or manages an agent: its body is read in full, and a use case decides what is sent."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable
from urllib.parse import quote

import structlog
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import GatewayError, release_frames
from gateway.http1.fields import encode_fields
from gateway.http1.request_heads import Fields, Request
from gateway.http1.response_heads import ResponseHead
from gateway.ports import Answer, ExecuteCall, Forward
from gateway.proxy import content_coding
from gateway.proxy.exchange import SEND, Exchange, ExchangePort
from gateway.proxy.interfaces import Client
from gateway.proxy.request_log import client_ids
from gateway.proxy.routes import MANAGED, RUNS, Intent, Route
from gateway.upstream.outbound import Buffers

RETRY_BODY = 64 * 1024
"""Largest error response, in bytes, that the use case is shown."""
_UNCHANGED = Forward()
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_AGENT = b"X-MLC-Agent"


class Execution(Exchange):
    """An exchange whose request's body is buffered, and may be replaced before it is sent."""

    __slots__ = ("_forward", "_held", "_held_head", "_held_size", "_raw", "_read", "_retry", "_task")

    reads_body = True

    def __init__(self, port: ExchangePort, client: Client, request: Request, route: Route) -> None:
        super().__init__(port, client, request, route)
        if route.intent in RUNS:
            self.outbound.timeouts = port.upstream.execute_timeouts
        self.outbound.expects = False  # the gateway reads the body itself
        self._read: io.BytesIO | None = None
        self._raw = b""
        self._forward = _UNCHANGED
        self._task: asyncio.Task[None] | None = None
        self._held_head: ResponseHead | None = None
        self._held: list[bytes] = []
        self._held_size = 0
        self._retry = False

    def start(self) -> None:
        """See `Exchange`: read the body first."""
        limit = self._port.limits.body
        length = self.request.fields.length
        if length is not None and length > limit:
            self.refuse(content_coding.too_large(limit, f"{length} bytes"))
            return
        pending, self._pending = self._pending, []
        if length is not None and self.outbound.complete:
            self._run(b"".join(pending))
            return
        if self.request.fields.expects and not self.outbound.complete and not pending:
            self.client.transport.write(_CONTINUE)
        self.upload(b"".join(pending), self.outbound.complete)
        if not self.outbound.complete:
            self.client.resume_reading()  # it was paused if the request had to wait

    def upload(self, piece: bytes, complete: bool) -> None:
        """See `Exchange`."""
        self.outbound.complete = complete
        if self.ticket is not None and not self.ticket.admitted:
            self._pending.append(piece)
            return
        size = len(piece)
        if not complete or self._read is not None:
            # A BytesIO becomes the body without another copy, and allocates no more than what has arrived.
            read = self._read = self._read or io.BytesIO()
            read.write(piece)
            size = read.tell()
        if size > (limit := self._port.limits.body):
            self.refuse(content_coding.too_large(limit, f"more than {limit} bytes"))
        elif complete:
            self._run(piece if self._read is None else self._read.getvalue())

    def _run(self, raw: bytes) -> None:
        """Ask the use case; the body is complete."""
        self._read = None
        forward = self._port.dispatcher.try_fast(self, raw)
        if forward is not None:
            self._retry = forward.retry is not None
            self._send(forward, raw)
        else:
            self._task = asyncio.get_running_loop().create_task(self._run_slowly(raw))

    def abandon(self) -> None:
        """See `Exchange`."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        super().abandon()

    async def _run_slowly(self, raw: bytes) -> None:
        fields = self.request.fields
        structlog.contextvars.bind_contextvars(request_id=self.request_id, **client_ids(fields))
        await self._follow(self._decide(raw, _decode_fields(fields)), raw)

    async def _follow(self, deciding: Awaitable[Forward | Answer], raw: bytes) -> None:
        """Do what was decided. raw: the client's body."""
        try:
            decision = await deciding
        except GatewayError as exc:
            self._task = None
            release_frames(exc)
            self.refuse(exc)
        except Exception:
            self._task = None
            self.refuse(self._port.log.internal_error(self))
        else:
            self._task = None
            if isinstance(decision, Answer):
                self.reply(decision)
            else:
                self._retry = decision.retry is not None
                self._send(decision, raw)

    async def _decide(self, raw: bytes, names: CIMultiDict[str]) -> Forward | Answer:
        """Return the use case's decision.

        A body that cannot be decompressed is refused if it runs an agent, and passed through if it manages one: the
        cluster may know the coding.
        """
        codings = names.getall("Content-Encoding", [])
        try:
            body = await content_coding.decompress(raw, codings, self._port.limits.decompressed)
        except GatewayError:
            if self.route.intent in MANAGED:
                return _UNCHANGED
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
        return await self._port.dispatcher.decide(call, self)

    def _send(self, forward: Forward, raw: bytes) -> None:
        self._forward = forward
        self._raw = raw
        self._state = SEND[self._state]
        self._port.upstream.send(self.outbound)

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """See `RequestOwner`."""
        body = self._forward.body
        pieces: Buffers = [self._raw] if body is None else body
        before, after = self.request.fields.around_length(self._host(authority), replaced=body is not None)
        if len(pieces) == 1 and pieces[0]:
            return b"%b%d%b" % (before, len(pieces[0]), after), pieces
        return b"%b%d%b" % (before, sum(map(len, pieces)), after), list(filter(None, pieces))

    def repeatable(self) -> bool:
        """See `RequestOwner`: an agent's tools may have acted."""
        return False

    def added_lines(self) -> bytes:
        """See `Exchange`."""
        headers = self._forward.response_headers
        lines = encode_fields(headers) if headers else b""
        if self.route.aliased:
            lines += b"%b: %b\r\n" % (_AGENT, quote(self.route.id).encode("ascii"))
        return lines

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`: an error response is held back until the use case has decided whether to send again."""
        if self._retry and head.status >= 400:
            self._held_head = head
            self._hold(piece, complete)
        else:
            super().on_head(head, piece, complete)

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
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
            self._decide_retry(head)
        elif self._held_size > RETRY_BODY:
            self._release(head, False)

    def _release(self, head: ResponseHead, complete: bool) -> None:
        piece = b"".join(self._held)
        self._held.clear()
        self._held_head = None
        self._retry = False
        super().on_head(head, piece, complete)

    def _decide_retry(self, head: ResponseHead) -> None:
        """Ask the use case whether to send another request after an error response. It is asked once."""
        retry = self._forward.retry
        assert retry is not None
        piece = b"".join(self._held)
        if len(piece) > RETRY_BODY:
            self._release(head, True)
            return
        try:
            again = retry(head.status, content_coding.response_content(head, piece, self.outbound.decode, RETRY_BODY))
        except GatewayError as exc:
            self.refuse(exc)
        except Exception:
            self.refuse(self._port.log.internal_error(self))
        else:
            if again is None:
                self._release(head, True)
                return
            self._held.clear()
            self._held_head = None
            self._retry = False
            if isinstance(again, Answer):
                self.reply(again)
            elif isinstance(again, Forward):
                self._send(again, self._raw)
            else:
                self._task = asyncio.get_running_loop().create_task(self._follow(again, self._raw))


def _decode_fields(fields: Fields) -> CIMultiDict[str]:
    pairs = fields.pairs()
    return CIMultiDict((name.decode("ascii"), value.decode("utf-8", "surrogateescape")) for name, value in pairs)

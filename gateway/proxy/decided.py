"""The response to a request that a use case has decided on: it may be held, for a retry or to be finished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any
from urllib.parse import quote

import structlog

from gateway.errors import GatewayError
from gateway.http1.fields import encode_fields
from gateway.http1.request_heads import Request
from gateway.http1.response_heads import ResponseHead
from gateway.offload import READING
from gateway.ports import Answer, AnswerStage, Forward
from gateway.proxy import content_coding
from gateway.proxy.body_copy import HELD_ANSWER, ResponseCopy
from gateway.proxy.exchange import Exchange, ExchangePort
from gateway.proxy.interfaces import Client, RunningExchange
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.relay import head_with_length
from gateway.proxy.request_log import RequestLog, log_ids
from gateway.proxy.routes import Intent, Route


class AnswerReport:
    """The report about one exchange. What takes long is done in the background."""

    def __init__(self, exchange: RunningExchange, stage: AnswerStage, lifecycle: Lifecycle, log: RequestLog) -> None:
        self._exchange = exchange
        self._stage = stage
        self._lifecycle = lifecycle
        self._log = log

    def run(self, copy: ResponseCopy | None) -> None:
        """Report a response. copy: None if there was none."""
        if copy is None:
            left = self._call(0, b"")
        elif copy.is_small:
            left = self._call(copy.head.status, copy.content())
        else:
            left = self._read(copy.head.status, copy)
        if left is not None:
            self._lifecycle.run_report(left)

    async def _read(self, status: int, copy: ResponseCopy) -> None:
        try:
            content = await READING.run(copy.content)
        except Exception:
            self._log.internal_error(self._exchange)
            content = b""
        left = self._call(status, content)
        if left is not None:
            await left

    def _call(self, status: int, content: bytes) -> Coroutine[Any, Any, None] | None:
        """Call the use case; return the work that it leaves."""
        try:
            left = self._stage.report(status, content)
        except Exception:
            self._log.internal_error(self._exchange)
            return None
        return None if left is None else self._finish(left)

    async def _finish(self, left: Coroutine[Any, Any, None]) -> None:
        try:
            await left
        except Exception:
            self._log.internal_error(self._exchange)


RETRY_BODY = 64 * 1024
"""Largest error response, in bytes, that the use case is shown."""
_AGENT = b"X-MLC-Agent"
_UNCHANGED = Forward()
_NOTHING: Mapping[str, str] = {}


class _HeldResponse:
    """A response that is held back, as far as it has arrived. size: bytes of the pieces."""

    __slots__ = ("head", "pieces", "size")

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self.pieces: list[bytes] = []
        self.size = 0


class DecidedExchange(Exchange):
    """An exchange whose response goes back to the use case, if that has asked for it; see `gateway.ports.Forward`."""

    __slots__ = (
        "_added", "_copies_response", "_copy", "_forward", "_held", "_holds", "_relayed", "_relays", "_retry",
        "_task", "held",
    )  # fmt: skip

    def __init__(self, port: ExchangePort, client: Client, request: Request, route: Route) -> None:
        Exchange.__init__(self, port, client, request, route)  # every request: before Python 3.12, `super()` is slow
        self._forward = _UNCHANGED
        self._copies_response = False
        self._copy: ResponseCopy | bytes | None = None
        """The response, if the recorder or the use case gets it; bytes: see `gateway.proxy.capture.Bodies`."""
        self.held = 0
        self._relayed: list[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._held: _HeldResponse | None = None
        self._holds = self._retry = self._relays = False
        self._added = _NOTHING

    def send_again(self, forward: Forward) -> None:
        """Send another request in place of the one that failed."""
        raise NotImplementedError

    def follow(self, deciding: Awaitable[Answer]) -> None:
        """Send the response that is being decided on."""
        raise NotImplementedError

    def abandon(self) -> None:
        """See `Exchange`."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        super().abandon()

    def added_lines(self) -> bytes:
        """See `Exchange`."""
        headers = self._forward.response_headers
        lines = encode_fields(headers) if headers else b""
        if self._added:
            lines += encode_fields(self._added)
        if self.route.aliased:
            lines += b"%b: %b\r\n" % (_AGENT, quote(self.route.id).encode("ascii"))
        return lines

    def run_task(self, work: Awaitable[None]) -> None:
        """Run `work` for the exchange, which can't be left without an end."""
        self._task = asyncio.get_running_loop().create_task(self._guard(work))

    async def _guard(self, work: Awaitable[None]) -> None:
        structlog.contextvars.bind_contextvars(**log_ids(self))
        try:
            await work
        except asyncio.CancelledError:
            if self._task is not None:  # not by `abandon`: what it waited for was cancelled
                self._task = None
                self.break_off()
            raise
        except Exception:
            self._task = None
            self.break_off()

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`. Send on a response, or hold it back until the use case has decided what to do with it."""
        if self._copies_response:
            passes = complete and not self._holds and head.status < 400
            if passes and not head.chunked and len(piece) <= HELD_ANSWER:  # most responses; a copy would take time
                self._copy, self.head = piece, head  # together, even if the next step fails
            else:
                self._copy = ResponseCopy(HELD_ANSWER, head, self.outbound.decode, piece, complete)
        if self._retry and head.status >= 400:
            self._held = _HeldResponse(head)
            self._hold(self._held, piece, complete)
        elif not self._holds:
            Exchange.on_head(self, head, piece, complete)
        elif self.route.intent is Intent.EXECUTE_STREAM and is_event_stream(head):
            self._relays = True
            self._begin_unframed(head)
            self._relay(piece, complete)
        else:
            self.response_began()
            self._held = _HeldResponse(head)
            self._hold(self._held, piece, complete)

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if isinstance(self._copy, ResponseCopy):
            self._copy.add(piece, complete)
            self.held += len(piece)
        if self._held is not None:
            self._hold(self._held, piece, complete)
        elif self._relays:
            self._relay(piece, complete)
        else:
            super().on_body(piece, complete)

    def _begin_unframed(self, head: ResponseHead) -> None:
        """Send the head of a response whose body arrives without its chunk lines."""
        super().on_head(head, b"", False)
        self._chunk = self._chunk or (head.chunked and self.request.minor == 1)

    def _hold(self, held: _HeldResponse, piece: bytes, complete: bool) -> None:
        held.pieces.append(piece)
        held.size += len(piece)
        if complete and self._retry and held.head.status >= 400:
            self._decide_retry(held)
        elif complete:
            self._release(held, True)
        elif held.size > (HELD_ANSWER if self._holds else RETRY_BODY):
            self._release(held, False)

    def _release(self, held: _HeldResponse, complete: bool) -> None:
        """Send on what was held. complete: it is the whole response, which the use case may finish first."""
        head, piece = held.head, b"".join(held.pieces)
        self._held = None
        self._retry = False
        if not self._holds:
            super().on_head(head, piece, complete)
        elif complete:
            self.run_task(self._finish_held(head, piece))
        else:
            try:
                self._give_up()
                if head.status < 300:
                    self._added = self._forward.leave()
            except GatewayError as exc:
                self.refuse(exc)
                return
            self._begin_unframed(head)
            super().on_body(piece, False)

    async def _finish_held(self, head: ResponseHead, body: bytes) -> None:
        """Send a whole response as the stages finish it."""
        try:
            content = await content_coding.decode_response(head, body, HELD_ANSWER)
            if content is None and head.status < 300:
                self._give_up()
                self._added, changed = self._forward.leave(), False
            else:
                answer = await self._forward.finish(Answer(head.status, {}, content or b""))
                self._added, changed = answer.headers, answer.body != (content or b"")
        except GatewayError as exc:
            self._task = None
            self.refuse(exc)
            return
        self._task = None
        if changed:
            self.answer, body = answer, answer.body
        super().on_head(head_with_length(head, len(body), changed), body, True)

    def _relay(self, piece: bytes, complete: bool) -> None:
        shown = self._forward.feed(piece)
        if self._relayed is not None:
            self._relayed.append(shown)
        super().on_body(shown, False)
        if complete:
            self.run_task(self._finish_relayed())

    async def _finish_relayed(self) -> None:
        """Send the end of an event stream once the stages have finished it."""
        last = (await self._forward.finish(Answer(self.status, {}, b""), streamed=True)).body
        self._task = None
        if self._relayed is not None:
            self._relayed.append(last)
        super().on_body(last, True)

    def _give_up(self) -> None:
        """Report to the stages that they will not be asked to finish the response, or not again."""
        try:
            self._forward.abandon()
        except Exception:
            self._port.log.internal_error(self)

    def _finish(self) -> None:
        stages = self._forward.stages
        if stages:
            self._give_up()
        Exchange._finish(self)
        for stage in stages:
            if stage.reports:
                self._report(stage)

    def _report(self, stage: AnswerStage) -> None:
        """Show a stage the cluster's response, which the exchange is done with."""
        copy = self._copy
        if isinstance(copy, bytes):
            assert self.head is not None
            copy = ResponseCopy(HELD_ANSWER, self.head, True, copy, True)
        try:
            AnswerReport(self, stage, self._port.lifecycle, self._port.log).run(copy)
        except Exception:
            self._port.log.internal_error(self)

    def _decide_retry(self, held: _HeldResponse) -> None:
        """Ask the use case whether to send another request after an error response. It is asked once."""
        retry = self._forward.retry
        assert retry is not None
        head, piece = held.head, b"".join(held.pieces)
        if len(piece) > RETRY_BODY:
            self._release(held, True)
            return
        try:
            again = retry(head.status, content_coding.response_content(head, piece, self.outbound.decode, RETRY_BODY))
        except GatewayError as exc:
            self.refuse(exc)
        else:
            if again is None:
                self._release(held, True)
                return
            self._held = None
            self._retry = False
            if isinstance(again, Answer):
                self.reply(again)
            elif isinstance(again, Forward):
                self.send_again(again)
            else:
                self.follow(again)


def is_event_stream(head: ResponseHead) -> bool:
    """Return True for server-sent events without a length and without a content coding."""
    fields = {name.lower(): value for name, value in head.pairs()}
    kind = fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"text/event-stream" and head.length is None and b"content-encoding" not in fields

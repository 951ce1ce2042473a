"""A request that runs or manages an agent, and its response, which may be held, for a retry or to be changed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Coroutine, Mapping, Set
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import structlog
from multidict import CIMultiDict, CIMultiDictProxy
from typing_extensions import override

from gateway.errors import GatewayError, release_frames
from gateway.http1.fields import encode_fields
from gateway.http1.request_heads import MOST_HEADS, Fields, Request
from gateway.http1.response_heads import ResponseHead
from gateway.observe.record import TraceContext
from gateway.observe.trace_context import NOT_RECORDED, RECORDED, continue_trace, has_context, with_context
from gateway.offload import READING
from gateway.ports import Answer, AnswerStage, ExecuteCall, Forward, Routed, Steps
from gateway.proxy import content_coding
from gateway.proxy.capture import HELD_ANSWER, Bodies, BufferedBody, Captured, ResponseCopy
from gateway.proxy.exchange import SEND, UNLIMITED, Exchange, ExchangePort, encode_chunk, head_with_length
from gateway.proxy.interfaces import Client, RunningExchange
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.request_log import RequestLog, log_ids
from gateway.proxy.routes import MANAGED, RUNS, Intent, Route
from gateway.routing.caller import OPEN_HEADERS, open_target
from gateway.upstream.auth.authenticator import client_signature
from gateway.upstream.outbound import Buffers, OutboundRequest


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
_AGENT, _CLUSTER = b"X-MLC-Agent", b"X-MLC-Cluster"
_UNCHANGED = Forward()
_NOTHING: Mapping[str, str] = {}


class _HeldResponse:
    """A response that is held back, as far as it has arrived. size: bytes of the pieces."""

    __slots__ = ("head", "pieces", "size")

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self.pieces: list[bytes] = []
        self.size = 0


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Run(Exchange):
    """A request that runs or manages an agent: its body is read in full, and a use case decides what is sent.

    The response goes through the stages of the decision; see `gateway.ports.Forward`.
    """

    __slots__ = (
        "_added", "_copies_response", "_copy", "_forward", "_held", "_holds", "_new_ids", "_raw", "_read", "_read_at",
        "_relayed", "_relays", "_retry", "_sent_at", "_sent_fields", "_sent_head", "_steps", "_task", "_trace",
        "_upstream", "held", "is_recorded",
    )  # fmt: skip

    reads_body = True

    def __init__(self, port: ExchangePort, client: Client, request: Request, route: Route) -> None:
        super().__init__(port, client, request, route)
        self._forward = _UNCHANGED
        self._upstream = port.upstream
        self._sent_fields = request.fields
        self._copies_response = False
        self._copy: ResponseCopy | bytes | None = None
        """The response, if the recorder or the use case gets it; bytes: see `gateway.proxy.capture.Bodies`."""
        self.held = 0
        self._relayed: list[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._held: _HeldResponse | None = None
        self._holds = self._retry = self._relays = False
        self._added = _NOTHING
        self._trace: TraceContext | None = None
        self._new_ids = b""
        capture = port.capture
        self.is_recorded = capture is not None and not capture.traced_only
        if route.intent in RUNS:
            self.outbound.timeouts = port.upstream.execute_timeouts
            if (new := port.new_traces) is not None:
                fields = request.fields
                if fields.traced is None:
                    fields.traced = has_context(fields.lines)
                if fields.traced:
                    self._trace = continue_trace(fields.lines, new)
                    sampled = self._trace.sampled
                else:
                    self._new_ids = ids = next(new.ids)
                    sampled = ids < new.limit
                if sampled and capture is not None:
                    self.is_recorded = True
        self.outbound.expects = False  # the gateway reads the body itself
        self._read: BufferedBody | None = None
        self._raw = b""
        self._sent_head = b""
        self._read_at = self._sent_at = 0.0
        self._steps: Steps | None = None

    @property
    def trace(self) -> TraceContext | None:
        """See `Exchange`. Most contexts are never read."""
        new = self._port.new_traces
        if self._trace is None and self._new_ids and new is not None:
            self._trace = new.context(self._new_ids)
        return self._trace

    def begin(self, piece: bytes, complete: bool) -> None:
        """See `Exchange`. Most bodies arrive with their heads, and can be run at once."""
        if complete and len(piece) <= self._port.limits.body and not self._port.limits_requests:
            self._run(piece)
        else:
            super().begin(piece, complete)

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

    @override
    def upload(self, piece: bytes, complete: bool) -> None:
        self.outbound.complete = complete
        if complete and self.arrived == self.started:  # not if it waited to be admitted
            self.arrived = time.monotonic()
        if self.ticket is not None and not self.ticket.admitted:
            self._pending.append(piece)
            return
        size = len(piece)
        if not complete or self._read is not None:
            read = self._read = self._read or BufferedBody(self.request.fields.length)
            read.write(piece)
            size = read.size
        if size > (limit := self._port.limits.body):
            self.refuse(content_coding.too_large(limit, f"more than {limit} bytes"))
        elif complete:
            self._run(piece if self._read is None else self._read.value())

    def _run(self, raw: bytes) -> None:
        """Ask the use case; the body is complete."""
        self._read = None
        self._raw = raw
        self.held = len(raw)
        self._read_at = self.arrived if self.ticket is None else time.monotonic()  # it may have waited
        try:
            self.run_task(self._decide_and_follow(raw))
        except Exception:  # on its way to the loop it would close the connection without a response
            self.break_off()

    async def _decide_and_follow(self, raw: bytes) -> None:
        fields = self.request.fields
        if self.is_recorded:
            self._steps = Steps(self._read_at)
        await self._follow(self._decide(raw, decode_fields(fields)), raw)

    async def _follow(self, deciding: Awaitable[Forward | Answer], raw: bytes) -> None:
        """Do what was decided. raw: the client's body."""
        try:
            decision = await deciding
        except GatewayError as exc:
            self._task = None
            release_frames(exc)
            self.refuse(exc)
        else:
            self._task = None
            if isinstance(decision, Answer):
                self.reply(decision)
            else:
                self._forward = decision  # its stages are abandoned if what follows fails
                self._retry = decision.retry is not None
                now = time.monotonic()
                if decision.body is not None and self.route.intent in RUNS:
                    self._port.log.rewrote(now - self._read_at)
                self._send(decision, raw, now)

    def send_again(self, forward: Forward) -> None:
        """Send another request in place of the one that failed."""
        self._send(forward, self._raw, time.monotonic())

    def follow(self, deciding: Awaitable[Forward | Answer]) -> None:
        """Do what is being decided on."""
        self.run_task(self._follow(deciding, self._raw))

    async def _decide(self, raw: bytes, names: CIMultiDictProxy[str]) -> Forward | Answer:
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
            headers=names,
            body=body,
            request_id=self.request_id,
            streaming=self.route.intent is Intent.EXECUTE_STREAM,
            steps=self._steps,
            session=self.client.session,
            mirror=self.client.mirror,
        )
        return await self._port.dispatcher.decide(call, self)

    def _send(self, forward: Forward, raw: bytes, now: float) -> None:
        """Send a request. raw: the client's body. now: of `time.monotonic`."""
        self._sent_at = now
        self._forward = forward
        self._raw = raw
        self._holds = forward.holds
        if self._holds:
            self.outbound.decode = True
        if forward.routed is not None:
            self._take_route(forward.routed, forward.target)
        if forward.whole:
            self.outbound.target = whole_target(self.outbound.target)
        self._copy = None
        if self.is_recorded:
            self._copies_response = True
            streams = self.route.intent is Intent.EXECUTE_STREAM and not forward.whole
            self._relayed = [] if self._holds and streams else None
        elif any(stage.reports for stage in forward.stages):
            self._copies_response = True
        self._state = SEND[self._state]
        self._upstream.send(self.outbound)

    def _take_route(self, routed: Routed, target: bytes) -> None:
        """Prepare the request for the cluster and the agent that a route has chosen."""
        request, upstream = self.request, self._port.clusters[routed.cluster]
        timeouts = upstream.execute_timeouts if self.route.intent in RUNS else upstream.timeouts
        decode = self._holds or request.minor == 0
        target = target or request.target
        target = target if routed.passes else open_target(target)
        self.outbound = OutboundRequest(self, request.method, target, timeouts, decode)
        self._upstream = upstream
        self._sent_fields = request.fields if routed.passes else open_fields(request)

    @override
    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        body = self._forward.body
        pieces: Buffers = [self._raw] if body is None else body
        replaced = body is not None
        plain = self._holds and (replaced or bool(self._forward.target))  # the client's signature is on neither
        before, after = self._sent_fields.around_length(self._host(authority), replaced=replaced, plain=plain)
        if len(pieces) == 1 and pieces[0]:
            size = len(pieces[0])
        else:
            pieces = list(filter(None, pieces))
            size = sum(map(len, pieces))
        new = self._port.new_traces
        if new is not None and self._new_ids:
            end = RECORDED if self._new_ids < new.limit else NOT_RECORDED
            self._sent_head = b"%b%d%b%b%b%b" % (before, size, after, new.line, self._new_ids, end)
        else:
            self._sent_head = b"%b%d%b\r\n" % (before, size, after)
            if self._trace is not None and not (self._trace.parent and self._is_signed()):
                self._sent_head = with_context(self._sent_head, self._trace)
        return self._sent_head, pieces

    def _host(self, authority: bytes) -> bytes:
        """See `Exchange`: as the settings of the route's cluster say."""
        return authority if self._upstream.own_host or self._sent_fields.host is None else b""

    def _is_signed(self) -> bool:
        """Return True if the client's own signature is sent, which may cover its trace headers."""
        signed = client_signature(self.request.target, self._sent_fields.pairs())
        return self._upstream.auth is None and bool(signed)

    def repeatable(self) -> bool:
        """See `RequestOwner`: an agent's tools may have acted."""
        return self.route.intent is Intent.ROUTED_MEMORY and super().repeatable()

    def was_planned_with(self, documents: Set[str], before: float) -> bool:
        """See `gateway.proxy.lifecycle.PlannedRun`. While it is not decided, it may be any document."""
        if self._read_at > before:
            return False
        is_undecided = self._task is not None and not self._sent_at
        return is_undecided or not documents.isdisjoint(self._forward.documents)

    def captured(self, ended: float) -> Captured:
        """See `Exchange`: with the bodies."""
        forward, steps, error = self._forward, self._steps, self.error
        delivered = forward.delivery if steps is None else forward.delivery or steps.delivery
        bodies = Bodies(
            self._raw or (self._read.value() if self._read is not None else b""),
            False,
            self._sent_head,
            forward.body,
            self._copy,
            self._relayed,
            delivered,
            forward.render,
            self._read_at,
            self._sent_at,
            steps,
            forward.guardrails or (error.guardrails if error is not None else ()),
        )
        captured = self._captured(ended, bodies)
        captured.routed = forward.routed if steps is None else forward.routed or steps.routed
        captured.mirror_of = self.client.mirror.of if self.client.mirror is not None else ""
        return captured

    # The response

    @override
    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        super().abandon()

    @override
    def added_lines(self) -> bytes:
        headers = self._forward.response_headers
        lines = encode_fields(headers) if headers else b""
        if self._added:
            lines += encode_fields(self._added)
        routed = self._forward.routed
        if routed is not None and self.route.intent in RUNS:
            lines += b"%b: %b\r\n" % (_AGENT, quote(routed.agent_id).encode("ascii"))
            lines += b"%b: %b\r\n" % (_CLUSTER, routed.cluster.encode("ascii")) if routed.cluster else b""
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

    @override
    def on_interim(self, head: ResponseHead) -> None:
        super().on_interim(self._without_cookies(head))

    def _without_cookies(self, head: ResponseHead) -> ResponseHead:
        routed = self._forward.routed
        return without_cookies(head) if routed is not None and routed.cluster else head

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`. Send on a response, or hold it back until the use case has decided what to do with it."""
        head = self._without_cookies(head)
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

    @override
    def on_body(self, piece: bytes, complete: bool) -> None:
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
        super().on_head(head_with_length(head, len(body), changed, self._added), body, True)

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

    def on_failure(self, error: GatewayError) -> None:
        """See `RequestOwner`. Another target of the route may take over, until an answer has begun."""
        hand_over = self._forward.hand_over
        if hand_over is None or self.answered_at or self._held is not None:
            super().on_failure(error)
            return
        self._port.log.failed(self, error)
        failed, self._forward = self._forward, _UNCHANGED
        failed.withdraw()
        self._report_all(failed)  # the run may have begun
        self._sent_head = b""
        self.follow(_take_over(hand_over(), error))

    def _fail(self, error: GatewayError) -> None:
        """See `Exchange`. A stream that is relayed ends with the event of its failure, but not as a whole response."""
        if self._relays and not self.client.transport.is_closing():
            self._relays = False
            last = self._forward.cut(error)
            if last:
                if self._relayed is not None:
                    self._relayed.append(last)
                self.client.transport.write(encode_chunk(last, False) if self._chunk else last)
        for stage in self._forward.stages:
            stage.fail(error)
        super()._fail(error)

    def _give_up(self) -> None:
        """Report to the stages that they will not be asked to finish the response, or not again."""
        try:
            self._forward.abandon()
        except Exception:
            self._port.log.internal_error(self)

    def _finish(self) -> None:
        forward = self._forward
        if forward.stages:
            self._give_up()
        Exchange._finish(self)
        self._report_all(forward)

    def _report_all(self, forward: Forward) -> None:
        for stage in forward.stages:
            if stage.reports:
                self._report(stage)

    def _report(self, stage: AnswerStage) -> None:
        """Show a stage the cluster's response, which the run is done with.

        There is nothing to report of a request for which no node could be reached.
        """
        if not self._sent_head:
            return
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
                self._forward.withdraw()
                self.follow(again)


async def _take_over(deciding: Awaitable[Forward | Answer], failure: GatewayError) -> Forward | Answer:
    """Return what the next target gets. Where that can't take the request, it has failed as before.

    Raises:
        GatewayError: the failure, which may pass, unlike a refusal by the next target.
    """
    try:
        return await deciding
    except GatewayError:
        raise failure from None


def open_fields(request: Request) -> Fields:
    """Return the fields of a request that any cluster may get (`gateway.routing.caller`)."""
    lines = [line for line in request.fields.lines if line.partition(b":")[0].decode("ascii").lower() in OPEN_HEADERS]
    head = b"\r\n".join((*lines, b"", b""))
    return Fields(head, 0, request.minor, request.fields.limits)


def without_cookies(head: ResponseHead) -> ResponseHead:
    """Return the head of another cluster's response without its cookies, which a client would send to `upstream`."""
    if not any(line[:11].lower() == b"set-cookie:" for line in head.lines):
        return head
    lines = (head.raw.partition(b"\r\n")[0], *(line for line in head.lines if line[:11].lower() != b"set-cookie:"))
    return ResponseHead(b"\r\n".join((*lines, b"", b"")), UNLIMITED)


_STREAM = re.compile(rb"/+stream/*$")


def whole_target(target: bytes) -> bytes:
    """Return the target of the same run without a stream; ``…/_execute/stream?x`` is ``…/_execute?x``."""
    path, mark, query = target.partition(b"?")
    return _STREAM.sub(b"", path) + mark + query


@lru_cache(MOST_HEADS)
def decode_fields(fields: Fields) -> CIMultiDictProxy[str]:
    """Return all header fields as text. Requests with the same lines share their fields."""
    pairs = fields.pairs()
    return CIMultiDictProxy(
        CIMultiDict((name.decode("ascii"), value.decode("utf-8", "surrogateescape")) for name, value in pairs)
    )


def is_event_stream(head: ResponseHead) -> bool:
    """Return True for server-sent events without a length and without a content coding."""
    fields = {name.lower(): value for name, value in head.pairs()}
    kind = fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"text/event-stream" and head.length is None and b"content-encoding" not in fields

"""A request that runs or manages an agent: its body is read in full, and a use case decides what is sent."""

from __future__ import annotations

import io
import time
from collections.abc import Awaitable, Set
from functools import lru_cache

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import GatewayError, release_frames
from gateway.http1.request_heads import MOST_HEADS, Fields, Request
from gateway.observe.record import TraceContext
from gateway.observe.trace_context import NOT_RECORDED, RECORDED, continue_trace, has_context, with_context
from gateway.ports import Answer, AnswerStage, ExecuteCall, Forward, Steps
from gateway.proxy import content_coding
from gateway.proxy.capture import Bodies, Captured
from gateway.proxy.decided import DecidedExchange
from gateway.proxy.exchange import ExchangePort
from gateway.proxy.interfaces import Client
from gateway.proxy.relay import SEND
from gateway.proxy.routes import MANAGED, RUNS, Intent, Route
from gateway.upstream.auth.authenticator import client_signature
from gateway.upstream.outbound import Buffers

_JOINED = 1 << 20
"""Bytes up to which pieces are kept and joined: one copy, where a buffer that grows piece by piece takes several."""


class BufferedBody:
    """Collects the pieces of a body. length: as announced, if it was. size: bytes of it so far."""

    __slots__ = ("_large", "_pieces", "size")

    def __init__(self, length: int | None) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        # A BytesIO becomes the body without another copy, and allocates no more than what has arrived.
        self._large = io.BytesIO() if length is not None and length > _JOINED else None

    def write(self, piece: bytes) -> None:
        """Append a piece."""
        self.size += len(piece)
        if self._large is not None:
            self._large.write(piece)
        elif self.size <= _JOINED:
            self._pieces.append(piece)
        else:
            self._large = io.BytesIO()
            self._large.writelines([*self._pieces, piece])
            self._pieces.clear()

    def value(self) -> bytes:
        """Return the whole body."""
        return b"".join(self._pieces) if self._large is None else self._large.getvalue()


_UNCHANGED = Forward()
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Execution(DecidedExchange):
    """An exchange whose request's body is buffered, and may be replaced before it is sent."""

    __slots__ = ("_new_ids", "_raw", "_read", "_read_at", "_sent_at", "_sent_head", "_steps", "_trace", "is_recorded")

    reads_body = True

    def __init__(self, port: ExchangePort, client: Client, request: Request, route: Route) -> None:
        DecidedExchange.__init__(self, port, client, request, route)  # as there
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
        """See `Relay`. Most contexts are never read."""
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

    def upload(self, piece: bytes, complete: bool) -> None:
        """See `Exchange`."""
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

    def _report(self, stage: AnswerStage) -> None:
        """See `DecidedExchange`. There is nothing to report of a request for which no node could be reached."""
        if self._sent_head:
            super()._report(stage)

    def send_again(self, forward: Forward) -> None:
        """See `DecidedExchange`."""
        self._send(forward, self._raw, time.monotonic())

    def follow(self, deciding: Awaitable[Answer]) -> None:
        """See `DecidedExchange`."""
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
        self._copy = None
        if self.is_recorded:
            self._copies_response = True
            self._relayed = [] if self._holds and self.route.intent is Intent.EXECUTE_STREAM else None
        elif any(stage.reports for stage in forward.stages):
            self._copies_response = True
        self._state = SEND[self._state]
        self._port.upstream.send(self.outbound)

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """See `RequestOwner`."""
        body = self._forward.body
        pieces: Buffers = [self._raw] if body is None else body
        replaced = body is not None
        plain = replaced and self._holds
        before, after = self.request.fields.around_length(self._host(authority), replaced=replaced, plain=plain)
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

    def _is_signed(self) -> bool:
        """Return True if the client's own signature is sent, which may cover its trace headers."""
        signed = client_signature(self.request.target, self.request.fields.pairs())
        return self._port.upstream.auth is None and bool(signed)

    def repeatable(self) -> bool:
        """See `RequestOwner`: an agent's tools may have acted."""
        return False

    def was_planned_with(self, documents: Set[str], before: float) -> bool:
        """See `gateway.proxy.lifecycle.Run`. While it is not decided, it may be any document."""
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
        return self._captured(ended, bodies)


@lru_cache(MOST_HEADS)
def decode_fields(fields: Fields) -> CIMultiDictProxy[str]:
    """Return all header fields as text. Requests with the same lines share their fields."""
    pairs = fields.pairs()
    return CIMultiDictProxy(
        CIMultiDict((name.decode("ascii"), value.decode("utf-8", "surrogateescape")) for name, value in pairs)
    )

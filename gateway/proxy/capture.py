"""What an exchange leaves for the recorder, whose thread makes a record of it; copies of bodies."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from gateway.errors import GatewayError
from gateway.http1.bodies import Chunked
from gateway.http1.request_heads import Fields
from gateway.http1.response_heads import ResponseHead
from gateway.http1.rules import Malformed
from gateway.observe.logs import describe_error
from gateway.observe.record import Delivery, RecordedError, RecordedProblem, TraceContext
from gateway.ports import Answer, Routed, Steps
from gateway.proxy import content_coding
from gateway.proxy.routes import Route
from gateway.unified.limits import SMALL_TEXT

Data = bytes | memoryview
Render = Callable[[str], str]


class Bodies(Struct, array_like=True, gc=False):
    """The bodies of an exchange, and how they came about.

    request: as it arrived, with its chunk lines if `chunk_lines`. sent_head: the head lines that were sent to the
    cluster in place of the client's, b"" if those were sent. sent: the body that was sent in place of the client's, in
    pieces. response: the cluster's; bytes: its body, if that is not chunked and arrived in one piece with the head of
    `Captured`. relayed: what was sent to the client in place of an event stream's pieces.
    delivery, render: see `gateway.ports.Forward`.
    read_at, sent_at: when the request's body was complete, and when the request was sent; 0 if it was not. steps: what
    the use case noted. guardrails: see `gateway.ports.Forward`.
    """

    request: bytes | BodyCopy
    chunk_lines: bool = False
    sent_head: bytes = b""
    sent: Sequence[Data] | None = None
    response: ResponseCopy | bytes | None = None
    relayed: list[bytes] | None = None
    delivery: Delivery | None = None
    render: Render | None = None
    read_at: float = 0.0
    sent_at: float = 0.0
    steps: Steps | None = None
    guardrails: Sequence[dict[str, Any]] = ()

    @property
    def size(self) -> int:
        """Bytes that are held. Pieces of `sent` that are part of `request` count twice."""
        request, response, sent = self.request, self.response, self.sent
        held = len(request) if isinstance(request, bytes) else request.held
        if sent is not None:
            held += len(sent[0]) if len(sent) == 1 else sum(map(len, sent))
        if self.relayed is not None:
            held += sum(map(len, self.relayed))
        if response is None:
            return held
        return held + (len(response) if isinstance(response, bytes) else min(response.size, response.limit))


class CapturedError(Struct, frozen=True, array_like=True, gc=False):
    """Why the gateway refused or failed a request. body: of its response, as JSON."""

    recorded: RecordedError
    body: bytes


class Captured(Struct, array_like=True, gc=False):
    """An exchange that is over. Times are in seconds of `time.monotonic`.

    id: "" if it was not needed yet. fields, method, target, minor: of the request. connection, client: number and
    address of the client's connection. answered_at: when the head of the cluster's response arrived; 0 without one.
    head: that head. status: see `ExchangeRecord`. answer: the gateway's own response, or the body in place of the
    cluster's. error: why the gateway refused or failed it. bodies: None if they are not recorded. trace, mirror_of: see
    `ExchangeRecord`. routed: where a route sent it; None if none did.
    """

    id: str
    fields: Fields
    method: bytes
    target: bytes
    minor: int
    route: Route
    connection: int
    client: str
    started: float
    ended: float
    status: int
    answered_at: float = 0.0
    head: ResponseHead | None = None
    answer: Answer | None = None
    error: CapturedError | None = None
    bodies: Bodies | None = None
    trace: TraceContext | None = None
    routed: Routed | None = None
    mirror_of: str = ""


class Capturable(Protocol):
    """An exchange that is over."""

    @property
    def held(self) -> int:
        """Bytes of bodies that it keeps for the recorder, at least roughly."""

    def captured(self, ended: float) -> Captured:
        """Return what the recorder gets of the exchange. ended: when it ended."""


class Capture(Protocol):
    """Takes exchanges that are over. passthrough: also those that passed unchanged; bodies: with their bodies.

    body_limit: most bytes of each body of an exchange that passed unchanged. traced_only: only runs whose trace is
    sampled are recorded.
    """

    passthrough: bool
    bodies: bool
    traced_only: bool
    body_limit: int

    def add(self, exchange: Capturable, ended: float) -> None:
        """Take an exchange, which nobody changes any more. It never waits and never fails."""


def capture_error(error: GatewayError) -> CapturedError:
    """Return an error as the log shows it, and as the client got it."""
    shown = describe_error(error, payloads=False)
    problems = tuple(
        RecordedProblem(problem.get("code", ""), problem.get("field", ""), problem.get("reason", ""))
        for problem in shown["problems"]
    )
    return CapturedError(RecordedError(shown["type"], shown["reason"], problems), msgspec.json.encode(error.body()))


HELD_ANSWER = 16 * 1024 * 1024
"""Largest response, in bytes, that is held for the use case to finish, and copied for the recorder."""


class BodyCopy:
    """A body as it came. limit: most bytes that are kept; the rest is only counted.

    pieces: what is kept. size: bytes of the whole body so far. complete: its end has arrived.
    """

    __slots__ = ("complete", "limit", "pieces", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pieces: list[bytes] = []
        self.size = 0
        self.complete = False

    def add(self, piece: bytes, complete: bool) -> None:
        """Add a piece. complete: it is the last one."""
        left = self.limit - self.size
        self.size += len(piece)
        if left > 0 and piece:
            self.pieces.append(piece if len(piece) <= left else piece[:left])
        self.complete = complete

    @property
    def held(self) -> int:
        """Bytes that are kept."""
        return min(self.size, self.limit)

    @property
    def is_whole(self) -> bool:
        """The whole body has arrived, and has been kept."""
        return self.complete and self.size <= self.limit


class ResponseCopy(BodyCopy):
    """A response as it came from the cluster: its head, and its body from the first piece on.

    decoded: without chunk lines; True if it came with them removed.
    """

    __slots__ = ("decoded", "head")

    def __init__(self, limit: int, head: ResponseHead, decoded: bool, piece: bytes, complete: bool) -> None:
        self.limit = limit  # not by `super()`: every run
        self.head = head
        self.decoded = decoded or not head.chunked
        size = self.size = len(piece)
        self.pieces = [piece if size <= limit else piece[:limit]] if size and limit else []
        self.complete = complete

    @property
    def is_small(self) -> bool:
        """`content` takes so little time that other clients of the event loop can wait for it."""
        if not self.is_whole:
            return True
        return self.decoded and self.size <= SMALL_TEXT and not content_coding.response_codings(self.head)

    def body(self) -> bytes:
        """Return what is kept, without chunk lines and in its content coding. It may take long."""
        return without_chunk_lines(self.pieces) if not self.decoded else b"".join(self.pieces)

    def content(self) -> bytes:
        """Return the body without its content coding; b"" if it is not whole, or can't be decoded. It may take long."""
        if not self.is_whole:
            return b""
        if self.is_small and len(self.pieces) == 1:
            return self.pieces[0]
        return content_coding.whole_content(self.head, self.body(), self.limit)


def without_chunk_lines(pieces: list[bytes]) -> bytes:
    """Return the data of a chunked body, or of the beginning of one, that was found valid before."""
    reader = Chunked(decode=True)
    try:
        return b"".join([reader.feed(piece) for piece in pieces])
    except Malformed:
        return b""


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

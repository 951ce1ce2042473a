"""What an exchange leaves for the recorder, whose thread makes a record of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from gateway.errors import GatewayError
from gateway.http1.request_heads import Fields
from gateway.http1.response_heads import ResponseHead
from gateway.observe.record import Delivery, RecordedError, RecordedProblem, TraceContext
from gateway.observe.redact import describe_error
from gateway.ports import Answer, Routed, Steps
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.routes import Route

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

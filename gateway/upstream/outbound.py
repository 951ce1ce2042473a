"""A request on its way to the cluster, and what the owner of such a request implements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from gateway.errors import GatewayError
from gateway.http1.response_heads import ResponseHead

Buffers = Sequence[bytes | memoryview]


class ResponseTimeouts(NamedTuple):
    """Seconds to wait: for the response's head after the request, and between pieces of its body; 0: no limit."""

    header: float
    idle: float


class UpstreamConnection(Protocol):
    """The connection that carries a request; see `gateway.upstream.connection.Connection`."""

    stalled: bool
    transport: asyncio.Transport

    def write(self, pieces: Buffers) -> None:
        """Send more of the request."""

    def pause_reading(self) -> None:
        """Read no more of the response for now."""

    def resume_reading(self) -> None:
        """Read on."""

    def abandon(self) -> None:
        """Cut the connection."""

    def close(self) -> None:
        """Send what is left to send, then close."""


class RequestOwner(Protocol):
    """What a request to the cluster belongs to. The `on_` methods are called in callbacks of the event loop."""

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """Return what to send: the header lines with the empty line, and the body as far as it has arrived.

        It is called again for another node if it could not be sent. authority: the node's host and port.
        """

    def repeatable(self) -> bool:
        """Return True if the request may be sent again when the connection is lost before any byte of a response."""

    def on_connection(self) -> None:
        """The last `parts` have been sent; more of the body may follow."""

    def on_interim(self, head: ResponseHead) -> None:
        """A 1xx response arrived."""

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """The final response began. piece: the body as far as it has arrived. complete: that is the whole body."""

    def on_body(self, piece: bytes, complete: bool) -> None:
        """More of the response's body arrived."""

    def on_end(self) -> bool:
        """The cluster ended its half of a tunnel. Return True to keep the other half open."""

    def on_failure(self, error: GatewayError) -> None:
        """There will be no response, or nothing more of it."""

    def on_writable(self, writable: bool) -> None:
        """The connection to the cluster can, or can no longer, take more of the request's body."""

    def break_off(self) -> None:
        """One of these methods, or the connection, raised the exception that is being handled. Wait for nothing more.

        It must not raise.
        """


class _NoOwner:
    """Stands for the owner of a request that has ended, so that the two do not refer to each other any more."""

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """See `RequestOwner`."""
        raise RuntimeError("the request has ended")

    def repeatable(self) -> bool:
        """See `RequestOwner`."""
        return False

    def on_connection(self) -> None:
        """See `RequestOwner`."""

    def on_interim(self, head: ResponseHead) -> None:
        """See `RequestOwner`."""

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        raise RuntimeError("the request has ended")

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        raise RuntimeError("the request has ended")

    def on_end(self) -> bool:
        """See `RequestOwner`."""
        return False

    def on_failure(self, error: GatewayError) -> None:
        """See `RequestOwner`."""

    def on_writable(self, writable: bool) -> None:
        """See `RequestOwner`."""

    def break_off(self) -> None:
        """See `RequestOwner`."""


_NO_OWNER = _NoOwner()


class OutboundRequest:
    """A request to the cluster.

    method, target: as sent. timeouts: how long to wait for the response. decode: report the data of a chunked response
    without the chunk lines. upgrade: the request asks for a tunnel. expects: it has an `Expect` field. complete: its
    body has been handed over in full. moved: a node lost it, and another node has it. resent: it was sent on a
    connection that turned out to be closed, and is sent again on a new one. sent_at: when the whole request was first
    handed to a connection, in seconds of `time.monotonic`; 0 until then.
    """

    __slots__ = (
        "complete", "connecting", "connection", "decode", "expects", "method", "moved", "owner", "resent", "sent_at",
        "target", "timeouts", "upgrade", "upload_waiter",
    )  # fmt: skip

    def __init__(
        self,
        owner: RequestOwner,
        method: bytes,
        target: bytes,
        timeouts: ResponseTimeouts,
        decode: bool = False,
        expects: bool = False,
        upgrade: bool = False,
    ) -> None:
        self.owner = owner
        self.method = method
        self.target = target
        self.timeouts = timeouts
        self.decode = decode
        self.expects = expects
        self.upgrade = upgrade
        self.moved = self.resent = False
        self.complete = True
        self.sent_at = 0.0
        self.connection: UpstreamConnection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.upload_waiter: asyncio.Future[None] | None = None
        """Set while the request waits in `Pool.admit_upload`; resolved when its body is complete."""

    def abandon(self) -> None:
        """End the request, wherever it is. No method of its owner is called any more."""
        self.owner = _NO_OWNER
        if self.connecting is not None:
            self.connecting.cancel()
        if self.connection is not None:
            self.connection.abandon()


NO_DEADLINE = float("inf")
_LONGEST, _SHORTEST = 0.5, 0.01


def deadline_in(seconds: float) -> float:
    """Return the deadline in `seconds` from now; 0 stands for no limit."""
    return time.monotonic() + seconds if seconds else NO_DEADLINE


class Timed(Protocol):
    """Something with a deadline, in seconds of `time.monotonic`; `NO_DEADLINE` if it waits for nothing."""

    deadline: float

    def expired(self) -> None:
        """Handle the deadline, which has passed and is `NO_DEADLINE` again."""


class DeadlineTimer:
    """Checks the deadlines of `members` at regular intervals.

    timeouts: the timeouts in use, in seconds. A deadline is noticed within a quarter of the shortest one, and within
    half a second.
    """

    def __init__(self, members: Iterable[Timed], timeouts: Iterable[float]) -> None:
        self._members = members
        self._period = max(_SHORTEST, min([_LONGEST, *(seconds / 4 for seconds in timeouts if seconds)]))
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to check."""
        self._timer = asyncio.get_running_loop().call_later(self._period, self._check)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self.start()
        now = time.monotonic()
        for member in [member for member in self._members if member.deadline < now]:
            if member.deadline < now:  # an idle connection has a new one if a request that waited for another took it
                member.deadline = NO_DEADLINE
                member.expired()

"""How the parts of the data port see one another, so that no two of its files import each other."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.errors import GatewayError
from gateway.http1.request_heads import Request
from gateway.observe.record import TraceContext
from gateway.ports import MirrorUse, SessionUse
from gateway.proxy.routes import Route
from gateway.upstream.outbound import OutboundRequest


class RunningExchange(Protocol):
    """An exchange, for the log and the use cases.

    started, arrived: when the head and the whole request had arrived, in seconds of `time.monotonic`. outbound: the
    request to the cluster. status: 0 if unanswered.
    """

    request: Request
    route: Route
    started: float
    arrived: float
    outbound: OutboundRequest
    status: int

    @property
    def trace(self) -> TraceContext | None:
        """The trace of a run of an agent, if traces are on."""

    @property
    def request_id(self) -> str:
        """The name of the request in the log."""


class Client(Protocol):
    """A client's connection, for the exchange on it; see `gateway.proxy.client_connection`."""

    transport: asyncio.Transport
    session: SessionUse | None
    mirror: MirrorUse | None

    @property
    def number(self) -> int:
        """The number of the connection: no other one of this process has it."""

    @property
    def peer(self) -> str:
        """The client's address."""

    def pause_reading(self) -> None:
        """Read no more of the request's body for now."""

    def resume_reading(self) -> None:
        """Read on."""

    def tunnel(self) -> None:
        """Hand all bytes to the exchange from now on."""

    def done(self, keep: bool) -> None:
        """The response is complete. keep: another request may follow."""

    def refuse(self, error: GatewayError, exchange: ClientExchange | None = None) -> None:
        """Send an error response."""

    def cut(self) -> None:
        """Cut the connection in the middle of a response."""

    def close(self) -> None:
        """Send what is left to send, then close."""


class ClientExchange(RunningExchange, Protocol):
    """An exchange, for its client's connection; see `gateway.proxy.exchange`."""

    reads_body: bool

    def begin(self, piece: bytes, complete: bool) -> None:
        """The head has arrived, with a piece of the body."""

    def upload(self, piece: bytes, complete: bool) -> None:
        """More of the body, or of a tunnel, has arrived. complete: the body ends with `piece`, which may be empty."""

    def fail_upload(self, error: GatewayError) -> None:
        """The rest of the body is late or malformed."""

    def refuse(self, error: GatewayError) -> None:
        """Send an error response."""

    def break_off(self) -> None:
        """Something raised the exception that is being handled: send an error response, or cut the connection."""

    def client_lost(self) -> None:
        """The client is gone."""

    def client_ended(self) -> bool:
        """The client has ended its half of a tunnel. Return True to keep the other half open."""

    def client_writable(self, writable: bool) -> None:
        """The connection can, or can no longer, take more of the response."""

    def may_keep(self) -> bool:
        """Return True if another request may follow on the connection."""

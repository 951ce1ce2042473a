"""One request of a client and its response: how they begin, and how they end.

They end with the cluster's response, with one of the gateway's own, or without the client. Between beginning and end,
`gateway.proxy.relay` does the work.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from gateway.config.schema import Limits
from gateway.errors import GatewayError
from gateway.http1 import state
from gateway.http1.state import EXCHANGE, ExchangeEvent
from gateway.observe.trace_context import NewTraces
from gateway.ports import Answer
from gateway.proxy import error_responses
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.capture import Bodies, Capture, Captured, capture_error
from gateway.proxy.dispatch import Dispatcher
from gateway.proxy.relay import Relay, RelayPort
from gateway.proxy.routes import WRITES, Intent

# Module constants, because an attribute of an Enum takes four times as long to look up.
_WAITING, _SENT, _ANSWERED, _TUNNEL, _ = state.Exchange
_FINISH = EXCHANGE.on(ExchangeEvent.FINISH)
_PASSTHROUGH = Intent.PASSTHROUGH


class ExchangePort(RelayPort, Protocol):
    """The data port, as exchanges use it.

    new_traces: None if traces are off. capture: None if nothing is recorded.
    limits_requests: the number of running requests is limited, so `admit` must be asked.
    notice_header: `answers.notice_header`.
    """

    dispatcher: Dispatcher
    limits: Limits
    limits_requests: bool
    notice_header: bool
    new_traces: NewTraces | None
    capture: Capture | None

    def admit(self, exchange: Exchange) -> None:
        """Start the exchange when it is its turn, or refuse it."""

    def finished(self, exchange: Exchange) -> None:
        """Release what the exchange held."""


class Exchange(Relay):
    """A request that is passed through."""

    __slots__ = ("_request_copy", "_response_copy")

    _port: ExchangePort
    _request_copy: BodyCopy
    _response_copy: ResponseCopy | None
    """Copies of both bodies; only `gateway.proxy.router` makes them."""
    is_recorded = True
    """The recorder gets the exchange, if it reads the body."""
    held: int = 0
    """Bytes of bodies that it keeps for the recorder, but for the first piece of the response, which is small."""
    reads_body = False
    """The exchange needs the data of the request's body; otherwise the body is relayed with its chunk lines."""

    def begin(self, piece: bytes, complete: bool) -> None:
        """The head has arrived. piece: the body as far as it has arrived. complete: that is the whole body."""
        self.outbound.complete = complete
        if piece and complete:
            self._pending.append(piece)
        elif piece:
            self._hold_back(piece)
        if self._port.limits_requests:
            self._port.admit(self)
        else:
            self.start()

    def reply(self, answer: Answer) -> None:
        """Send a response of the gateway's own."""
        self.answer = answer
        self.status = answer.status
        keep = self.may_keep() and self.request.minor == 1  # for HTTP/1.0, the response would have to say so
        self._finish()
        self.client.transport.write(error_responses.encode(answer, self.request_id, close=not keep))
        self.client.done(keep)

    def refuse(self, error: GatewayError) -> None:
        """Send an error response of the gateway's own."""
        self._port.log.failed(self, error)
        self.error = error
        self.status = error.status
        self._finish()
        self.client.refuse(error, self)

    def fail_upload(self, error: GatewayError) -> None:
        """End the exchange because the rest of the request's body is late or malformed; the cluster must not use it."""
        try:
            self.abandon()
            self._fail(error)
        except Exception:
            self.break_off()

    def break_off(self) -> None:
        """End the exchange after an exception that nothing else handles: its client would wait for ever."""
        try:
            self._fail(self._port.log.internal_error(self))
        except Exception:  # it has finished, but its response was not sent
            self._port.log.internal_error(self)
            self.client.cut()

    def client_lost(self) -> None:
        """End the exchange because the client is gone, which is the usual end of a tunnel.

        What the client sent last in a tunnel still reaches the cluster.
        """
        tunnel = self._state is _TUNNEL
        if tunnel and self.outbound.connection is not None:
            self.outbound.connection.close()
        self.abandon()
        if not tunnel:
            self.status = 0
        self._finish()

    def abandon(self) -> None:
        """Stop working on the request; nothing of a response will arrive."""
        self.outbound.abandon()

    def _end(self) -> None:
        tunnel = self._state is _TUNNEL
        self._finish()
        if tunnel:
            self.client.close()
        else:
            self.client.done(self._keep)

    def _fail(self, error: GatewayError) -> None:
        if self._state is _ANSWERED or self._state is _TUNNEL:  # the client must not take the response for complete
            self._port.log.failed(self, error)
            self.error = error
            self.status = 0
            self._finish()
            self.client.cut()
        else:
            self.refuse(error)

    def _finish(self) -> None:
        unanswered = self._state is _WAITING or self._state is _SENT
        self._state = _FINISH[self._state]
        try:
            if unanswered and self.route.intent in WRITES:
                self._invalidate()  # the cluster may have applied a write without a response
            self.outbound.abandon()
        finally:
            self._port.finished(self)

    def was_planned_with(self, documents: Set[str], before: float) -> bool:
        """See `gateway.proxy.lifecycle.Run`."""
        return False

    def captured(self, ended: float) -> Captured:
        """Return what the recorder gets of the exchange. ended: when it ended."""
        return self._captured(ended)

    def _captured(self, ended: float, bodies: Bodies | None = None) -> Captured:
        """Return all that the recorder gets. Without an id, it makes one. bodies: None if they are not recorded."""
        request, answer, error = self.request, self.answer, self.error
        return Captured(
            self._id if answer is None and error is None else self.request_id,
            request.fields,
            request.method,
            request.target,
            request.minor,
            self.route,
            self.client.number,
            self.client.peer,
            self.started,
            ended,
            self.status,
            self.answered_at,
            self.head,
            answer,
            None if error is None else capture_error(error),
            bodies,
            self.trace,
        )

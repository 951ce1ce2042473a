"""Requests that passed unchanged, whose bodies are not recorded: many together, redacted, in little space."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.observe.record import Body, ExchangeRecord, HttpMessage, Scheme
from gateway.proxy.routes import Intent

Line = tuple[float, float, float, int, int, str, str, int, str, int, int, int]
"""started, answered_at, ended; status; connection, client; method, minor version, target; request, response; place.

request, response: indexes in `Lines`; -1 without a response. place: among all exchanges that were recorded together.
target: redacted. The others are as in `gateway.proxy.capture.Passed`.
"""
INTENT = Intent.PASSTHROUGH.value
NOT_RECORDED = "Not recorded (inspector.passthrough)."


class LineRequest(Struct, frozen=True, array_like=True):
    """What some lines have in common: the head of their requests. size: of the body, 0 if it is not known."""

    headers: tuple[tuple[str, str], ...]
    size: int
    user_agent: str
    trace_id: str


class LineResponse(Struct, frozen=True, array_like=True):
    """What some lines have in common: the head of their responses. size: of the body, 0 if it is not known."""

    headers: tuple[tuple[str, str], ...]
    size: int


class Lines(Struct, frozen=True, array_like=True):
    """Requests that passed, in their order.

    id: of the first, as a number of 62 bits; that of each other one is greater by one. offset: seconds from the lines'
    times to the time since the epoch. worker, scheme: see `ExchangeRecord`.
    """

    id: int
    offset: float
    worker: int
    requests: Sequence[LineRequest]
    responses: Sequence[LineResponse]
    lines: Sequence[Line]
    scheme: Scheme = "http"

    def record(self, index: int) -> ExchangeRecord:
        """Return the record of a line."""
        started, answered_at, ended, status, connection, client, method, minor, target, *heads, _ = self.lines[index]
        request = self.requests[heads[0]]
        response = self.responses[heads[1]] if heads[1] >= 0 else None
        return ExchangeRecord(
            f"{self.id + index:016x}",
            self.offset + started,
            ended - started,
            method,
            target,
            INTENT,
            status,
            self.worker,
            connection,
            client,
            request.user_agent,
            waited=answered_at - started if answered_at else None,
            trace_id=request.trace_id,
            request=_message(request),
            response=None if response is None else _message(response),
            protocol="HTTP/1.1" if minor else "HTTP/1.0",
            scheme=self.scheme,
        )

    def among(self, records: Sequence[ExchangeRecord]) -> list[ExchangeRecord]:
        """Return the records of all lines, each at its place, and the other records in between."""
        at = {line[-1]: index for index, line in enumerate(self.lines)}
        others = iter(records)
        places = range(len(at) + len(records))
        return [self.record(at[place]) if place in at else next(others) for place in places]


def _message(head: LineRequest | LineResponse) -> HttpMessage:
    return HttpMessage(head.headers, Body(head.size, omitted=NOT_RECORDED))

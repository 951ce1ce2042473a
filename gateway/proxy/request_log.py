"""What the log and the metrics record of each request on the data port."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from random import getrandbits

from gateway.errors import GatewayError, UpstreamTimeout, UpstreamUnavailable
from gateway.http1.request_heads import MOST_HEADS, Fields
from gateway.observe.logs import Logger, describe_error
from gateway.observe.metrics import Metrics
from gateway.observe.trace_context import read_trace_id
from gateway.proxy import error_responses
from gateway.proxy.interfaces import RunningExchange
from gateway.proxy.routes import Intent

_PASSTHROUGH = Intent.PASSTHROUGH
_CLIENT_IDS = {b"x-opaque-id": "opaque_id", error_responses.REQUEST_ID.lower().encode(): "client_request_id"}


def new_id() -> str:
    """Return an id that no other request has, of any gateway: 16 hexadecimal digits. It is no secret."""
    return f"{getrandbits(64):016x}"


def log_ids(exchange: RunningExchange) -> dict[str, str]:
    """Return the names of a request in the log: the gateway's, the client's own, and the id of its W3C trace."""
    ids = {"request_id": exchange.request_id, **_client_ids(exchange.request.fields)}
    return ids if exchange.trace is None else {**ids, "trace_id": exchange.trace.trace_id}


@lru_cache(MOST_HEADS)
def _client_ids(fields: Fields) -> dict[str, str]:
    """Return the ids in the fields of a request, which requests with the same lines share."""
    found = ((_CLIENT_IDS.get(name.lower()), value) for name, value in fields.pairs())
    ids = {key: value.decode("utf-8", "replace") for key, value in found if key and value}
    trace_id = read_trace_id(fields.lines)
    return {**ids, "trace_id": trace_id} if trace_id else ids


class RequestLog:
    """Logs and counts exchanges. payloads: error texts may quote the request (`logs.payloads`)."""

    def __init__(self, log: Logger, metrics: Metrics, payloads: bool) -> None:
        self._log = log
        self._metrics = metrics
        self._traffic = metrics.traffic
        self._payloads = payloads
        self._log_requests = log.is_enabled_for(logging.INFO)
        self._log_passthrough = log.is_enabled_for(logging.DEBUG)

    def response_began(self, exchange: RunningExchange, now: float) -> None:
        """Record how long the cluster took to respond, and the gateway before. now: of `time.monotonic`."""
        intent, sent_at = exchange.route.intent, exchange.outbound.sent_at
        traffic = self._traffic
        traffic.waits[intent].observe(now - exchange.started)
        if sent_at:
            traffic.added[intent].observe(sent_at - exchange.arrived)

    def rewrote(self, seconds: float) -> None:
        """Record how long it took to rewrite a request."""
        self._traffic.rewriting.observe(seconds)

    def noticed(self, code: str) -> None:
        """Count a notice."""
        self._metrics.notice(code)

    def finished(self, exchange: RunningExchange) -> None:
        """Record an exchange that is over, however it ended."""
        intent = exchange.route.intent
        self._traffic.answered[intent, exchange.status] += 1
        if self._log_passthrough or (self._log_requests and intent is not _PASSTHROUGH):
            self._write(exchange)

    def _write(self, exchange: RunningExchange) -> None:
        level = self._log.debug if exchange.route.intent is _PASSTHROUGH else self._log.info
        request = exchange.request
        level(
            "request",
            **log_ids(exchange),
            intent=str(exchange.route.intent),
            method=request.method.decode("ascii"),
            path=request.target.partition(b"?")[0].decode("utf-8", "replace"),
            status=exchange.status,
            s=round(time.monotonic() - exchange.started, 6),
        )

    def failed(self, exchange: RunningExchange, error: GatewayError) -> None:
        """Log and count why an exchange ended in an error of the gateway's own."""
        try:
            self._count(error)
            log = self._log.warning if error.status >= 500 else self._log.info
            event = "no answer" if isinstance(error, UpstreamUnavailable | UpstreamTimeout) else "refused"
            log(event, **log_ids(exchange), **describe_error(error, self._payloads))
        except Exception:  # the client gets its answer all the same
            self.internal_error(exchange)

    def internal_error(self, exchange: RunningExchange) -> GatewayError:
        """Log the exception being handled, a fault of the gateway. Return the error for the client."""
        method = exchange.request.method.decode("ascii")
        self._log.exception("internal error", **log_ids(exchange), method=method)
        return error_responses.internal(exchange.request_id)

    def fault(self, client: str) -> GatewayError:
        """Log the exception being handled, a fault of the gateway before there is an exchange. Return the error.

        client: the address of the connection.
        """
        self._log.exception("internal error", client=client)
        return error_responses.internal()

    def no_request(self, error: GatewayError, client: str) -> str:
        """Record bytes from a client that were no valid request. Return the id under which they are logged.

        client: the address of the connection.
        """
        request_id = new_id()
        self._traffic.answered[_PASSTHROUGH, error.status] += 1
        self._count(error)
        described = describe_error(error, self._payloads)
        reason = described["reason"]
        self._log.info("refused", request_id=request_id, client=client, type=described["type"], reason=reason)
        return request_id

    def _count(self, error: GatewayError) -> None:
        """Count a refusal once for each of its codes, or for its type if it has none."""
        for code in {problem.code for problem in error.problems if problem.code} or (error.type,):
            self._metrics.refused(code)

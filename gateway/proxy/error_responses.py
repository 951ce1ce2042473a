"""The gateway's own error answers: one shape, whatever went wrong (DESIGN.md, decision 9)."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from aiohttp import web

from gateway.errors import GatewayError, InvalidInput
from gateway.http1.rules import Malformed
from gateway.ports import Answer

REQUEST_ID = "X-Request-Id"


class InternalError(GatewayError):
    """A fault of the gateway itself; the log has it under the request's id."""

    status = 500
    type = "InternalError"


def respond(error: GatewayError, request_id: str, *, close: bool = False) -> web.Response:
    """The answer for `error` on the admin port.

    request_id: "" when it came to no request. close: the connection can't be used any further.
    """
    response = web.Response(
        status=error.status,
        body=msgspec.json.encode(error.body()),
        headers={"Content-Type": "application/json; charset=UTF-8"},
    )
    if request_id:
        response.headers[REQUEST_ID] = request_id
    if error.retry_after:
        response.headers["Retry-After"] = str(error.retry_after)
    if close:
        response.force_close()
    return response


def internal(request_id: str) -> InternalError:
    """What a client is told of a fault of the gateway's own: nothing but where to find more."""
    return InternalError(f"The gateway failed on this request; its log has more under request id {request_id}.")


class VersionNotSupported(GatewayError):
    """The request's HTTP version is none the gateway speaks."""

    status = 505
    type = "VersionNotSupported"


class NotSupported(GatewayError):
    """The request is sound, but needs what the gateway does not implement: a tunnel, a transfer coding."""

    status = 501
    type = "NotImplemented"


class TargetTooLong(GatewayError):
    """The request's first line is over the configured limit."""

    status = 414
    type = "TargetTooLong"


class HeadTooLarge(GatewayError):
    """A header, all of them together or their number is over the configured limit."""

    status = 431
    type = "HeadTooLarge"


class RequestTimeout(GatewayError):
    """The client took too long to send its request."""

    status = 408
    type = "RequestTimeout"


_KINDS: dict[int, type[GatewayError]] = {
    kind.status: kind for kind in (InvalidInput, NotSupported, VersionNotSupported, TargetTooLong, HeadTooLarge)
}


def malformed(fault: Malformed) -> GatewayError:
    """The error for a request that breaks a rule of HTTP, or needs a part of it that is not implemented."""
    kind = _KINDS[fault.rule.status]
    what = "can't be served" if kind is NotSupported else "is not valid HTTP"
    return kind(f"The request {what}: {fault}.")


def late(what: str) -> RequestTimeout:
    """The error for a client that stopped sending. what: did not come."""
    return RequestTimeout(f"The client did not send {what} in time.")


def answer(error: GatewayError, request_id: str, *, close: bool, bodyless: bool = False) -> bytes:
    """The answer for `error` as it goes over the data port.

    request_id: "" when it came to no request. close: the connection ends with it. bodyless: it answers a HEAD.
    """
    again = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    own = Answer(error.status, again, msgspec.json.encode(error.body()))
    return whole(own, request_id, close=close, bodyless=bodyless)


def whole(answer: Answer, request_id: str, *, close: bool, bodyless: bool = False) -> bytes:
    """An answer of the gateway's own as it goes over the data port; the arguments as for `answer`."""
    lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}"]
    if answer.body and "Content-Type" not in answer.headers:
        lines.append("Content-Type: application/json; charset=UTF-8")
    lines.append(f"Content-Length: {len(answer.body)}")
    if request_id:
        lines.append(f"{REQUEST_ID}: {request_id}")
    lines += (f"{name}: {value}" for name, value in answer.headers.items())
    if close:
        lines.append("Connection: close")
    return "\r\n".join((*lines, "", "")).encode("utf-8") + (b"" if bodyless else answer.body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""

"""The gateway's own error responses. They all have the shape of OpenSearch's errors."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from aiohttp import web

from gateway.errors import GatewayError, InvalidInput
from gateway.http1.rules import Malformed
from gateway.ports import Answer

REQUEST_ID = "X-Request-Id"


class InternalError(GatewayError):
    """A fault of the gateway itself. The log has the details under the request's id."""

    status = 500
    type = "InternalError"


def respond(error: GatewayError, request_id: str, *, close: bool = False) -> web.Response:
    """Return the response for `error` through aiohttp.

    request_id: "" on the admin port. close: the connection cannot be used any more.
    """
    response = web.Response(
        status=error.status,
        body=msgspec.json.encode(error.body()),
        headers={"Content-Type": "application/json; charset=UTF-8"},
    )
    if request_id:
        response.headers[REQUEST_ID] = request_id
    if error.status == 401:  # RFC 9110, 15.5.2
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after:
        response.headers["Retry-After"] = str(error.retry_after)
    if close:
        response.force_close()
    return response


def internal(request_id: str = "") -> InternalError:
    """Return the error for a fault of the gateway. It says only where to find the details."""
    place = f", under request id {request_id}" if request_id else ""
    return InternalError(
        f"An internal error of the gateway stopped this request. The gateway's log has the details{place}."
    )


class VersionNotSupported(GatewayError):
    """The gateway does not support the request's HTTP version."""

    status = 505
    type = "VersionNotSupported"


class NotSupported(GatewayError):
    """The request is valid, but needs something that the gateway does not implement: a tunnel, a transfer coding."""

    status = 501
    type = "NotImplemented"


class TargetTooLong(GatewayError):
    """The request's first line exceeds the configured limit."""

    status = 414
    type = "TargetTooLong"


class HeadTooLarge(GatewayError):
    """A header, the whole head or the number of headers exceeds the configured limit."""

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
    """Return the error for a request that breaks a rule of HTTP, or needs a part of HTTP that is not implemented."""
    kind = _KINDS[fault.rule.status]
    what = "can't be served" if kind is NotSupported else "is not valid HTTP"
    return kind(f"The request {what}: {fault}.")


def late(what: str) -> RequestTimeout:
    """Return the error for a client that stopped sending. what: the missing part of its request."""
    return RequestTimeout(f"The client did not send {what} in time.")


def encode_error(error: GatewayError, request_id: str, *, close: bool, bodyless: bool = False) -> bytes:
    """Return the response for `error` as bytes for the data port.

    close: the connection ends with it. bodyless: it responds to a HEAD.
    """
    again = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    own = Answer(error.status, again, msgspec.json.encode(error.body()))
    return encode(own, request_id, close=close, bodyless=bodyless)


def encode(answer: Answer, request_id: str, *, close: bool, bodyless: bool = False) -> bytes:
    """Return a response of the gateway's own as bytes for the data port; for the arguments see `encode_error`."""
    lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}"]
    if answer.body and "Content-Type" not in answer.headers:
        lines.append("Content-Type: application/json; charset=UTF-8")
    lines += (f"Content-Length: {len(answer.body)}", f"{REQUEST_ID}: {request_id}")
    lines += (f"{name}: {value}" for name, value in answer.headers.items())
    if close:
        lines.append("Connection: close")
    return "\r\n".join((*lines, "", "")).encode("utf-8") + (b"" if bodyless else answer.body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""

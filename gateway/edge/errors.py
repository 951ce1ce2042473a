"""The gateway's own error answers: one shape, whatever went wrong (DESIGN.md, decision 9)."""

from __future__ import annotations

import msgspec
from aiohttp import web

from gateway.errors import GatewayError, InvalidInput

REQUEST_ID = "X-Request-Id"


class InternalError(GatewayError):
    """A fault of the gateway itself; the log has it under the request's id."""

    status = 500
    type = "InternalError"


def respond(error: GatewayError, request_id: str, *, close: bool = False) -> web.Response:
    """The answer for `error`.

    request_id: "" when it came to no request. close: the connection can't be used any further.
    """
    response = web.Response(
        status=error.status,
        body=msgspec.json.encode(error.body()),
        headers={"Content-Type": "application/json; charset=UTF-8"},
    )
    if request_id:
        response.headers[REQUEST_ID] = request_id
    if close:
        response.force_close()
    return response


def internal(request_id: str) -> InternalError:
    """What a client is told of a fault of the gateway's own: nothing but where to find more."""
    return InternalError(f"The gateway failed on this request; its log has more under request id {request_id}.")


def malformed(reason: str) -> InvalidInput:
    """The error for a message that is no valid HTTP."""
    return InvalidInput(f"The request is not valid HTTP: {reason}")

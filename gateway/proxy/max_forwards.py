"""`Max-Forwards` (RFC 9110, 7.6.2): how many more hops an OPTIONS or a TRACE may take.

With 0, the gateway responds instead of the cluster; with more, the request is sent on with one less.
"""

from __future__ import annotations

from gateway.http1.request_heads import COUNTED, MOST_FORWARDS, Fields, Request
from gateway.observe.secrets import is_secret_header
from gateway.ports import Answer
from gateway.proxy.exchange import Exchange

_METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, TRACE"
_IDENTITY = "x-proxy-"
"""Prefix of headers with which a proxy tells the cluster who the user is."""


def is_last_hop(request: Request) -> bool:
    """Return True if the gateway must answer the request itself."""
    left = request.fields.max_forwards
    return left is not None and request.method in COUNTED and not left.strip(b"0")


def with_one_hop_less(request: Request) -> Request:
    """Return the request with the `Max-Forwards` of an OPTIONS or a TRACE, which is above 0, reduced by one."""
    fields = request.fields
    if fields.max_forwards is None or request.method not in COUNTED:
        return request
    digits = fields.max_forwards.lstrip(b"0")
    left = int(digits) - 1 if len(digits) < len(str(MOST_FORWARDS)) else MOST_FORWARDS
    lines = [b"%b: %d" % (line[:12], left) if line[:13].lower() == b"max-forwards:" else line for line in fields.lines]
    head = b"\r\n".join((*lines, b"", b""))
    return Request(request.method, request.target, request.minor, Fields(head, 0, request.minor, fields.limits))


class LastHop(Exchange):
    """An OPTIONS or a TRACE that the gateway responds to, even if more of its body follows."""

    __slots__ = ()

    def start(self) -> None:
        """See `Exchange`."""
        self.reply(_reflect(self.request) if self.request.method == b"TRACE" else Answer(200, {"Allow": _METHODS}, b""))


def _reflect(request: Request) -> Answer:
    """Return the request as `message/http`, without headers that hold credentials (RFC 9110, 9.3.8)."""
    lines = [line for line in request.fields.lines if not _is_sensitive(line.partition(b":")[0].decode("ascii"))]
    first = b"%b %b HTTP/1.%d" % (request.method, request.target, request.minor)
    return Answer(200, {"Content-Type": "message/http"}, b"\r\n".join((first, *lines, b"", b"")))


def _is_sensitive(name: str) -> bool:
    return is_secret_header(name) or name.lower().startswith(_IDENTITY)

"""What the gateway changes in the head of every request, before anything else sees it: one list, applied in order.

What depends on the connection to the cluster comes later: headers per hop and Host (`Fields.lines_for`), length and
trace of a run (`gateway.proxy.run`), credentials (`gateway.upstream.auth`).
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.http1.request_heads import COUNTED, MOST_FORWARDS, Fields, Request
from gateway.proxy.forwarded import Forwarding

HeadEdit = Callable[[Request, str], Request]
"""Returns the request to go on with; the one that it got if nothing changes. str: the address of the client."""


def head_edits(forwarding: Forwarding) -> tuple[HeadEdit, ...]:
    """Return the edits."""
    return (with_one_hop_less, *((forwarding.of,) if forwarding.changes else ()))


def with_one_hop_less(request: Request, _: str = "") -> Request:
    """Return the request with the `Max-Forwards` of an OPTIONS or a TRACE, which is above 0, reduced by one."""
    fields = request.fields
    if fields.max_forwards is None or request.method not in COUNTED:
        return request
    digits = fields.max_forwards.lstrip(b"0")
    left = int(digits) - 1 if len(digits) < len(str(MOST_FORWARDS)) else MOST_FORWARDS
    lines = [b"%b: %d" % (line[:12], left) if line[:13].lower() == b"max-forwards:" else line for line in fields.lines]
    return with_lines(request, lines)


def with_lines(request: Request, lines: list[bytes]) -> Request:
    """Return the request with these header lines in place of its own."""
    head = b"\r\n".join((*lines, b"", b""))
    return Request(request.method, request.target, request.minor, Fields(head, 0, request.minor, request.fields.limits))

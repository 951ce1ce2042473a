"""The head of a relayed response, as the gateway sends it to a client: framing and connection management are per hop.

RFC 9112, sections 6 and 9.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.http1.fields import without
from gateway.http1.request_heads import Request
from gateway.http1.response_heads import BODYLESS, ResponseHead
from gateway.http1.rules import HeadLimits

_LAST_CHUNK = b"0\r\n\r\n"
UNLIMITED = HeadLimits(line=2**24, head=2**24, fields=2**16)
"""For a head with other fields than the cluster's, which was within the limits that are configured."""
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_OF_THE_BODY = _FRAMING | {b"content-encoding", b"etag"}


def relayed_head(head: ResponseHead, request: Request, own: bytes, keep: bool) -> tuple[bytes, bool, bool]:
    """Return the head to send to the client, whether to send the body as chunks, and whether to keep the connection.

    head: the cluster's. own: header lines of the gateway's own, each with its CRLF. keep: the connection may be used
    again after this response.
    """
    modern = request.minor == 1
    if head.forwardable_verbatim and modern and keep:  # nothing below would change it
        return head.raw[:-2] + own + b"\r\n" if own else head.raw, False, True
    bodyless = request.method == b"HEAD" or head.status in BODYLESS
    chunk = False
    if not bodyless and head.length is None:
        chunk = modern and not head.chunked
        keep = keep and modern
        if modern and (chunk or not head.no_hop_headers):
            own += b"Transfer-Encoding: chunked\r\n"
    if not keep and modern:
        own += b"Connection: close\r\n"
    elif keep and not modern:
        own += b"Connection: keep-alive\r\n"
    verbatim = head.no_hop_headers and head.minor == 1 and (not head.chunked or (modern and not bodyless))
    lines = head.raw[:-2] if verbatim else head.first_line() + b"".join(line + b"\r\n" for line in head.end_to_end())
    return b"%b%b\r\n" % (lines, own), chunk, keep


def head_with_length(
    head: ResponseHead, length: int, changed: bool = True, replaced: Iterable[str] = ()
) -> ResponseHead:
    """Return the head for a whole body of `length` bytes. changed: the body is another one than the cluster's.

    replaced: names of headers to leave out, as others take their place.

    A response that has no body keeps its head: a 204 has no length, and that of a 304 is another response's (RFC 9110,
    8.6).
    """
    if head.status in BODYLESS:
        return head
    dropped = (_OF_THE_BODY if changed else _FRAMING) | {name.lower().encode("ascii") for name in replaced}
    lines = (head.first_line()[:-2], *without(head.end_to_end(), dropped), b"Content-Length: %d" % length)
    return ResponseHead(b"\r\n".join((*lines, b"", b"")), UNLIMITED)


def encode_chunk(piece: bytes, complete: bool) -> bytes:
    """Encode a piece of a body as a chunk. complete: it is the last piece."""
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
    return chunk + _LAST_CHUNK if complete else chunk

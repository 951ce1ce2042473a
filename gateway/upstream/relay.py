"""An answer of the cluster on its way to the client: head as received, body piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

from gateway.errors import GatewayError
from gateway.upstream.client import Answer, RawHeader, status_line

BODYLESS = frozenset({204, 304})


class RelayResponse(web.StreamResponse):
    """A response whose head is written exactly as given: no header added, sorted, merged or re-encoded.

    headers: end-to-end headers of the answer; framing and `Connection` are this hop's own and added here
    (RFC 9112, sections 6 and 9).
    """

    def __init__(self, status: int, reason: str, headers: Sequence[RawHeader]) -> None:
        super().__init__(status=status)
        self._line_reason = reason
        self._raw_headers = headers
        self.cut = False

    async def _start(self, request: web.BaseRequest) -> AbstractStreamWriter:
        self._req = request
        writer = self._payload_writer = request.writer
        modern = request.version >= HttpVersion11
        empty = request.method == "HEAD" or self.status in BODYLESS
        sized = any(name.lower() == b"content-length" for name, _ in self._raw_headers)
        chunked = modern and not empty and not sized
        keep_alive = request.keep_alive if self._keep_alive is None else self._keep_alive
        self._keep_alive = keep_alive and (modern or empty or sized)
        own: list[RawHeader] = []
        if chunked:
            own.append((b"Transfer-Encoding", b"chunked"))
        if modern and not self._keep_alive:
            own.append((b"Connection", b"close"))
        elif not modern and self._keep_alive:
            own.append((b"Connection", b"keep-alive"))
        lines = (b"%b: %b\r\n" % header for header in (*self._raw_headers, *own))
        # Chunking starts after the head, which goes out at once: a stream's client wants it before the body.
        await writer.write(b"".join((status_line(self.status, self._line_reason), *lines, b"\r\n")))
        if chunked:
            writer.enable_chunking()
        return writer


async def relay(
    request: web.BaseRequest, answer: Answer, headers: Sequence[RawHeader], before: Iterable[bytes] = ()
) -> RelayResponse:
    """Stream `answer` to the client. before: pieces of its body that were read already.

    When the cluster breaks off within the body, the client's connection is cut, so that no short answer looks
    whole; `cut` then says so.
    """
    response = RelayResponse(answer.status, answer.reason, headers)
    if not request.content.is_eof() and request.body_exists:
        response.force_close()  # the cluster answered before it had read the whole request
    try:
        await response.prepare(request)
        for chunk in before:
            await response.write(chunk)
        async for chunk in answer.chunks():
            await response.write(chunk)
        await response.write_eof()
    except GatewayError:
        response.cut = True
        response.force_close()
        if request.transport is not None:
            request.transport.abort()
    finally:
        answer.close()
    return response

"""The data port behind aiohttp's own server: the same routes, use cases and connections to the cluster.

For those who embed the gateway in an aiohttp application, or prefer aiohttp's parser (`mlc-gateway serve --http
aiohttp`). Each request is written out again and read by a `ClientConnection` of its own, whose transport is a pair of
queues; so there is one implementation of the data port. ``docs/reference/embedding.md`` lists what differs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from gateway.http1.head_buffer import ResponseHeadBuffer
from gateway.http1.response_heads import Head
from gateway.proxy.client_connection import ClientConnection
from gateway.proxy.data_port import DataPort
from gateway.proxy.response_head import encode_chunk

RUNNER_OPTIONS: dict[str, Any] = {"auto_decompress": False, "handler_cancellation": True}
"""Arguments for `web.AppRunner` and `web.run_app`: bodies stay as they came, a client that leaves ends its request."""
_BUFFER = 64 * 1024
"""Bytes of a response that are held before the cluster is read more slowly."""
_ADDED = ("Content-Type", "Date", "Server")
"""Headers that aiohttp adds to a response that lacks them."""
_CODED = {"gzip": b"\x1f\x8b", "x-gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
"""The first bytes of a body in each coding."""
_NOT_RELAYED = frozenset({b"upgrade", b"http2-settings"})


class Decompressed(Exception):
    """aiohttp has decompressed a request's body, so the request cannot be relayed as it came."""


class Application:
    """Answers the requests of an aiohttp application. port: the data port that handles the next request."""

    def __init__(self, port: DataPort) -> None:
        self.port = port

    def add_to(self, app: web.Application) -> None:
        """Let the gateway answer every request for which `app` has no route of its own."""
        app.middlewares.append(self._middleware())
        app.on_response_prepare.append(_remove_added_headers)

    def _middleware(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        @web.middleware
        async def gateway(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if request.match_info.http_exception is None:
                return await handler(request)
            return await self.answer(request)

        return gateway

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Relay `request` to the cluster, and the response back."""
        transport = _Transport(request)
        connection = ClientConnection(self.port)
        transport.connection = connection
        connection.connection_made(transport)
        connection.data_received(_head_of(request))
        upload = asyncio.create_task(_upload(request, connection, transport)) if request.body_exists else None
        try:
            return await _respond(request, transport, self.port)
        finally:
            if upload is not None:
                upload.cancel()
                await asyncio.gather(upload, return_exceptions=True)
            transport.closing = True
            connection.connection_lost(None)


class Response(web.StreamResponse):
    """A response with the headers that it was made with, and no others but those of its framing."""

    def __init__(self, head: Head) -> None:
        reason = head.first_line()[13:].strip().decode("utf-8", "replace")
        super().__init__(status=head.status, reason=reason)
        for line in head.end_to_end():
            name, _, value = line.partition(b":")
            self.headers.add(name.decode("ascii"), value.strip(b" \t").decode("utf-8", "surrogateescape"))
        self._own = frozenset(map(str.lower, self.headers))
        if not head.persistent:
            self.force_close()

    def remove_added_headers(self) -> None:
        """Remove the headers that aiohttp has added."""
        for name in _ADDED:
            if name.lower() not in self._own:
                self.headers.popall(name, None)


async def _remove_added_headers(_: web.Request, response: web.StreamResponse) -> None:
    if isinstance(response, Response):
        response.remove_added_headers()


def _head_of(request: web.Request) -> bytes:
    """Return the head of a request as a client writes it. It asks for no other protocol: aiohttp's server has none."""
    target = request.raw_path.encode("utf-8", "surrogateescape")
    lines = [b"%b: %b" % field for field in request.raw_headers if field[0].lower() not in _NOT_RELAYED]
    first = b"%b %b HTTP/1.%d" % (request.method.encode("ascii"), target, min(request.version.minor, 1))
    return b"\r\n".join((first, *lines, b"", b""))


async def _upload(request: web.Request, connection: ClientConnection, transport: _Transport) -> None:
    """Hand the request's body to the connection, framed as its head says."""
    chunked = "Transfer-Encoding" in request.headers
    async for piece in _pieces(request):
        await transport.readable.wait()
        connection.data_received(encode_chunk(piece, False) if chunked else piece)
    if chunked:
        await transport.readable.wait()
        connection.data_received(encode_chunk(b"", True))


async def _pieces(request: web.Request) -> AsyncIterator[bytes]:
    """Yield the pieces of the request's body.

    Raises:
        Decompressed: they are not as the client sent them.
    """
    start = _CODED.get(request.headers.get("Content-Encoding", "").strip().lower(), b"")
    left = request.content_length
    async for piece in request.content.iter_any():
        if start and not piece.startswith(start[: len(piece)]):
            raise Decompressed("run the application with auto_decompress=False: the gateway relays bodies unchanged")
        start = b""
        if left is not None:
            left -= len(piece)
            if left < 0:
                raise Decompressed("run the application with auto_decompress=False: the body is longer than its length")
        yield piece


async def _respond(request: web.Request, transport: _Transport, port: DataPort) -> web.StreamResponse:
    """Read the response that the connection writes, and send it."""
    buffer = ResponseHeadBuffer()
    heads = port.upstream.heads
    data = b""
    while True:
        found = buffer.feed(data or await transport.read(), heads.limits)
        if found is None:
            data = b""
            continue
        head, data = heads.read(found[0]), found[1]
        if head.status >= 200:
            break  # aiohttp sends no interim responses
    body = head.body(request.method.encode("ascii"), True)
    response = Response(head)
    await response.prepare(request)
    piece = body.feed(data) if data else b""
    while True:
        if piece:
            await response.write(piece)
        if body.done:
            break
        data = await transport.read()
        if not data:  # of an HTTP/1.0 response, whose body ends with the connection
            break
        piece = body.feed(data)
    await response.write_eof()
    return response


class _Transport(asyncio.Transport):
    """What a `ClientConnection` writes to, and is paused and closed by. readable: it takes more of the request."""

    connection: ClientConnection

    def __init__(self, request: web.Request) -> None:
        super().__init__()
        self.closing = False
        self.readable = asyncio.Event()
        self.readable.set()
        self._request = request
        self._written: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = self._cut = False
        self._news = asyncio.Event()

    async def read(self) -> bytes:
        """Return what has been written; b"" once the connection writes no more.

        Raises:
            ConnectionResetError: it was cut in the middle of a response.
        """
        while not self._written:
            if self._cut:
                raise ConnectionResetError("the response broke off")
            if self._ended:
                return b""
            self._news.clear()
            await self._news.wait()
        data = b"".join(self._written)
        self._written.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            self.connection.resume_writing()
        return data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.Transport`."""
        transport = self._request.transport
        return default if transport is None else transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.Transport`."""
        self._written.append(bytes(data))
        self._size += len(data)
        self._news.set()
        if self._size > _BUFFER and not self._paused:
            self._paused = True
            self.connection.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """See `asyncio.Transport`."""
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        """See `asyncio.Transport`."""
        return self._size

    def can_write_eof(self) -> bool:
        """See `asyncio.Transport`."""
        return True

    def write_eof(self) -> None:
        """See `asyncio.Transport`."""
        self._ended = True
        self._news.set()

    def is_closing(self) -> bool:
        """See `asyncio.Transport`."""
        return self.closing

    def close(self) -> None:
        """See `asyncio.Transport`."""
        self.closing = True
        self.write_eof()

    def abort(self) -> None:
        """See `asyncio.Transport`: cut the client's own connection."""
        self.closing = self._cut = True
        self._news.set()
        with contextlib.suppress(AttributeError):
            self._request.transport.abort()  # type: ignore[union-attr]  # None once the client is gone

    def is_reading(self) -> bool:
        """See `asyncio.Transport`. The poller of disconnected clients has nothing to ask here: aiohttp reads."""
        return True

    def pause_reading(self) -> None:
        """See `asyncio.Transport`."""
        self.readable.clear()

    def resume_reading(self) -> None:
        """See `asyncio.Transport`."""
        self.readable.set()

"""The data port behind aiohttp's own server: the same routes, use cases and connections to the cluster.

For those who embed the gateway in an aiohttp application, or prefer aiohttp's parser (`mlc-gateway serve --http
aiohttp`). Each request is written out again and read by a `ClientConnection` of its own (`local_client`); so there is
one implementation of the data port. ``docs/reference/embedding.md`` lists what differs.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from typing_extensions import override

from gateway.config.schema import Limits
from gateway.errors import InvalidInput
from gateway.http1.response_heads import ResponseHead
from gateway.observe.logs import Logger
from gateway.proxy.acceptor import BACKLOG, bind
from gateway.proxy.client_connection import ClientConnection
from gateway.proxy.data_port import DataPort
from gateway.proxy.error_responses import InternalError, respond
from gateway.proxy.exchange import encode_chunk
from gateway.proxy.local_client import LocalTransport, read_head

RUNNER_OPTIONS: dict[str, Any] = {"auto_decompress": False, "handler_cancellation": True, "lingering_time": 2.0}
"""Arguments for `web.AppRunner` and `web.run_app`.

Bodies stay as they came, a client that leaves ends its request, and one that gets an early error has as long to stop
sending as with the built-in server.
"""
_ADDED = ("Content-Type", "Date", "Server")
"""Headers that aiohttp adds to a response that lacks them."""
_NOT_RELAYED = frozenset({b"upgrade", b"http2-settings"})


class Application:
    """Answers the requests of an aiohttp application. port: the data port that handles the next request."""

    def __init__(self, port: DataPort) -> None:
        self.port = port

    def add_to(self, app: web.Application) -> None:
        """Let the gateway answer every request for which `app` has no route of its own."""
        app.middlewares.append(self._middleware())
        app.on_response_prepare.append(_restore_headers)

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
        if getattr(request.content, "total_compressed_bytes", None) is not None:
            error = InternalError(
                "aiohttp has decompressed the request's body, so the gateway can't relay it unchanged. Run the "
                "application with auto_decompress=False: web.run_app(app, **gateway.app.RUNNER_OPTIONS)."
            )
            return respond(error, self.port.log.no_request(error, request.remote or ""), close=True)
        transport = LocalTransport(request.transport)
        connection = ClientConnection(self.port)
        transport.connection = connection
        connection.connection_made(transport)
        connection.data_received(_head_of(request))
        upload = asyncio.create_task(_upload(request, connection, transport)) if request.body_exists else None
        try:
            return await _respond(request, transport)
        finally:
            transport.closing = True
            connection.connection_lost(None)
            if upload is not None:
                upload.cancel()
                await asyncio.gather(upload, return_exceptions=True)


class Response(web.StreamResponse):
    """A response with the headers that it was made with, and no others but those of its framing."""

    def __init__(self, head: ResponseHead) -> None:
        reason = head.first_line()[13:].strip().decode("utf-8", "replace")
        super().__init__(status=head.status, reason=reason)
        for line in head.end_to_end():
            name, _, value = line.partition(b":")
            self.headers.add(name.decode("ascii"), value.strip(b" \t").decode("utf-8", "replace"))
        self._own = tuple(self.headers.items())

    def restore_headers(self) -> None:
        """Remove the headers that aiohttp has added, and put back a length that it has removed (of a 304)."""
        names = {name.lower() for name, _ in self._own}
        for name in _ADDED:
            if name.lower() not in names:
                self.headers.popall(name, None)
        if "content-length" in names and "Content-Length" not in self.headers:
            added = [item for item in self.headers.items() if item[0].lower() not in names]
            self.headers.clear()
            self.headers.extend((*self._own, *added))


async def _restore_headers(_: web.Request, response: web.StreamResponse) -> None:
    if isinstance(response, Response):
        response.restore_headers()


def _head_of(request: web.Request) -> bytes:
    """Return the head of a request as a client writes it. It asks for no other protocol: aiohttp's server has none."""
    target = request.raw_path.encode("utf-8", "surrogateescape")
    lines = [b"%b: %b" % field for field in request.raw_headers if field[0].lower() not in _NOT_RELAYED]
    first = b"%b %b HTTP/%d.%d" % (request.method.encode("ascii"), target, *request.version)
    return b"\r\n".join((first, *lines, b"", b""))


async def _upload(request: web.Request, connection: ClientConnection, transport: LocalTransport) -> None:
    """Hand the request's body to the connection, framed as its head says."""
    try:
        chunked = "Transfer-Encoding" in request.headers
        left = 0 if chunked else request.content_length or 0
        async for piece in request.content.iter_any():
            await transport.readable.wait()
            if chunked:
                connection.data_received(encode_chunk(piece, False))
            elif len(piece) <= left:
                left -= len(piece)
                connection.data_received(piece)
            else:  # nothing behind the body may be taken for another request
                raise InvalidInput("The request's body is longer than its Content-Length.")
        if chunked:
            await transport.readable.wait()
            connection.data_received(encode_chunk(b"", True))
    except ConnectionError:
        transport.abort()
    except Exception as exc:
        error = exc if isinstance(exc, InvalidInput) else InvalidInput("The request's body is not valid HTTP.")
        if connection.exchange is not None:
            connection.exchange.fail_upload(error)


async def _respond(request: web.Request, transport: LocalTransport) -> web.StreamResponse:
    """Send the response that the connection writes.

    Return it even if it broke off or the client has gone. Its connection is cut then, which aiohttp notices.
    """
    response = None
    try:
        head, data = await read_head(transport)
        body = head.body(request.method.encode("ascii"), True)
        response = Response(head)
        if not head.persistent or (request.version.minor == 0 and b"keep-alive" not in head.listed):
            response.force_close()
        await response.prepare(request)
        piece = body.feed(data) if data else b""
        while True:
            if piece:
                await response.write(piece)
            if body.done:
                break
            data = await transport.read()
            if not data:  # of a response to an HTTP/1.0 client, whose body ends with the connection
                break
            piece = body.feed(data)
        await response.write_eof()
    except ConnectionError:
        transport.abort()
    return web.Response(status=502) if response is None else response


_LAST_CALL = 0.25
"""Seconds that idle connections stay open when the port stops: a request on its way on one is still served."""
_NO_TIMEOUT = 10 * 365 * 86_400
"""Seconds: aiohttp has no word for "never", and takes 0 for "at once"."""


class AiohttpListener:
    """The arguments and methods are those of `DataListener`. limits: those of a request's head."""

    def __init__(
        self,
        data_port: DataPort,
        host: str,
        port: int,
        log: Logger,
        grace: float,
        tls: ssl.SSLContext | None,
        shared: bool,
        limits: Limits,
    ) -> None:
        self._application = Application(data_port)
        self._host = host
        self._port = port
        self._log = log
        self._tls = tls
        self._shared = shared
        self._stop_now = False
        self.grace = grace
        self.port = 0
        app = web.Application()
        self._application.add_to(app)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_logger(log),
            **RUNNER_OPTIONS,
            keepalive_timeout=data_port.timeouts.keepalive or _NO_TIMEOUT,
            max_line_size=limits.header_line,
            max_field_size=limits.header_line,
            max_headers=limits.headers,
            shutdown_timeout=_LAST_CALL,
        )

    async def start(self) -> None:
        """See `DataListener`."""
        sockets = await bind(self._host, self._port, shared=self._shared)
        self._application.port.lifecycle.start()
        await self._runner.setup()
        for one in sockets:
            await web.SockSite(self._runner, one, ssl_context=self._tls, backlog=BACKLOG).start()
        address = sockets[0].getsockname()
        self.port = address[1] if isinstance(address, tuple) else 0
        self._log.info("listening", address=f"{self._host}:{self.port}", serves="the cluster's API", http="aiohttp")

    def replace(self, data_port: DataPort, grace: float) -> None:
        """See `DataListener`."""
        old, self._application.port = self._application.port, data_port
        self.grace = grace
        data_port.lifecycle.draining = old.lifecycle.draining
        data_port.lifecycle.start()
        old.lifecycle.hand_over(data_port, data_port.lifecycle)

    def drain(self) -> None:
        """See `DataListener`."""
        self._application.port.lifecycle.draining = True

    def stop_now(self) -> int:
        """See `DataListener`."""
        self._stop_now = True
        return len(self._application.port.lifecycle.connections)

    async def stop(self) -> None:
        """See `DataListener`."""
        self.drain()
        for site in list(self._runner.sites):
            await site.stop()
        lifecycle = self._application.port.lifecycle
        now = time.monotonic()
        await self._emptied(lambda: self._runner.server and self._runner.server.connections, now + _LAST_CALL)
        await self._emptied(lambda: lifecycle.connections, now + self.grace)
        lifecycle.stop()
        await self._runner.cleanup()

    async def _emptied(self, connections: Callable[[], object], until: float) -> None:
        """Wait until no connection is left, at most until `until`."""
        while connections() and time.monotonic() < until and not self._stop_now:  # noqa: ASYNC110  # seldom and short
            await asyncio.sleep(0.005)


class _Handler(logging.Handler):
    """Writes aiohttp's errors to the gateway's log. A malformed request is shown by the fault's type and the client."""

    def __init__(self, log: Logger) -> None:
        super().__init__()
        self._log = log

    @override
    def emit(self, record: logging.LogRecord) -> None:
        exc = record.exc_info[1] if record.exc_info else None
        if isinstance(exc, HttpProcessingError):
            client = record.args[0] if isinstance(record.args, tuple) and record.args else None
            self._log.info("refused", type=type(exc).__name__, client=str(client or ""))
        elif record.levelno >= logging.ERROR:
            self._log.error("internal error", exc_info=exc or RuntimeError(record.getMessage()))


def _logger(log: Logger) -> logging.Logger:
    logger = logging.Logger("gateway.aiohttp", logging.DEBUG)  # at which aiohttp logs a first line of no method
    logger.addHandler(_Handler(log))
    return logger

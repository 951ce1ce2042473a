"""A listening port: aiohttp's low-level server, with the gateway's limits and its shape of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from gateway.config.schema import Limits
from gateway.errors import InvalidInput
from gateway.observe.logs import Logger
from gateway.proxy import error_responses
from gateway.proxy.acceptor import Acceptor, bind

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Connection(RequestHandler):
    """One client's connection; answers what is no HTTP in the gateway's own shape."""

    def data_received(self, data: bytes) -> None:
        """Feed the parser; a body that turns out malformed ends there, where aiohttp would wait for more of it."""
        super().data_received(data)
        if self._current_request is not None and self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            content = self._current_request.content
            if not content.is_eof():
                content.set_exception(web.RequestPayloadError("malformed transfer-coding"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer for a message aiohttp could not parse; the connection ends with it."""
        if status >= 500 or request.writer.output_size > 0:
            raise ConnectionResetError("the client is gone") from exc
        reason = (message or "it can't be parsed").partition("\n")[0].strip().rstrip(":.")
        return error_responses.respond(
            InvalidInput(f"The request is not valid HTTP: {reason}."), request_id="", close=True
        )


class _Server(web.Server):
    def __init__(self, handler: Handler, limits: Limits) -> None:
        super().__init__(handler, handler_cancellation=True)
        self.limits = limits

    def __call__(self) -> RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # the gateway logs requests itself
            auto_decompress=False,
            max_line_size=self.limits.header_line,
            max_field_size=self.limits.header_line,
            max_headers=self.limits.headers,
        )


class Listener:
    """The admin port and what answers on it. grace: seconds that requests in flight get when it stops."""

    def __init__(
        self,
        handler: Handler,
        host: str,
        port: int,
        limits: Limits,
        log: Logger,
        grace: float,
    ) -> None:
        self._host = host
        self._port = port
        self._log = log
        self._handler = handler
        self._limits = limits
        self._grace = grace
        self.port = 0

    async def start(self) -> None:
        """Bind and listen; `port` then holds the port that was bound. Raises OSError: it can't be had."""
        self._server = _Server(self._handler, self._limits)
        self._door = Acceptor(await bind(self._host, self._port), self._server, None)
        await self._door.open()
        self.port = self._door.port
        self._log.info("listening", address=f"{self._host}:{self.port}" if self.port else self._host)

    async def stop(self) -> None:
        """Let nobody in, let requests in flight finish within the grace period, then cut what is left."""
        await self._door.close()
        self._server.pre_shutdown()
        await self._server.shutdown(self._grace)

"""The data port on aiohttp's server, in place of `gateway.proxy.listener` (`listen.http: aiohttp`)."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.http import HttpProcessingError

from gateway.config.schema import Limits
from gateway.observe.logs import Logger
from gateway.proxy.acceptor import BACKLOG, bind
from gateway.proxy.application import RUNNER_OPTIONS, Application
from gateway.proxy.data_port import DataPort

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
        self._log.info("listening", address=f"{self._host}:{self.port}", http="aiohttp")

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

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
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

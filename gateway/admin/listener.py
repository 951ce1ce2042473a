"""The admin port: an aiohttp application on its sockets, with the gateway's limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from aiohttp import web

from gateway.config.schema import Limits
from gateway.observe.logs import Logger
from gateway.proxy.acceptor import UNIX, bind


class AdminListener:
    """Serves `application`. grace: seconds that requests in flight get when it stops. port: once started."""

    def __init__(
        self, application: web.Application, host: str, port: int, limits: Limits, log: Logger, grace: float
    ) -> None:
        self._host = host
        self._port = port
        self._log = log
        self._runner = web.AppRunner(
            application,
            access_log=None,
            auto_decompress=False,
            handler_cancellation=True,
            max_line_size=limits.header_line,
            max_field_size=limits.header_line,
            max_headers=limits.headers,
            shutdown_timeout=grace,
        )
        self._file: tuple[Path, os.stat_result] | None = None
        self.port = 0

    async def start(self) -> None:
        """Bind and listen.

        Raises:
            OSError: the port can't be opened.
        """
        async with contextlib.AsyncExitStack() as undo:
            await self._runner.setup()
            undo.push_async_callback(self._runner.cleanup)
            if self._host.startswith(UNIX):
                path = Path(self._host.removeprefix(UNIX))
                await web.UnixSite(self._runner, path).start()
                self._file = path, await asyncio.to_thread(path.stat)
            else:
                sockets = await bind(self._host, self._port)
                self.port = sockets[0].getsockname()[1]
                for one in sockets:
                    undo.callback(one.close)
                for one in sockets:
                    await web.SockSite(self._runner, one).start()
            undo.pop_all()
        self._log.info("listening", address=f"{self._host}:{self.port}" if self.port else self._host)

    async def stop(self) -> None:
        """Stop listening, let requests in flight finish within the grace period, and close the connections.

        The file of a Unix socket is removed, unless another process has replaced it.
        """
        if self._file is not None:
            await asyncio.to_thread(_remove, *self._file)
        await self._runner.cleanup()


def _remove(path: Path, made: os.stat_result) -> None:
    """Remove the file of a Unix socket if it is still the one that was made.

    Call it while the socket is open, as no other file can have its inode then.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(path.stat(), made):
            path.unlink()

"""The adapters' port: a Starlette application on uvicorn, in the gateway's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from ipaddress import ip_address
from math import ceil
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.adapters.errors import INTERNAL
from gateway.adapters.requests import Place
from gateway.codes import NOTICE_HEADER
from gateway.config.consistency import is_local
from gateway.config.schema import Adapters, ClientTimeouts
from gateway.config.types import YEAR
from gateway.observe.logs import Logger
from gateway.proxy.acceptor import BACKLOG, bind

Routes = Callable[[Callable[[], Place]], Sequence[BaseRoute]]
"""Returns the routes of an adapter. It is given what returns the settings' parts in effect."""


class AdapterListener:
    """The sockets of the adapters' port, and the server behind them.

    place: the parts under the settings in effect. local: the port is on a loopback address. tls: None for plain HTTP.
    """

    def __init__(self, place: Place, routes: Sequence[Routes], log: Logger, tls: ssl.SSLContext | None) -> None:
        self._place = place
        self._log = log
        self._tls = tls
        listen = place.settings.listen
        self._host, self._wanted = listen.adapters_host, listen.adapters_port or 0
        self._shared = listen.workers > 1
        self.port = 0
        app = Starlette(
            routes=[route for make in routes for route in make(lambda: self._place)],
            middleware=[Middleware(_Guarded, listener=self)],
            exception_handlers={404: _no_route, 405: _no_route},
        )
        self._server = _Server(self._config(app))
        self._serving: asyncio.Task[None] | None = None

    def _config(self, app: ASGIApp) -> uvicorn.Config:
        settings = self._place.settings
        config = uvicorn.Config(
            app,
            http=partial(_Connection, timeouts=settings.listen.timeouts),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=ceil(settings.listen.timeouts.keepalive or YEAR),
            timeout_graceful_shutdown=max(1, int(settings.listen.shutdown_seconds)),
            h11_max_incomplete_event_size=settings.limits.head,
        )
        config.load()
        config.ssl = self._tls
        return config

    @property
    def adapters(self) -> Adapters:
        """The settings in effect."""
        return self._place.settings.adapters

    @property
    def is_local(self) -> bool:
        """Return True if only this machine can reach the port."""
        return is_local(self._host)

    def fault(self) -> None:
        """Log the exception that is being handled."""
        self._place.log.exception("internal error of an adapter")

    async def start(self) -> None:
        """Bind and listen.

        Raises:
            OSError: the port can't be bound.
        """
        sockets = await bind(self._host, self._wanted, shared=self._shared)
        address = sockets[0].getsockname()
        self.port = address[1] if isinstance(address, tuple) else 0
        for one in sockets:
            one.listen(BACKLOG)
        self._serving = asyncio.create_task(self._server.serve(sockets=sockets))
        self._log.info("adapters listening", address=f"{self._host}:{self.port}")

    def replace(self, place: Place) -> None:
        """Use other settings from the next request on."""
        self._place = place

    def stop_now(self) -> None:
        """Make `stop` wait for nothing."""
        self._server.force_exit = True

    async def stop(self) -> None:
        """Accept no more connections, and let running requests finish within `listen.shutdown_seconds`."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Timer:
    """Calls `then` after some seconds, unless it is stopped before. seconds: 0 for never."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, then: Callable[[], None]) -> None:
        self._loop, self._seconds, self._then = loop, seconds, then
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start, unless it is running."""
        if self._seconds and self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._then)

    def stop(self) -> None:
        """Stop."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class _Connection(H11Protocol):
    """Limits the time in which a client sends a head, and goes on to read an answer: uvicorn limits neither."""

    def __init__(self, *args: Any, timeouts: ClientTimeouts, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head = _Timer(self.loop, timeouts.head, self._end_late_head)
        self._read = _Timer(self.loop, timeouts.send, lambda: self.transport.abort())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._head.start()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head, if that is what is missing."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._head.start()
        else:
            self._head.stop()

    def _end_late_head(self) -> None:
        if self.conn.trailing_data[0]:
            self.transport.write(_LATE)
        self.transport.close()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._read.start()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._read.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._head.stop()
        self._read.stop()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """A server that leaves signals to the gateway."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Guarded:
    """Refuses requests for other hosts and of foreign pages, and answers faults of the gateway's own."""

    def __init__(self, app: ASGIApp, listener: AdapterListener) -> None:
        self._app = app
        self._listener = listener
        self._origins: Sequence[str] = ()
        self._cors = self._with_cors(())

    def _with_cors(self, origins: Sequence[str]) -> ASGIApp:
        return CORSMiddleware(
            self._app,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=[NOTICE_HEADER, "X-Request-Id", "Retry-After", "X-Should-Retry", "Mcp-Session-Id"],
            max_age=600,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, settings = Headers(scope=scope), self._listener.adapters
        if reason := _refusal(headers, settings, self._listener.is_local):
            await _error(403, reason)(scope, receive, send)
            return
        if self._origins != settings.origins:
            self._origins, self._cors = settings.origins, self._with_cors(settings.origins)
        begun = False

        async def sent(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._cors(scope, receive, sent)
        except ClientDisconnect:
            return
        except Exception:
            self._listener.fault()
            if begun:
                raise
            await _error(500, INTERNAL)(scope, receive, send)


def _refusal(headers: Headers, settings: Adapters, local: bool) -> str:
    """Return why a request is refused for where it is sent, or where it comes from; "" if it is not.

    A page whose name leads to this machine is known by its `Host`, any other foreign page by its `Origin`.
    """
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.lower()
    globs = [glob.partition(":")[0] for glob in settings.hosts]
    if globs and not any(fnmatchcase(name, glob) for glob in globs):
        return f"This port does not answer for the host {name!r}; see adapters.hosts."
    if not globs and local and name != "localhost" and not _is_address(name):
        return f"This port does not answer for the host {name!r}; name it in adapters.hosts."
    origin = headers.get("origin")
    if origin is not None and origin not in settings.origins and "*" not in settings.origins:
        return f"Pages of {origin!r} may not use this port; name that origin in adapters.origins."
    return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _error(status: int, message: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status)


async def _no_route(request: Any, error: Any) -> JSONResponse:
    return _error(error.status_code, f"There is no {request.method} {request.url.path} on this port.")

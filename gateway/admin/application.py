"""The admin port's aiohttp application: routes, the token, and errors in the gateway's form."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.config.schema import Limits, Secret
from gateway.errors import GatewayError
from gateway.inspector.access import INSPECTOR, Access, Unauthorized, refuse_other_sites
from gateway.observe.logs import Logger
from gateway.proxy import error_responses
from gateway.proxy.acceptor import UNIX, bind

_HEALTH = "/health/"
MEMORY = "/memory/sessions"
"""The start of the paths of the gateway's own sessions."""
_PROFILES = "/profiles/"
"""The start of the paths of pages that change what the gateway plans with. They need no token where none is set."""
RELOAD = "/reload"
"""Where a POST reads the settings again, and a GET tells which are in effect. No token is needed where none is set."""
HOLD = f"{_PROFILES}hold"
"""Where a POST holds documents as they were, and a DELETE ends that; see `gateway.agents.holds`."""

Page = Callable[[], Awaitable[web.StreamResponse]]


class NotFound(GatewayError):
    """The admin port has no such page."""

    status = 404
    type = "NotFound"


class MethodNotAllowed(GatewayError):
    """The page does not answer requests of this method."""

    status = 405
    type = "MethodNotAllowed"


class Pages(Protocol):
    """What an admin port serves. token: asked for on every page but those of health; empty: on none.

    is_private: only the supervisor reaches the port. Any other one shows conversations only if there is a token: local
    programs and, by DNS rebinding, web pages reach the loopback interface.
    routes: path → the page. actions: path → what a POST does. resources: routes of other methods, with parameters.
    Health pages need no token: they only tell whether the gateway serves, and probes can't hold secrets well.
    """

    token: Secret
    is_private: bool
    routes: Mapping[str, Page]
    actions: Mapping[str, Page]
    resources: Sequence[web.RouteDef]


def build_application(pages: Pages, log: Logger) -> web.Application:
    """Build the application that answers GET and HEAD on the routes of `pages`, POST on its actions, its resources."""
    access = Access(lambda: pages.token, pages.is_private)
    application = web.Application(middlewares=[_report_errors(pages, log), _require_token(pages, access)])
    for path, page in pages.routes.items():
        application.router.add_get(path, _handler(page))
    for path, action in pages.actions.items():
        application.router.add_post(path, _handler(action))
    application.router.add_routes([*access.routes(), *pages.resources])
    application.on_response_prepare.extend([access.add_headers, _remove_server])
    return application


def _report_errors(pages: Pages, log: Logger) -> Middleware:
    """Return the middleware that answers errors in the gateway's shape, and logs those that are its own fault."""

    @web.middleware
    async def report_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as wrong:
            allowed = ", ".join(sorted(wrong.allowed_methods))
            refusal = MethodNotAllowed(f"This page does not answer {wrong.method}, only {allowed}.")
            response = error_responses.respond(refusal, request_id="")
            response.headers["Allow"] = allowed  # RFC 9110, 15.5.6
            return response
        except web.HTTPNotFound:
            routes, actions = ", ".join(pages.routes), ", ".join(pages.actions)
            below = f"what is below {MEMORY} and {INSPECTOR}"
            reason = f"The admin port answers GET on {routes}, POST on {actions} and {HOLD}, and {below}."
            return error_responses.respond(NotFound(reason), request_id="")
        except GatewayError as refusal:
            return error_responses.respond(refusal, request_id="")
        except web.HTTPException:
            raise
        except Exception:
            log.exception("internal error", path=request.path)
            error = error_responses.InternalError(
                "An internal error of the gateway stopped this request. The gateway's log has the details."
            )
            return error_responses.respond(error, request_id="")

    return report_errors


def _require_token(pages: Pages, access: Access) -> Middleware:
    """Return the middleware that lets in only who has the token, where a page needs it."""

    @web.middleware
    async def require_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        if resource is not None and resource.canonical.startswith(INSPECTOR):
            return await access.guard(request, handler, bool(pages.token) and _knows(request, pages.token))
        if not pages.token and not pages.is_private and request.path.startswith(MEMORY):
            reason = "This page shows conversations and needs a token: set listen.admin_token."
            return error_responses.respond(Unauthorized(reason), request_id="")
        if pages.token and not request.raw_path.startswith(_HEALTH) and not _knows(request, pages.token):
            reason = (
                "This page needs a token: send `Authorization: Bearer <token>` with the value of listen.admin_token."
            )
            return error_responses.respond(Unauthorized(reason), request_id="")
        if not pages.token and not pages.is_private and request.path.startswith((_PROFILES, RELOAD)):
            refuse_other_sites(request)
        return await handler(request)

    return require_token


class Reloads(Protocol):
    """Reads the settings again. running: digest of the settings file's content that is in effect; "": of no file."""

    running: str

    async def file(self) -> str:
        """Return the digest of the file's content as it is now; "" if it can't be read."""

    async def run(self) -> list[str]:
        """Apply the settings as they are now to new requests. Return why they can't be; then nothing is changed."""


def json_page(status: int, document: Mapping[str, Any]) -> web.Response:
    """Return a page that is a JSON document."""
    return web.Response(status=status, body=msgspec.json.encode(document), headers={"Content-Type": "application/json"})


async def _remove_server(_: web.Request, response: web.StreamResponse) -> None:
    """Remove the versions of Python and aiohttp, which aiohttp adds."""
    response.headers.pop("Server", None)


def _handler(page: Page) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        return await page()

    return handle


def _knows(request: web.Request, token: Secret) -> bool:
    values = request.headers.getall("Authorization", [])
    scheme, _, value = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    given = value.strip().encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, token.reveal().encode()) and scheme.lower() == "bearer"


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
        address = f"{self._host}:{self.port}" if self.port else self._host
        self._log.info("listening", address=address, serves="health, metrics and the inspector")

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

"""The admin port: is the gateway alive, can it serve, what has it done."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from gateway.config.schema import Secret
from gateway.errors import GatewayError
from gateway.observe.metrics import CONTENT_TYPE, Metrics
from gateway.ports import ClusterReader
from gateway.proxy import error_responses

READY_FOR = 2.0
"""Seconds that an answer of the cluster counts, so that probes don't load it."""


class NotFound(GatewayError):
    """The admin port has no such page."""

    status = 404
    type = "NotFound"


class Unauthorized(GatewayError):
    """The admin port's page needs its token."""

    status = 401
    type = "Unauthorized"


class Guard:
    """Stands before an admin port's `handler`: asks for `token`, where there is one, on all but the health pages.

    Those tell whether the gateway serves and nothing else, and probes can't hold secrets well.
    """

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], token: Secret) -> None:
        self._handler = handler
        self.token = token

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler's answer, or 401."""
        if self.token and not request.raw_path.startswith("/health/") and not self._knows(request):
            refusal = Unauthorized("This page needs the admin port's token: Authorization: Bearer, listen.admin_token.")
            response = error_responses.respond(refusal, request_id="")
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        return await self._handler(request)

    def _knows(self, request: web.BaseRequest) -> bool:
        given = request.headers.getall("Authorization", [])
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        told = token.strip().encode("utf-8", "surrogateescape")
        return hmac.compare_digest(told, self.token.reveal().encode()) and scheme.lower() == "bearer"


class AdminPort:
    """Answers the requests of the admin port; an aiohttp handler."""

    def __init__(self, cluster: ClusterReader, metrics: Metrics) -> None:
        self.cluster = cluster
        self._metrics = metrics
        self._checked = float("-inf")
        self._fault = ""
        self.draining = False
        self._pages = {"/health/live": self._live, "/health/ready": self._ready, "/metrics": self._render}

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page asked for, by GET or HEAD."""
        page = self._pages.get(request.raw_path.partition("?")[0])
        if page is None or request.method not in ("GET", "HEAD"):
            pages = ", ".join(self._pages)
            return error_responses.respond(NotFound(f"The admin port answers GET on {pages}."), request_id="")
        return await page()

    async def _live(self) -> web.Response:
        return json_page(200, {"status": "live"})

    async def _ready(self) -> web.Response:
        if self.draining:
            return json_page(503, {"status": "draining"})
        if time.monotonic() - self._checked > READY_FOR:
            self._fault = await self._upstream_fault()
            self._checked = time.monotonic()
        if self._fault:
            return json_page(503, {"status": "not ready", "upstream": self._fault})
        return json_page(200, {"status": "ready"})

    async def _upstream_fault(self) -> str:
        # Any answer below 500 shows that the cluster is there: a secured one answers 401 to the gateway.
        try:
            response = await self.cluster.exchange("GET", "/", {})
        except GatewayError as exc:
            return exc.reason
        return f"The cluster answers {response.status}." if response.status >= 500 else ""

    async def _render(self) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def json_page(status: int, document: dict[str, str]) -> web.Response:
    """A page that is a JSON document."""
    return web.Response(status=status, body=msgspec.json.encode(document), headers={"Content-Type": "application/json"})

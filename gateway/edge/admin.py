"""The admin port: is the gateway alive, can it serve, what has it done."""

from __future__ import annotations

import time

import msgspec
from aiohttp import web

from gateway.edge import errors
from gateway.errors import GatewayError
from gateway.execute.ports import ClusterReader
from gateway.observe.metrics import CONTENT_TYPE, Metrics

READY_FOR = 2.0
"""Seconds that an answer of the cluster counts, so that probes don't load it."""


class NotFound(GatewayError):
    """The admin port has no such page."""

    status = 404
    type = "NotFound"


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
            return errors.respond(NotFound(f"The admin port answers GET on {pages}."), request_id="")
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

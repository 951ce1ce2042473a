"""The pages of one gateway's admin port: liveness, readiness, metrics; and dropping cached profiles."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from aiohttp import web

from gateway.admin.application import Page, json_page
from gateway.admin.memory_pages import MemoryPages
from gateway.config.schema import Secret
from gateway.errors import GatewayError
from gateway.inspector.pages import InspectorPages
from gateway.inspector.store import RecordStore
from gateway.memory.store import Store
from gateway.observe.metrics import CONTENT_TYPE, Metrics
from gateway.ports import ClusterReader, ProfileCache

DROP_PROFILES = "/profiles/drop"
"""Where a POST drops all cached profiles: templates were changed on the cluster itself."""

READY_FOR = 2.0
"""Seconds that an answer of the cluster counts, so that probes don't load it."""


class AdminPages:
    """See `gateway.admin.application.Pages`. draining: the gateway stops and is not ready any more.

    memory: the pages of sessions. inspector: the pages of recorded exchanges.
    """

    def __init__(
        self,
        cluster: ClusterReader,
        profiles: ProfileCache,
        metrics: Metrics,
        token: Secret,
        store: Store | None = None,
        is_private: bool = False,
        records: RecordStore | None = None,
    ) -> None:
        self.cluster = cluster
        self.profiles = profiles
        self.token = token
        self.is_private = is_private
        self.draining = False
        self.routes: Mapping[str, Page] = {
            "/health/live": self._live,
            "/health/ready": self._ready,
            "/metrics": self._render,
        }
        self.actions: Mapping[str, Page] = {DROP_PROFILES: self._drop_profiles}
        self.memory = MemoryPages(store)
        self.inspector = InspectorPages(records)
        self.resources: Sequence[web.RouteDef] = [*self.memory.routes(), *self.inspector.routes()]
        self._metrics = metrics
        self._checked = float("-inf")
        self._fault = ""

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
        """Ask the cluster, and return what is wrong with it, or "". A secured cluster answers 401: it is there."""
        try:
            response = await self.cluster.exchange("GET", "/", {})
        except GatewayError as error:
            return error.reason
        return f"The cluster answers {response.status}." if response.status >= 500 else ""

    async def _drop_profiles(self) -> web.Response:
        self.profiles.invalidate("cluster", None)
        return json_page(200, {"status": "dropped"})

    async def _render(self) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

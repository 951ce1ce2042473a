"""The pages of one gateway's admin port: liveness, readiness, metrics; dropping cached profiles, holding documents."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Annotated, Any

import msgspec
from aiohttp import web

from gateway.admin.application import HOLD, Page, json_page
from gateway.admin.memory_pages import MemoryPages
from gateway.agents.holds import LONGEST_HOLD, MOST_HOLDS, Holds, TooManyHolds
from gateway.config.schema import Secret
from gateway.errors import GatewayError, InvalidInput, Problem
from gateway.inspector.pages import InspectorPages
from gateway.inspector.store import RecordStore
from gateway.memory.store import Store
from gateway.observe.metrics import CONTENT_TYPE, Metrics
from gateway.ports import ClusterReader, ProfileCache

DROP_PROFILES = "/profiles/drop"
"""Where a POST drops all cached profiles: templates were changed on the cluster itself."""

READY_FOR = 2.0
"""Seconds that an answer of the cluster counts, so that probes don't load it."""

CountRuns = Callable[[Set[str], float], int]
"""Returns the number of unfinished runs that were planned before a time with one of these documents."""


_Connector = Annotated[str, msgspec.Meta(pattern="^(connectors/[^/]+|models/[^/]+/connector)$")]
_ConnectorId = Annotated[str, msgspec.Meta(pattern="^models/[^/]+/connector_id$")]


class HoldRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST to `HOLD`. connectors, connector_ids: parts of documents by place; see `Holds`."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_HOLD)]
    connectors: dict[_Connector, dict[str, Any]]
    connector_ids: dict[_ConnectorId, str]


class AdminPages:
    """See `gateway.admin.application.Pages`. draining: the gateway stops and is not ready any more.

    memory: the pages of sessions. inspector: the pages of recorded exchanges. holds: None if the use case can't hold
    documents.
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
        holds: Holds | None = None,
        count_runs: CountRuns = lambda documents, before: 0,
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
        holding = [web.post(HOLD, self._hold), web.delete(HOLD, self._release)] if holds is not None else []
        self.resources: Sequence[web.RouteDef] = [*holding, *self.memory.routes(), *self.inspector.routes()]
        self._holds = holds or Holds()
        self._count_runs = count_runs
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

    async def _hold(self, request: web.Request) -> web.Response:
        """Hold documents from now on. `runs` counts those that were planned before with one of these documents."""
        try:
            wanted = msgspec.json.decode(await request.read(), type=HoldRequest)
        except msgspec.DecodeError as error:
            problem = Problem("body", str(error), "name, seconds, connectors and connector_ids", "")
            raise InvalidInput(f"[body] {error}", [problem]) from None
        parts = {**wanted.connectors, **wanted.connector_ids}
        try:
            known = self._holds.hold(wanted.name, parts, wanted.seconds)
        except TooManyHolds:
            problem = Problem("name", "too many documents are held", f"at most {MOST_HOLDS} holds", wanted.name)
            raise InvalidInput(f"[name] There are {MOST_HOLDS} holds already.", [problem]) from None
        documents = {"/".join(place.split("/")[:2]) for place in parts}
        runs = self._count_runs(documents, self._holds.since(wanted.name))
        return json_page(200, {"status": "held", "known": known, "runs": runs})

    async def _release(self, request: web.Request) -> web.Response:
        known = self._holds.release(request.query.get("name", ""))
        return json_page(200, {"status": "released", "known": known, "runs": 0})

    async def _render(self) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

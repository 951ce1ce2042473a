"""The pages of one gateway's admin port: health, metrics, sessions; dropping profiles, holding documents."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence, Set
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from aiohttp import web

from gateway.admin.application import HOLD, MEMORY, RELOAD, NotFound, Page, Reloads, json_page
from gateway.agents.holds import LONGEST_HOLD, MOST_HOLDS, Holds, TooManyHolds
from gateway.config.schema import Secret
from gateway.errors import GatewayError, InvalidInput, MemoryUnavailable, Problem
from gateway.inspector.pages import DATA_URL, InspectorPages
from gateway.inspector.queries import check_names, read_limit, read_number
from gateway.memory.management import (
    AmbiguousSession,
    OwnerFilter,
    export_lines,
    find_session,
    list_sessions,
    session_as_json,
    stored_as_json,
)
from gateway.memory.model import Session
from gateway.memory.reading import read_range
from gateway.memory.rest import store_errors
from gateway.memory.sessions import Delete
from gateway.memory.store import SessionNotFound, Store, StoreError, UnknownPosition
from gateway.memory.stores.strands.files import zip_session
from gateway.observe.metrics import CONTENT_TYPE, Metrics
from gateway.ports import ClusterReader, ProfileCache
from gateway.recording.sinks.sqlite import SqliteStore

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

    reloads: None if the settings can't be read again. memory: the pages of sessions. inspector: the pages of recorded
    exchanges. holds: None if the use case can't hold documents. data_url: returns the address of the data port.
    clusters: by name, "" for the one of `upstream`.
    """

    def __init__(
        self,
        clusters: Mapping[str, ClusterReader],
        profiles: ProfileCache,
        metrics: Metrics,
        token: Secret,
        store: Store | None = None,
        is_private: bool = False,
        records: SqliteStore | None = None,
        holds: Holds | None = None,
        count_runs: CountRuns = lambda documents, before: 0,
        delete: Delete | None = None,
        data_url: Callable[[], str] = lambda: DATA_URL,
    ) -> None:
        self.clusters = clusters
        self.profiles = profiles
        self.token = token
        self.is_private = is_private
        self.draining = False
        self.reloads: Reloads | None = None
        self.routes: Mapping[str, Page] = {
            "/health/live": self._live,
            "/health/ready": self._ready,
            "/metrics": self._render,
            RELOAD: self._show_settings,
        }
        self.actions: Mapping[str, Page] = {DROP_PROFILES: self._drop_profiles, RELOAD: self._reload}
        self.memory = MemoryPages(store, delete)
        self.inspector = InspectorPages(records, data_url)
        holding = [web.post(HOLD, self._hold), web.delete(HOLD, self._release)] if holds is not None else []
        self.resources: Sequence[web.RouteDef] = [*holding, *self.memory.routes(), *self.inspector.routes()]
        self._holds = holds or Holds()
        self._count_runs = count_runs
        self._metrics = metrics
        self._checked = float("-inf")
        self._faults = {"": ""}

    async def _live(self) -> web.Response:
        return json_page(200, {"status": "live"})

    async def _ready(self) -> web.Response:
        if self.draining:
            return json_page(503, {"status": "draining"})
        if time.monotonic() - self._checked > READY_FOR:
            clusters = dict(self.clusters)
            found = await asyncio.gather(*map(_fault_of, clusters.values()))
            self._faults = dict(zip(clusters, found, strict=True))
            self._checked = time.monotonic()
        others = {name: fault or "reachable" for name, fault in self._faults.items() if name}
        clusters_known = {"clusters": others} if others else {}
        if fault := self._faults[""]:
            return json_page(503, {"status": "not ready", "upstream": fault, **clusters_known})
        return json_page(200, {"status": "ready", **clusters_known})

    async def _drop_profiles(self) -> web.Response:
        self.profiles.invalidate("cluster", None)
        return json_page(200, {"status": "dropped"})

    async def _show_settings(self) -> web.Response:
        return json_page(200, await show_settings(self._reloads()))

    async def _reload(self) -> web.Response:
        reloads = self._reloads()
        problems = await reloads.run()
        status = {"status": "refused" if problems else "reloaded", "problems": problems}
        return json_page(409 if problems else 200, {**status, **await show_settings(reloads)})

    def _reloads(self) -> Reloads:
        if self.reloads is None:
            raise NotFound("This gateway can't read its settings again.")
        return self.reloads

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


async def _fault_of(cluster: ClusterReader) -> str:
    """Ask a cluster, and return what is wrong with it, or "". A secured cluster answers 401: it is there."""
    try:
        response = await cluster.exchange("GET", "/", {})
    except GatewayError as error:
        return error.reason
    return f"The cluster answers {response.status}." if response.status >= 500 else ""


async def show_settings(reloads: Reloads) -> dict[str, str]:
    """Return which settings are in effect, and which ones the file holds, for the page of `RELOAD`."""
    return {"running": reloads.running, "file": await reloads.file()}


_OWNER = ("agent", "tenant", "caller")


class MemoryPages:
    """The pages of `store`; None: the gateway has no memory. delete: deletes a session; None for `Store.delete`."""

    def __init__(self, store: Store | None, delete: Delete | None = None) -> None:
        self.store = store
        self.delete = delete

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of all pages."""
        one = MEMORY + "/{id}"
        return [
            web.get(MEMORY, self._list),
            web.get(one, self._show),
            web.delete(one, self._delete),
            web.get(f"{one}/messages", self._messages),
            web.get(f"{one}/export", self._export),
            web.put(f"{one}/pin", self._pin),
            web.delete(f"{one}/pin", self._pin),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        check_names(request.query, (*_OWNER, "after", "limit"))
        after, limit = request.query.get("after", ""), read_limit(request.query)
        with _errors():
            page = await list_sessions(self._store(), _wanted(request), after, limit)
        document: dict[str, Any] = {"sessions": [session_as_json(one) for one in page.sessions]}
        return json_page(200, {**document, "next": page.next} if page.next else document)

    async def _show(self, request: web.Request) -> web.Response:
        check_names(request.query, _OWNER)
        return json_page(200, session_as_json(await self._session(request)))

    async def _messages(self, request: web.Request) -> web.Response:
        """Answer with the messages from seq `start` on, up to 16 MiB, and the `next` start if there are more."""
        check_names(request.query, (*_OWNER, "start", "limit"))
        start, limit = read_number(request.query, "start") or 0, read_limit(request.query)
        session = await self._session(request)
        following = min(start + limit, session.messages)
        with _errors():
            found = await read_range(self._store(), session.key, start, following) if start < following else []
        if found:
            following = found[-1].seq + 1
        more = {"next": following} if following < session.messages else {}
        return json_page(200, {"messages": [stored_as_json(stored) for stored in found], **more})

    async def _export(self, request: web.Request) -> web.StreamResponse:
        check_names(request.query, (*_OWNER, "format"))
        kind = request.query.get("format", "jsonl")
        if kind not in ("jsonl", "strands"):
            problem = Problem("format", "there is no such format", "jsonl or strands", kind[:100])
            raise InvalidInput("[format] There is no such format.", [problem])
        session = await self._session(request)
        if kind == "strands":
            pieces, headers = zip_session(self._store(), session), _download("application/zip", f"{session.key.id}.zip")
        else:
            pieces = export_lines(self._store(), session)
            headers = _download("application/x-ndjson", f"{session.key.id}.jsonl")
        async with aclosing(pieces):
            return await _stream(request, pieces, headers)

    async def _delete(self, request: web.Request) -> web.Response:
        check_names(request.query, _OWNER)
        session = await self._session(request)
        with _errors():
            await (self.delete or self._store().delete)(session.key)
        return json_page(200, {"status": "deleted"})

    async def _pin(self, request: web.Request) -> web.Response:
        check_names(request.query, _OWNER)
        session = await self._session(request)
        with _errors():
            session = await self._store().pin(session.key, request.method == "PUT")
        return json_page(200, session_as_json(session))

    async def _session(self, request: web.Request) -> Session:
        """Return the session that the path names.

        Raises:
            NotFound: there is none. InvalidInput: several owners have one. MemoryUnavailable: the store failed.
        """
        with _errors():
            return await find_session(self._store(), request.match_info["id"], _wanted(request))

    def _store(self) -> Store:
        if self.store is None:
            raise MemoryUnavailable("This gateway keeps no sessions.")
        return self.store


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn a store's errors into a response.

    Raises:
        NotFound, InvalidInput, MemoryUnavailable: the store raised a `StoreError`.
    """
    with store_errors():
        try:
            yield
        except SessionNotFound as error:
            raise NotFound(str(error)) from None
        except (AmbiguousSession, UnknownPosition) as error:
            raise InvalidInput(str(error)) from None


def _wanted(request: web.Request) -> OwnerFilter:
    return OwnerFilter(*(request.query.get(name) for name in _OWNER))


def _download(content_type: str, name: str) -> dict[str, str]:
    return {"Content-Type": content_type, "Content-Disposition": f'attachment; filename="{name}"'}


async def _stream(
    request: web.Request, pieces: AsyncGenerator[bytes, None], headers: dict[str, str]
) -> web.StreamResponse:
    """Send the pieces as they are read. If the store fails midway, the connection is closed within the response."""
    with _errors():
        first = await anext(pieces)
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    if request.method == "HEAD":  # aiohttp would send what is written
        return response
    await response.write(first)
    try:
        async for piece in pieces:
            await response.write(piece)
    except StoreError:
        if request.transport is not None:
            request.transport.abort()  # the client must not take what it has got for all of it
        raise
    await response.write_eof()
    return response

"""The inspector's pages and their data: routes below `/inspector/` on the admin port."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from gateway.errors import GatewayError, InvalidInput, Problem
from gateway.inspector.access import HOME, INSPECTOR, render, static_files
from gateway.inspector.diff import at, read
from gateway.inspector.drawing import TABS, compare_request, compare_response, draw_exchange, draw_session, parts
from gateway.inspector.exports import Exports
from gateway.inspector.live import Live, row_as_json
from gateway.inspector.migration import DAYS, read_days, report
from gateway.inspector.queries import (
    FIELDS,
    NotRecorded,
    Reader,
    find_record,
    read_filter,
    read_limit,
    read_number,
    read_sort,
)
from gateway.inspector.words import INTENTS, STRATEGIES, describe_losses
from gateway.recording.conversation import BROWSER_IMAGES
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import MIRRORS

_API = f"{INSPECTOR}/api"
_ONE = f"{INSPECTOR}/exchanges/{{id:[^/]+}}"
_STATE = ("paused", "selected", "range", "sort")
_OFFERED = ("agent", "type", "provider", "strategy", "status", "notice", "route", "cluster")
"""Filters for which the page offers the values that there are."""
DATA_URL = "http://127.0.0.1:9209"
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class InspectorPages:
    """The pages of `store`; None: no exchanges are recorded, or their store can't be read.

    data_url: returns the address of the data port, for the example of a request.
    """

    def __init__(self, store: SqliteStore | None, data_url: Callable[[], str] = lambda: DATA_URL) -> None:
        self._reader = Reader(store)
        self._data_url = data_url
        self._exports = Exports(self._reader)
        self.live = Live(self._reader)

    @property
    def store(self) -> SqliteStore | None:
        """The store that is read."""
        return self._reader.store

    @store.setter
    def store(self, store: SqliteStore | None) -> None:
        self._reader.store = store

    def stop(self) -> None:
        """End the live lists, which do not end by themselves."""
        self.live.stop()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of all pages."""
        return [
            web.get(INSPECTOR, _home),
            web.get(HOME, _as_page(self._list)),
            web.get(f"{INSPECTOR}/migration", _as_page(self._migration)),
            web.get(_ONE, _as_page(self._show)),
            web.get(f"{_ONE}/text", self._text),
            web.get(f"{INSPECTOR}/sessions/{{id:.+}}", _as_page(self._session)),
            *self._exports.routes(),
            web.get(f"{INSPECTOR}/media/{{sha256:[0-9a-f]{{64}}}}", self._medium),
            web.get(f"{_API}/exchanges", self._rows),
            web.get(f"{_API}/exchanges/{{id:[^/]+}}", self._record),
            web.get(f"{_API}/exchanges/{{id:[^/]+}}/diff", self._diff),
            web.get(f"{_API}/live", self.live.handle),
            web.get(f"{_API}/values", self._values),
            web.get(f"{_API}/overview", self._overview),
            web.get(f"{_API}/migration", self._report),
            web.post(f"{_API}/clear", self._clear),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        query = {name: request.query.get(name, "") for name in (*FIELDS, *_STATE)}
        return _page(
            "list.html",
            query=query,
            recording=self.store is not None,
            data_url=self._data_url(),
            strategies=STRATEGIES,
            intents=INTENTS,
            mirrors=MIRRORS,
        )

    async def _migration(self, request: web.Request) -> web.Response:
        days = read_days(request.query.get("days", "7"))
        return _page("migration.html", days=days, spans=list(DAYS), recording=self.store is not None)

    async def _show(self, request: web.Request) -> web.Response:
        tab, target = request.query.get("tab", "overview"), request.query.get("to", "cluster")
        if tab not in TABS:
            raise InvalidInput.of([Problem("tab", "there is no such tab", ", ".join(TABS), tab[:100])])
        id, filters = request.match_info["id"], request.query.get("list", "")

        def draw(store: SqliteStore) -> str:
            return draw_exchange(store, find_record(store, id), tab, target == "llm", filters)

        return _respond(await self._reader.ask(draw), "text/html")

    async def _session(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        return _respond(await self._reader.ask(lambda store: draw_session(store, id)), "text/html")

    async def _text(self, request: web.Request) -> web.Response:
        """Answer with a whole text of a body: what the query's `path`, a JSON list of steps, leads to."""
        id, part = request.match_info["id"], request.query.get("part", "")
        try:
            path = json.loads(request.query.get("path", "[]"))
        except (ValueError, RecursionError):
            path = None
        if not isinstance(path, list) or not all(step is None or isinstance(step, str | int) for step in path):
            raise InvalidInput.of([Problem("path", "this is not a list of steps", "a JSON list")])

        def find(store: SqliteStore) -> str:
            body = parts(find_record(store, id)).get(part)
            if body is None or body.text is None:
                raise NotRecorded(f"The exchange {id} has no body {part[:20]!r} that was recorded.")
            try:
                return str(at(read(body.text), path)) if path else body.text
            except LookupError:
                raise NotRecorded("There is nothing at this place of the body.") from None

        return _respond(await self._reader.ask(find), "text/plain")

    async def _medium(self, request: web.Request) -> web.Response:
        sha256 = request.match_info["sha256"]
        found = await self._reader.ask(lambda store: store.medium(sha256))
        if (found is None or found[0] not in BROWSER_IMAGES) and "thumbnail" in request.query:
            kind, data = static_files()["image.svg"]
            return web.Response(body=data, content_type=kind)
        if found is None:
            raise NotRecorded("This medium is not kept. Media are kept if inspector.media is `keep`.")
        kind, data = found
        if kind in BROWSER_IMAGES:
            return web.Response(body=data, content_type=kind)
        headers = {"Content-Disposition": f'attachment; filename="{sha256[:12]}"'}
        return web.Response(body=data, content_type="application/octet-stream", headers=headers)

    async def _rows(self, request: web.Request) -> web.Response:
        wanted = read_filter(request.query, ("before", "limit", "sort"))
        before, limit, sort = read_number(request.query, "before"), read_limit(request.query), read_sort(request.query)

        def find(store: SqliteStore) -> dict[str, Any]:
            reached = store.newest()  # read first: the live list, which continues there, leaves nothing out
            rows = store.rows(wanted, before, limit + 1, sort)
            last = rows[limit - 1].position if len(rows) > limit else None
            reached = max([reached, *(row.position for row in rows)])
            return {"rows": [row_as_json(row) for row in rows[:limit]], "next": last, "newest": reached}

        return await self._json(find)

    async def _overview(self, request: web.Request) -> web.Response:
        """Answer with the sums of the exchanges that match, and with what was not recorded in the same time."""
        wanted = read_filter(request.query)

        def sum_up(store: SqliteStore) -> dict[str, Any]:
            losses = describe_losses(store.losses(wanted.since, wanted.until))
            return {**msgspec.to_builtins(store.overview(wanted)), "losses": losses}

        return await self._json(sum_up)

    async def _record(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        return await self._json(lambda store: find_record(store, id))

    async def _diff(self, request: web.Request) -> web.Response:
        """Answer with where the parts of a body went: `side` is request or response; `to` is cluster or llm."""
        id, side = request.match_info["id"], request.query.get("side", "request")
        if side not in ("request", "response"):
            raise InvalidInput.of([Problem("side", "there is no such side", "request or response", side[:100])])
        with_llm = request.query.get("to") == "llm"

        def find(store: SqliteStore) -> dict[str, Any]:
            record = find_record(store, id)
            found = compare_response(record) if side == "response" else compare_request(record, with_llm)
            return {"unchanged": found.unchanged, "changes": found.places, "left_out": found.hidden}

        return await self._json(find)

    async def _values(self, _: web.Request) -> web.Response:
        return await self._json(lambda store: {name: store.values(name) for name in _OFFERED})

    async def _report(self, request: web.Request) -> web.Response:
        days = read_days(request.query.get("days", "7"))
        return await self._json(lambda store: report(store, days))

    async def _clear(self, _: web.Request) -> web.Response:
        await self._reader.ask(lambda store: store.clear())
        return web.json_response({"status": "cleared"})

    async def _json(self, question: Callable[[SqliteStore], object]) -> web.Response:
        body = await self._reader.ask(lambda store: _encode(question(store)))
        return web.Response(body=body, content_type="application/json")


async def _home(_: web.Request) -> web.Response:
    raise web.HTTPMovedPermanently(HOME)


def _as_page(handle: Handle) -> Handle:
    """Show errors of a page as a page."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handle(request)
        except GatewayError as error:
            return _page("error.html", error.status, error=error)

    return answer


def _page(template: str, status: int = 200, **values: Any) -> web.Response:
    return _respond(render(template, **values), "text/html", status)


def _respond(text: str, content_type: str, status: int = 200) -> web.Response:
    """Return a text. JSON may have surrogates, which have no form in UTF-8: they are shown as ``\\ud800``."""
    body = text.encode("utf-8", "backslashreplace")
    return web.Response(status=status, body=body, content_type=content_type, charset="utf-8")


def _encode(value: object) -> bytes:
    """Return JSON, with surrogates as escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()

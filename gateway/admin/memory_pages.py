"""The admin port's pages of the gateway's own sessions, of all owners: list, show, export, pin, delete.

The query's `agent`, `tenant` and `caller` say which owner is meant (`gateway.memory.management.OwnerFilter`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from gateway.admin.application import MEMORY, NotFound, json_page
from gateway.errors import InvalidInput, MemoryUnavailable, Problem
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
from gateway.memory.rest_handler import store_errors
from gateway.memory.store import SessionNotFound, Store, StoreError, UnknownPosition
from gateway.memory.strands_export import zip_session

_OWNER = ("agent", "tenant", "caller")


class MemoryPages:
    """The pages of `store`; None: the gateway has no memory."""

    def __init__(self, store: Store | None) -> None:
        self.store = store

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
            await self._store().delete(session.key)
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

"""Routes that give exchanges to other tools: HAR, curl, Python, pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.errors import GatewayError
from gateway.inspector.access import INSPECTOR
from gateway.inspector.har import write_har
from gateway.inspector.queries import Reader, find_record, read_filter
from gateway.inspector.repeatable import Medium
from gateway.inspector.snippets import as_curl, as_pytest, as_python
from gateway.observe.record import ExchangeRecord
from gateway.recording.store import Filter, RecordStore

Write = Callable[[ExchangeRecord, Medium], str]
_SNIPPETS: dict[str, Write] = {"curl": as_curl, "python": as_python, "pytest": as_pytest}
_ATTACHED = 1 << 20
"""Bytes of a HAR file that are read from the store before they are sent."""


class Exports:
    """The routes of what `reader` reads."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        one = f"{INSPECTOR}/exchanges/{{id:[^/]+}}"
        return [
            web.get(f"{INSPECTOR}/export.har", self._har),
            *(web.get(f"{one}/{name}", self._snippet(write)) for name, write in _SNIPPETS.items()),
        ]

    def _snippet(self, write: Write) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            id = request.match_info["id"]

            def answer(store: RecordStore) -> str:
                return write(find_record(store, id), store.medium)

            text = await self._reader.ask(answer)
            return web.Response(text=text, content_type="text/plain", headers={"X-Content-Type-Options": "nosniff"})

        return handle

    async def _har(self, request: web.Request) -> web.StreamResponse:
        """Send the exchanges that match the query's filters, the oldest first.

        If the store fails midway, the connection is closed within the response.
        """
        wanted = read_filter(request.query)
        pieces: list[Iterator[bytes]] = []

        def begin(store: RecordStore) -> bytes:
            pieces.append(write_har(oldest_first(store, wanted)))
            return _read(pieces[0])

        data = await self._reader.ask(begin)
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Content-Disposition": 'attachment; filename="exchanges.har"'}
        )
        await response.prepare(request)
        if request.method == "HEAD":  # aiohttp would send what is written
            return response
        try:
            while data:
                await response.write(data)
                data = await self._reader.ask(lambda _: _read(pieces[0]))
        except GatewayError:
            if request.transport is not None:
                request.transport.abort()  # the client must not take what it has got for all of it
            raise
        return response


def _read(pieces: Iterator[bytes]) -> bytes:
    """Return the next pieces as one; b"" at the end."""
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size >= _ATTACHED:
            break
    return b"".join(found)


_PAGE = 200


def oldest_first(store: RecordStore, wanted: Filter) -> Iterator[ExchangeRecord]:
    """Yield whole exchanges in the order in which they were stored. One that is deleted meanwhile is left out.

    Raises:
        InvalidFilter, StoreError: as the store.
    """
    after = 0
    while True:
        rows = store.newer(wanted, after, _PAGE)
        for row in rows:
            record = store.get(row.record.id)
            if record is not None:
                yield record
        if len(rows) < _PAGE:
            return
        after = rows[-1].position

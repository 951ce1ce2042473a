"""What the pages give away as files: HAR, and one request as curl, Python or pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aiohttp import web

from gateway.inspector.har import write_har
from gateway.inspector.queries import read_filter
from gateway.inspector.reader import Reader, find_record
from gateway.inspector.repeatable import Medium
from gateway.inspector.snippets import as_curl, as_pytest, as_python
from gateway.inspector.store import Filter, RecordStore
from gateway.observe.record import ExchangeRecord

_PAGE = 100
_PIECE = 1 << 18
_FORMS: dict[str, Callable[[ExchangeRecord, Medium], str]] = {
    "curl": as_curl,
    "python": as_python,
    "pytest": as_pytest,
}
FORMS = "|".join(_FORMS)


class Downloads:
    """Answers with files made from what `reader` reads."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def snippet(self, request: web.Request) -> web.Response:
        """Answer with the request of an exchange, in the form that the path names."""
        id, write = request.match_info["id"], _FORMS[request.match_info["form"]]
        text = await self._reader.ask(lambda store: write(find_record(store, id), store.medium))
        return web.Response(text=text, content_type="text/plain")

    async def har(self, request: web.Request) -> web.StreamResponse:
        """Stream a HAR file of the exchanges that match the filters, newest first.

        If the store fails midway, the connection is closed within the response.
        """
        wanted = read_filter(request.query)
        pieces: list[Iterator[bytes]] = []

        def piece(store: RecordStore) -> bytes:
            if not pieces:
                pieces.append(write_har(_records(store, wanted)))
            return _join(pieces[0])

        content = await self._reader.ask(piece)
        headers = {"Content-Type": "application/json", "Content-Disposition": 'attachment; filename="exchanges.har"'}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        try:
            while content:
                await response.write(content)
                content = await self._reader.ask(piece)
        except Exception:
            if request.transport is not None:
                request.transport.abort()  # the client must not take what it has got for all of it
            raise
        await response.write_eof()
        return response


def _records(store: RecordStore, wanted: Filter) -> Iterator[ExchangeRecord]:
    before: int | None = None
    while rows := store.rows(wanted, before, _PAGE):
        before = rows[-1].position
        for row in rows:
            record = store.get(row.record.id)
            if record is not None:
                yield record


def _join(pieces: Iterator[bytes]) -> bytes:
    """Return the next pieces, about 256 KB in all; nothing at the end."""
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) >= _PIECE:
            break
    return bytes(found)

"""The live list: server-sent events with the exchanges of all workers as they are stored."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import msgspec
from aiohttp import web

from gateway.errors import GatewayError
from gateway.inspector.queries import Reader, read_filter, read_number
from gateway.observe.record import Delivery, ExchangeRecord, Summary
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import Filter, Row

_BATCH = 200
_EARLIEST, _LATEST = 0.2, 1.0
"""Seconds between two reads of the store, after one that found rows, and after several that found none."""
_FAILED = 15.0
"""The most seconds between two reads of a store that fails."""
_HEARTBEAT = 15.0


class Live:
    """Answers with `rows` (a JSON list), `problem` and `alive` events.

    It polls the store, so the exchanges of all workers arrive, whichever process stored them. Events begin after the
    position in `Last-Event-ID` or in the query's `after`; without either, with the next exchange that is stored. Their
    ids are the positions that they reach, also of `alive`.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all responses."""
        self._stopping.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Send events until the client disconnects; to HEAD, none."""
        wanted = read_filter(request.query, ("after",))
        resumed = {"after": request.headers.get("Last-Event-ID") or request.query.get("after", "")}
        after = read_number(resumed, "after")
        if after is None:
            after = await self._reader.ask(lambda store: store.newest())
        await self._reader.ask(lambda store: store.newer(wanted, after, 1))  # a filter may be refused
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            if request.method != "HEAD":
                await self._send(response, wanted, after)
        return response

    async def _send(self, response: web.StreamResponse, wanted: Filter, after: int) -> None:
        pause, heard = _EARLIEST, time.monotonic()
        await response.write(event("alive", {}, after))
        while not self._stopping.is_set():
            try:
                rows, after = await self._reader.ask(lambda store, after=after: _read(store, wanted, after))  # type: ignore[misc]
            except GatewayError as error:
                pause = min(pause * 2, _FAILED)
                await response.write(event("problem", {"reason": error.reason, "seconds": pause}))
            else:
                pause = _EARLIEST if rows else min(pause * 1.5, _LATEST)
                if rows or time.monotonic() - heard > _HEARTBEAT:
                    heard = time.monotonic()
                    shown = [row_as_json(row) for row in rows]
                    await response.write(event("rows", shown, after) if rows else event("alive", {}, after))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)


def event(name: str, data: object, id: int | None = None) -> bytes:
    """Return a server-sent event. msgspec writes JSON in one line."""
    number = b"" if id is None else b"id: %d\n" % id
    return b"%bevent: %b\ndata: %b\n\n" % (number, name.encode(), msgspec.json.encode(data))


def _read(store: SqliteStore, wanted: Filter, after: int) -> tuple[list[Row], int]:
    """Return the next rows, and the position that they reach: what a filter passed over is not read again."""
    last = store.newest()
    if last < after:
        after = 0  # the store was replaced by an empty one, or the settings name another
    if last == after:
        return [], after
    rows = store.newer(wanted, after, _BATCH)
    if len(rows) == _BATCH:
        return rows, rows[-1].position
    return rows, max([after, last, *(row.position for row in rows)])


def row_as_json(row: Row) -> dict[str, Any]:
    """Return what the list shows of an exchange. `codes` are those of notices and problems."""
    record = row.record
    delivery, summary = record.delivery or Delivery(), record.summary or Summary()
    return {
        "position": row.position,
        "id": record.id,
        "started": record.started,
        "seconds": record.seconds,
        "method": record.method,
        "target": record.target,
        "intent": record.intent,
        "status": record.status,
        "agent": delivery.agent_name or record.agent_id,
        "agent_id": record.agent_id,
        "type": delivery.type,
        "provider": delivery.provider,
        "strategy": delivery.strategy,
        "codes": codes(record),
        "input_tokens": record.usage.input if record.usage else None,
        "output_tokens": record.usage.output if record.usage else None,
        "notices": list(delivery.notices),
        "problems": [problem.code for problem in record.error.problems] if record.error else [],
        "error": record.error.type if record.error else "",
        "cost": record.usage.cost if record.usage else None,
        "currency": record.usage.currency if record.usage else "",
        "session": record.conversation,
        "route": record.route,
        "cluster": record.cluster,
        "mirror_of": record.mirror_of,
        "question": summary.question,
        "answer": summary.answer,
        "image": summary.image,
        "media": summary.media,
    }


def codes(record: ExchangeRecord) -> list[str]:
    """Return the codes of an exchange's notices and problems, each once."""
    problems = record.error.problems if record.error else ()
    notices = record.delivery.notices if record.delivery else ()
    return list(dict.fromkeys([*notices, *(problem.code for problem in problems if problem.code)]))

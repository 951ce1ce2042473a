"""Each request of the table is refused, the connection closed, and the cluster gets none of it."""

from __future__ import annotations

import asyncio
import json

import pytest
from _pytest.mark import ParameterSet

from tests.conftest import StartGateway
from tests.proxy.use_case import UseCase
from tests.smuggling.endpoints import FEEDS, Witness, answers_in, converse
from tests.smuggling.table import HEADER_LINE, HEADERS, REFUSED, ROWS, SECTIONS, SOUND, Row
from tests.wire import PATIENCE, RecordingUpstream, send_request

FOLLOWER = b"GET /follower HTTP/1.1\r\nHost: x\r\n\r\n"
OVER = {"limits": {"header_line": HEADER_LINE, "headers": HEADERS}}


SOCKET_ROWS = {
    *(rows[0].id for rows in SECTIONS.values()),
    "bare LF everywhere",
    "the start of TLS",
    "bare LF at the end of the body",
}
"""Rows that every run sends over sockets: one a section, and some that are special. The others are `slow`: every run
reads them in memory (`tests/http1/test_parsers.py`)."""


def _params(rows: list[Row]) -> list[ParameterSet]:
    return [pytest.param(row, id=row.id, marks=() if row.id in SOCKET_ROWS else pytest.mark.slow) for row in rows]


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("row", _params(ROWS))
async def test_request_is_refused(row: Row, feed: str, start_gateway: StartGateway) -> None:
    witness = Witness()
    async with RecordingUpstream(script=witness) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), OVER)
        came, closed = await converse(gateway.data_port, row.raw + FOLLOWER, FEEDS[feed])
        if row.phase == "head":
            assert bytes(witness.seen) == b""
        elif witness.open:  # the head had gone on: the request must be cut, not ended
            await asyncio.wait_for(witness.idle.wait(), PATIENCE)
        assert witness.requests == []
        assert b"/follower" not in witness.seen
        assert closed, "the connection was left open"
        [answer] = await answers_in(came)
        status = int(answer.line.split()[1])
        assert status == row.status if row.status else status in REFUSED
        assert answer.values("connection") == [b"close"] or answer.line.startswith(b"HTTP/1.0 ")
        assert json.loads(answer.body)["status"] == status

        sound = await send_request(gateway.data_port, FOLLOWER)
        assert (sound.body, [request.line for request in witness.requests]) == (b"ok", [FOLLOWER.partition(b"\r")[0]])
        assert b"mlc_gateway_in_flight 0.0" in gateway.metrics.render().splitlines()


EXECUTE = b"POST /_plugins/_ml/agents/a/_execute HTTP"


@pytest.mark.parametrize("row", _params([row for row in ROWS if row.phase == "body"]))
async def test_nothing_of_a_malformed_execute_goes_on(row: Row, start_gateway: StartGateway) -> None:
    """The gateway reads the body of an execute first, so not even its head reaches the cluster."""
    witness, handler = Witness(), UseCase()
    async with RecordingUpstream(script=witness) as upstream:
        gateway = await start_gateway(upstream.url, handler, OVER)
        raw = row.raw.replace(b"POST /row HTTP", EXECUTE)
        came, closed = await converse(gateway.data_port, raw + FOLLOWER, FEEDS["whole"])
        [answer] = await answers_in(came)
        assert (bytes(witness.seen), handler.calls, closed) == (b"", [], True)
        assert int(answer.line.split()[1]) in REFUSED


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("raw", SOUND.values(), ids=SOUND)
async def test_sound_request_is_not_refused(raw: bytes, feed: str, start_gateway: StartGateway) -> None:
    """The table would hold, too, if all requests were refused."""
    witness = Witness()
    async with RecordingUpstream(script=witness) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), OVER)
        last = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        came, closed = await converse(gateway.data_port, raw + last, FEEDS[feed])
        assert closed
        assert [answer.body for answer in await answers_in(came)] == [b"ok", b"ok"]
        first = raw.lstrip().split(b"\r\n")[0]
        assert [request.line for request in witness.requests] == [first, b"GET /last HTTP/1.1"]

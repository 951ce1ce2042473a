"""Server-sent events of new exchanges."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientError, ClientResponse, ClientSession
from aiohttp.test_utils import TestServer

from gateway.admin.application import build_application
from gateway.config.schema import Secret
from gateway.inspector import access, live
from gateway.observe.logs import configure
from tests.inspector import exchanges
from tests.inspector.page_server import TOKEN, admin_pages
from tests.inspector.temporary_store import TemporaryRecords

LIVE = "/inspector/api/live"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store be read often."""
    monkeypatch.setattr(live, "_EARLIEST", 0.01)
    monkeypatch.setattr(live, "_LATEST", 0.02)


BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Events:
    """The events of a response."""

    def __init__(self, response: ClientResponse) -> None:
        self.last_id = -1
        self._lines = response.content

    async def next(self, name: str) -> Any:
        """Return the data of the next event of this name."""
        found = ""
        while True:
            line = (await self._lines.readline()).decode()
            assert line, "the response ended"
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "id":
                self.last_id = int(value)
            elif field == "event":
                found = value
            elif field == "data" and found == name:
                return json.loads(value)


@asynccontextmanager
async def listening(client: ClientSession, query: str = "", **headers: str) -> AsyncIterator[Events]:
    async with client.get(f"{LIVE}?{query}", headers=headers) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        events = Events(response)
        await events.next("alive")
        yield events


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


async def test_new_exchanges_come_and_old_ones_do_not(client: ClientSession, records: TemporaryRecords) -> None:
    records.add([exchanges.passed(1, 1.0)])
    async with listening(client) as events:
        records.add([exchanges.passed(2, 2.0), exchanges.passed(3, 3.0)])
        assert ids(await events.next("rows")) == ["passed-2", "passed-3"]
        records.add([exchanges.passed(4, 4.0)])
        assert ids(await events.next("rows")) == ["passed-4"]
        assert events.last_id == 4


async def test_only_what_matches_comes(client: ClientSession, records: TemporaryRecords) -> None:
    async with listening(client, "agent=museum-guide") as events:
        records.add([exchanges.passed(1, 1.0), exchanges.image_request(2), exchanges.legacy(3, 1.0)])
        assert ids(await events.next("rows")) == ["image-2"]
        assert events.last_id == 3  # what does not match need not be read again


async def test_a_connection_continues_where_the_last_one_ended(
    client: ClientSession, records: TemporaryRecords
) -> None:
    records.add([exchanges.passed(n, 1.0) for n in range(5)])
    async with listening(client, "after=4", **{"Last-Event-ID": "2"}) as events:
        assert ids(await events.next("rows")) == ["passed-2", "passed-3", "passed-4"]
    async with listening(client, "after=3") as events:
        assert ids(await events.next("rows")) == ["passed-3", "passed-4"]


@pytest.mark.parametrize("found", [0, 1])
async def test_nothing_is_left_out_between_the_list_and_its_live_continuation(
    client: ClientSession, records: TemporaryRecords, found: int
) -> None:
    records.add([*[exchanges.image_request(1)] * found, exchanges.passed(2, 1.0)])
    async with client.get("/inspector/api/exchanges?agent=museum-guide") as answer:
        page = await answer.json()
    assert (len(page["rows"]), page["newest"]) == (found, found + 1)
    records.add([exchanges.image_request(3)])  # after the list was read, before the live list begins
    async with listening(client, f"agent=museum-guide&after={page['newest']}") as events:
        assert ids(await events.next("rows")) == ["image-3"]


async def test_a_connection_that_had_no_exchange_yet_can_be_continued(
    client: ClientSession, records: TemporaryRecords
) -> None:
    records.add([exchanges.passed(1, 1.0)])
    async with listening(client) as events:
        reached = events.last_id
    records.add([exchanges.passed(2, 1.0)])
    async with listening(client, **{"Last-Event-ID": str(reached)}) as events:
        assert ids(await events.next("rows")) == ["passed-2"]


async def test_another_store_is_shown_from_its_beginning(records: TemporaryRecords) -> None:
    """As after a reload with another directory, or when the directory was deleted."""
    records.add([exchanges.passed(n, 1.0) for n in range(5)])
    pages, other = admin_pages(records), TemporaryRecords()
    async with (
        TestServer(build_application(pages, configure("critical", "json"))) as server,
        ClientSession(server.make_url("/"), headers=BEARER) as client,
    ):
        async with listening(client) as events:
            pages.inspector.store = other
            other.add([exchanges.passed(7, 1.0)])
            assert ids(await events.next("rows")) == ["passed-7"]
        pages.inspector.stop()


async def test_head_gets_no_events(server: TestServer) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    for path in (LIVE, "/inspector/export.har"):
        writer.write(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 401 Unauthorized\r\n")  # all that came after the last head
    writer.close()


async def test_many_exchanges_come_in_order(client: ClientSession, records: TemporaryRecords) -> None:
    records.add([exchanges.passed(n, 1.0) for n in range(500)])
    seen: list[str] = []
    async with listening(client, "after=0") as events:
        while len(seen) < 500:
            seen += ids(await events.next("rows"))
    assert seen == [f"passed-{n}" for n in range(500)]


async def test_a_store_that_fails_is_reported_and_tried_again(client: ClientSession, records: TemporaryRecords) -> None:
    async with listening(client) as events:
        records.fails = "The disk is full."
        assert (await events.next("problem"))["reason"] == "The disk is full."
        records.fails = ""
        records.add([exchanges.passed(1, 1.0)])
        assert ids(await events.next("rows")) == ["passed-1"]


async def test_a_filter_that_can_not_be_used_is_refused_at_once(client: ClientSession) -> None:
    for query in ("status=4zz", "agnet=a", "after=x"):
        async with client.get(f"{LIVE}?{query}") as response:
            assert response.status == 400


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_CHECKED_EVERY", 0.01)


@pytest.mark.usefixtures("_often")
async def test_a_logout_ends_the_live_list(browser: ClientSession) -> None:
    own = {"X-MLC-Inspector": "1", "Origin": str(browser._base_url).rstrip("/")}
    async with browser.get(LIVE) as response:
        await Events(response).next("alive")
        async with browser.post("/inspector/logout", headers=own) as answer:
            assert answer.status == 200
        with pytest.raises(ClientError):
            await response.read()


@pytest.mark.usefixtures("_often")
async def test_a_new_token_ends_the_live_list(records: TemporaryRecords) -> None:
    pages = admin_pages(records)
    async with (
        TestServer(build_application(pages, configure("critical", "json"))) as server,
        ClientSession(server.make_url("/"), headers=BEARER) as client,
        client.get(LIVE) as response,
    ):
        await Events(response).next("alive")
        pages.token = Secret("another")
        with pytest.raises(ClientError):
            await response.read()


async def test_all_connections_end_with_the_gateway(records: TemporaryRecords) -> None:
    pages = admin_pages(records)
    async with (
        TestServer(build_application(pages, configure("critical", "json"))) as server,
        ClientSession(server.make_url("/"), headers=BEARER) as client,
        client.get(LIVE) as response,
    ):
        pages.inspector.stop()
        assert b"alive" in await response.read()

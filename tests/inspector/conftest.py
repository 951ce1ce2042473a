"""An admin port in front of a store in memory, and a browser that has logged in there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from aiohttp import ClientSession, CookieJar
from aiohttp.test_utils import TestServer

from gateway.admin.application import build_application
from gateway.observe.logs import configure
from tests.inspector.page_server import TOKEN, admin_pages
from tests.inspector.temporary_store import TemporaryRecords


@pytest.fixture
def records() -> Iterator[TemporaryRecords]:
    records = TemporaryRecords()
    yield records
    records.close()


@pytest.fixture
async def server(records: TemporaryRecords) -> AsyncIterator[TestServer]:
    """The admin port, with a token."""
    pages = admin_pages(records)
    async with TestServer(build_application(pages, configure("critical", "json"))) as server:
        yield server
        pages.inspector.stop()


@pytest.fixture
async def client(server: TestServer) -> AsyncIterator[ClientSession]:
    """A program that sends the token."""
    async with ClientSession(server.make_url("/"), headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        yield session


@pytest.fixture
async def browser(server: TestServer) -> AsyncIterator[ClientSession]:
    """A client that keeps cookies, and has logged in."""
    async with ClientSession(server.make_url("/"), cookie_jar=CookieJar(unsafe=True)) as session:
        origin = {"Origin": str(server.make_url("/")).rstrip("/")}
        async with session.post(
            "/inspector/login", data={"token": TOKEN}, headers=origin, allow_redirects=False
        ) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/inspector/")
        yield session

"""A cluster on loopback that shows recorded documents, counts what it is asked and knows who may ask."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientSession, web
from aiohttp.test_utils import TestServer
from yarl import URL

from gateway.errors import UpstreamUnavailable
from tests.wire import reserved

from .recorded import recorded

ML = "/_plugins/_ml/"


class FakeCluster:
    """`documents` by raw path; `answers` (path → status, body) go before them; `denied` names callers by path."""

    def __init__(self, version: str) -> None:
        docs = recorded(version)
        self.documents: dict[str, Any] = {
            f"{ML}{kind}/{id_}": doc for kind in ("agents", "models", "connectors") for id_, doc in docs[kind].items()
        }
        self.documents["/"] = docs.get("root") or {"version": {"number": version, "distribution": "opensearch"}}
        self.answers: dict[str, tuple[int, Any]] = {}
        self.denied: dict[str, set[str]] = {}
        self.asked: Counter[str] = Counter()
        self.raw_paths: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.entered = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        path = request.raw_path.partition("?")[0]
        self.asked[path] += 1
        self.raw_paths.append(request.raw_path)
        self.headers.append(request.headers)
        document = self.documents.get(path)
        self.entered.set()
        await self.open.wait()
        if request.headers.get("authorization", "") in self.denied.get(path, ()):
            return web.json_response({"error": {"reason": "no permissions for [x]"}, "status": 403}, status=403)
        if path in self.answers:
            status, body = self.answers[path]
            return web.json_response(body, status=status)
        if document is None:
            return web.json_response({"error": {"reason": f"Failed to find {path}"}, "status": 404}, status=404)
        return web.json_response(document)


class HttpLookup:
    def __init__(self, session: ClientSession, base: URL) -> None:
        self.session = session
        self.base = base

    async def get_json(self, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        try:
            async with self.session.get(URL(f"{self.base}{path}", encoded=True), headers=headers) as response:
                is_json = response.content_type == "application/json"
                return response.status, await response.json() if is_json else None
        except ClientConnectionError as error:
            raise UpstreamUnavailable(str(error)) from error


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster("2.19.0")


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


@pytest.fixture
async def lookup(cluster: FakeCluster, session: ClientSession) -> AsyncIterator[HttpLookup]:
    app = web.Application()
    app.router.add_route("GET", "/{path:.*}", cluster.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        yield HttpLookup(session, URL(f"http://127.0.0.1:{server.port}"))
        cluster.open.set()


@pytest.fixture
def dead_lookup(session: ClientSession) -> Iterator[HttpLookup]:
    with reserved() as port:
        yield HttpLookup(session, URL(f"http://127.0.0.1:{port}"))

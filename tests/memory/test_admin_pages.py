"""The admin port's pages of sessions."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientPayloadError, ClientSession, web
from aiohttp.test_utils import TestServer
from yarl import URL

from gateway.admin.application import build_application
from gateway.app import supervisor as supervisor
from gateway.app.supervisor import SupervisorPages
from gateway.config.schema import Secret
from gateway.memory.model import Page, SessionKey
from gateway.memory.store import StoreUnavailable
from gateway.observe.logs import configure
from tests.conftest import StartGateway
from tests.memory.conversations import assistant, image, key, turn, user
from tests.memory.in_memory_store import InMemoryStore
from tests.memory.test_rest import WithSessions
from tests.proxy.use_case import UseCase
from tests.wire import PATIENCE, send_request

UPSTREAM = "http://127.0.0.1:9"
SESSIONS = "/memory/sessions"
BEARER = {"Authorization": "Bearer t0ken-of-the-tests"}
Ask = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
async def store() -> InMemoryStore:
    store = InMemoryStore()
    await store.append(key("one"), turn(user("Look:", image()), assistant("A dot."), system="Be brief."), 0)
    await store.append(key("one"), turn(), 1)
    await store.append(key("two", "other", "blue", "bob"), turn(), 0)
    return store


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Settings with a token for the admin port."""
    token = tmp_path / "token"
    token.write_text("t0ken-of-the-tests")
    return {"listen": {"admin_token": {"file": str(token)}}}


@pytest.fixture
async def client(
    start_gateway: StartGateway, store: InMemoryStore, settings: dict[str, Any]
) -> AsyncIterator[ClientSession]:
    """A client of the admin port of a gateway with `store`."""
    gateway = await start_gateway(UPSTREAM, WithSessions(store), settings)
    async with ClientSession(f"http://127.0.0.1:{gateway.admin_port}", headers=BEARER) as client:
        yield client


@pytest.fixture
def ask(client: ClientSession) -> Ask:
    async def send(method: str, path: str) -> tuple[int, Any]:
        async with client.request(method, SESSIONS + path) as response:
            return response.status, await response.json()

    return send


async def test_sessions_are_listed(ask: Ask) -> None:
    status, document = await ask("GET", "")
    assert status == 200
    assert document == {
        "sessions": [
            {
                "id": "gws-two",
                "agent_id": "other",
                "tenant": "blue",
                "caller": "bob",
                "turns": 1,
                "messages": 2,
                "created": "2025-06-15T15:06:42.000000Z",
                "updated": "2025-06-15T15:06:42.000000Z",
                "pinned": False,
                "system": "",
            },
            (await ask("GET", "/gws-one"))[1],
        ]
    }


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("?agent=agent", ["gws-one"]),
        ("?tenant=blue&caller=bob", ["gws-two"]),
        ("?agent=other&tenant=&caller=", []),
        ("?tenant=", ["gws-one"]),
    ],
)
async def test_sessions_of_an_owner(query: str, ids: list[str], ask: Ask) -> None:
    assert [one["id"] for one in (await ask("GET", query))[1]["sessions"]] == ids


@pytest.mark.parametrize(
    ("method", "path", "names"),
    [
        ("GET", "", "agent, tenant, caller, after, limit"),
        ("GET", "/gws-one", "agent, tenant, caller"),
        ("GET", "/gws-one/messages", "agent, tenant, caller, start, limit"),
        ("GET", "/gws-one/export", "agent, tenant, caller, format"),
        ("DELETE", "/gws-one", "agent, tenant, caller"),
        ("PUT", "/gws-one/pin", "agent, tenant, caller"),
        ("DELETE", "/gws-one/pin", "agent, tenant, caller"),
    ],
)
async def test_an_unknown_or_repeated_parameter_is_refused(
    method: str, path: str, names: str, ask: Ask, store: InMemoryStore
) -> None:
    status, document = await ask(method, f"{path}?agnet=other&agent=agent&agent=other")
    assert (status, document["error"]["problems"]) == (
        400,
        [
            {"field": "agnet", "reason": "there is no such parameter here", "expected": names},
            {"field": "agent", "reason": "this parameter is given more than once"},
        ],
    )
    assert await store.session(key("one")) is not None


async def test_pages_of_sessions(ask: Ask) -> None:
    _, first = await ask("GET", "?limit=1")
    _, second = await ask("GET", f"?limit=1&after={first['next']}")
    assert [one["id"] for page in (first, second) for one in page["sessions"]] == ["gws-two", "gws-one"]
    assert "next" not in second


async def test_messages_come_in_pages(ask: Ask) -> None:
    _, first = await ask("GET", "/gws-one/messages?limit=3")
    _, second = await ask("GET", "/gws-one/messages?limit=3&start=3")
    assert [one["seq"] for one in first["messages"]] == [0, 1, 2]
    assert first["messages"][0]["content"] == [{"text": "Look:"}, image()]
    assert (first["next"], [one["seq"] for one in second["messages"]], second.get("next")) == (3, [3], None)


async def test_a_page_of_messages_ends_after_16_mib(ask: Ask, store: InMemoryStore) -> None:
    await store.append(key("large"), turn(user("a"), *[user("x" * 9_000_000)] * 2, user("b")), 0)
    pages, start = [], 0
    while start is not None:
        _, page = await ask("GET", f"/gws-large/messages?start={start}")
        pages.append([one["seq"] for one in page["messages"]])
        start = page.get("next")
    assert pages == [[0, 1], [2, 3]]


async def test_export_as_json_lines(client: ClientSession) -> None:
    async with client.get(f"{SESSIONS}/gws-one/export") as response:
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    assert response.headers["Content-Disposition"] == 'attachment; filename="gws-one.jsonl"'
    assert lines[0]["session"]["system"] == "Be brief."
    assert [line["message"]["seq"] for line in lines[1:]] == [0, 1, 2, 3]


async def test_a_head_request_for_an_export_has_no_body(
    start_gateway: StartGateway, store: InMemoryStore, settings: dict[str, Any]
) -> None:
    gateway = await start_gateway(UPSTREAM, WithSessions(store), settings)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.admin_port)
    path = f"{SESSIONS}/gws-one/export"
    for method in ("HEAD", "GET"):
        close = "Connection: close\r\n" if method == "GET" else ""
        token = f"Authorization: {BEARER['Authorization']}\r\n"
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: a\r\n{token}{close}\r\n".encode())
    heads, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert heads.startswith(b"HTTP/1.1 200 OK")
    assert rest.startswith(b"HTTP/1.1 200 OK")


async def test_an_export_that_fails_midway_does_not_look_whole(client: ClientSession, store: InMemoryStore) -> None:
    await store.append(key("long"), turn(*[user("x")] * 150), 0)
    load = store.load

    async def fail_later(session_key: SessionKey, before: int, limit: int, most_bytes: int) -> Page:
        if before > 100:
            raise StoreUnavailable("the disk is gone")
        return await load(session_key, before, limit, most_bytes)

    store.load = fail_later  # type: ignore[assignment]

    async def read() -> bytes:
        async with client.get(f"{SESSIONS}/gws-long/export") as response:
            return await response.read()

    with pytest.raises((ClientPayloadError, ClientConnectionError)):
        await asyncio.wait_for(read(), PATIENCE)


async def test_export_as_files_of_strands(client: ClientSession) -> None:
    async with client.get(f"{SESSIONS}/gws-one/export?format=strands") as response:
        names = zipfile.ZipFile(io.BytesIO(await response.read())).namelist()
    assert response.content_type == "application/zip"
    assert sum("/messages/message_" in name for name in names) == 4
    assert any(name.endswith("session.json") for name in names)
    assert not any(name.startswith(".") for name in names)


async def test_pin_and_unpin(ask: Ask, store: InMemoryStore) -> None:
    assert (await ask("PUT", "/gws-one/pin"))[1]["pinned"] is True
    assert (await ask("DELETE", "/gws-one/pin"))[1]["pinned"] is False
    assert await store.session(key("one")) is not None


async def test_deletion(ask: Ask, store: InMemoryStore) -> None:
    assert await ask("DELETE", "/gws-one") == (200, {"status": "deleted"})
    assert await store.session(key("one")) is None
    status, document = await ask("DELETE", "/gws-one")
    assert (status, document["error"]["reason"]) == (404, "There is no session gws-one.")


@pytest.mark.parametrize(
    ("method", "path", "status", "type"),
    [
        ("GET", "/gws-nope", 404, "NotFound"),
        ("GET", "/gws-one?agent=other", 404, "NotFound"),
        ("GET", "/gws-nope/export?format=strands", 404, "NotFound"),
        ("PUT", "/gws-nope/pin", 404, "NotFound"),
        ("POST", "/gws-one", 405, "MethodNotAllowed"),
        ("GET", "/gws-one/nothing", 404, "NotFound"),
        ("GET", "?limit=x", 400, "ValidationException"),
        ("GET", "?limit=0", 400, "ValidationException"),
        ("GET", "?limit=1001", 400, "ValidationException"),
        ("GET", "/gws-one/messages?limit=0", 400, "ValidationException"),
        ("GET", "/gws-one/messages?limit=1001", 400, "ValidationException"),
        ("GET", "?after=x", 400, "ValidationException"),
        ("GET", "/gws-one/messages?start=-1", 400, "ValidationException"),
        ("GET", "/gws-one/export?format=xml", 400, "ValidationException"),
    ],
)
async def test_errors(method: str, path: str, status: int, type: str, ask: Ask) -> None:
    found, document = await ask(method, path)
    assert (found, document["error"]["type"]) == (status, type)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/messages"), ("GET", "/export?format=strands"), ("PUT", "/pin"), ("DELETE", "/pin")],
)
async def test_a_session_that_is_deleted_meanwhile_is_a_404(
    method: str, path: str, ask: Ask, store: InMemoryStore
) -> None:
    async def delete_first(name: str, *args: Any, **values: Any) -> Any:
        await store.delete(key("one"))
        return await getattr(InMemoryStore, name)(store, *args, **values)

    for name in ("load", "pin"):
        setattr(store, name, partial(delete_first, name))
    status, document = await ask(method, f"/gws-one{path}")
    assert (status, document["error"]["type"]) == (404, "NotFound")


async def test_an_id_of_several_owners_is_a_400(ask: Ask, store: InMemoryStore) -> None:
    await store.append(key("one", "other"), turn(), 0)
    assert (await ask("DELETE", "/gws-one"))[0] == 400
    assert (await ask("DELETE", "/gws-one?agent=other"))[0] == 200
    assert await store.session(key("one")) is not None


async def test_a_store_that_fails_is_a_503(ask: Ask, store: InMemoryStore) -> None:
    async def fail(*_: Any) -> None:
        raise StoreUnavailable("the disk is full")

    store.sessions = fail  # type: ignore[assignment]
    status, document = await ask("GET", "")
    assert (status, document["error"]["type"]) == (503, "MemoryUnavailable")


async def test_a_gateway_without_memory(start_gateway: StartGateway, settings: dict[str, Any]) -> None:
    gateway = await start_gateway(UPSTREAM, UseCase(), settings)
    url = f"http://127.0.0.1:{gateway.admin_port}{SESSIONS}"
    async with ClientSession() as client, client.get(url, headers=BEARER) as response:
        assert (response.status, (await response.json())["error"]["type"]) == (503, "MemoryUnavailable")


@pytest.mark.parametrize("token", [True, False], ids=["another token", "no token is configured"])
async def test_nobody_without_the_token_sees_a_session(
    token: bool, start_gateway: StartGateway, store: InMemoryStore, settings: dict[str, Any]
) -> None:
    gateway = await start_gateway(UPSTREAM, WithSessions(store), settings if token else None)
    async with ClientSession(f"http://127.0.0.1:{gateway.admin_port}", headers={"Authorization": "Bearer x"}) as client:
        for path in ("", "/gws-one", "/gws-one/messages", "/gws-one/export", "/gws-one/pin", "/%67ws-one"):
            for method in ("GET", "PUT", "DELETE", "HEAD"):
                async with client.request(method, URL(SESSIONS + path, encoded=True)) as response:
                    assert response.status == 401
        async with client.get(URL("/%6Demory/sessions", encoded=True)) as response:
            assert response.status == 401
    raw = b"GET /health/../memory/sessions HTTP/1.1\r\nHost: a\r\n\r\n"
    assert b"gws-one" not in (await send_request(gateway.admin_port, raw)).body
    assert await store.session(key("one")) is not None


@asynccontextmanager
async def workers(*servers: TestServer | None) -> AsyncIterator[ClientSession]:
    """A client of a supervisor's admin port. servers: of its workers; None: the worker is not running."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"

        def connect(number: int) -> ClientSession:
            server = servers[number]
            return ClientSession(nobody if server is None else server.make_url("/"))

        pages = SupervisorPages(len(servers), connect, Secret("t0ken-of-the-tests"))
        async with (
            TestServer(build_application(pages, configure("error", "json"))) as server,
            ClientSession(server.make_url("/"), headers=BEARER) as client,
        ):
            yield client


def worker(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> TestServer:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    return TestServer(application)


async def test_a_worker_that_runs_answers_for_all() -> None:
    asked: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.raw_path))
        return web.Response(status=201, body=b"body", headers={"Content-Type": "application/x-ndjson", "X-Own": "x"})

    path = f"{SESSIONS}/gws-a%2Fb/pin?agent=a%20b"
    async with (
        worker(answer) as one,
        workers(None, one, one) as client,
        client.put(URL(path, encoded=True)) as response,
    ):
        assert (response.status, await response.read()) == (201, b"body")
        assert (response.content_type, response.content_length) == ("application/x-ndjson", 4)
        assert "X-Own" not in response.headers
    assert asked == [("PUT", path)]


async def test_no_worker_runs() -> None:
    async with workers(None, None) as client, client.get(SESSIONS) as response:
        assert response.status == 503


async def test_a_request_that_takes_too_long_is_not_sent_to_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_RELAYED", 0.05)
    asked = []

    async def hang(request: web.Request) -> web.Response:
        asked.append(request.method)
        await asyncio.Event().wait()
        raise AssertionError

    async with worker(hang) as one, workers(one, one) as client, client.delete(f"{SESSIONS}/gws-one") as response:
        assert response.status == 504
    assert asked == ["DELETE"]


async def test_a_long_answer_of_a_worker_is_passed_on_as_it_comes() -> None:
    go_on, fail = asyncio.Event(), asyncio.Event()

    async def export(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await go_on.wait()
        await response.write(b"two")
        await fail.wait()
        assert request.transport is not None
        request.transport.abort()
        return response

    async with worker(export) as one, workers(one) as client, client.get(f"{SESSIONS}/gws-one/export") as response:
        assert await response.content.readexactly(3) == b"one"
        go_on.set()
        assert await response.content.readexactly(3) == b"two"
        fail.set()
        with pytest.raises((ClientPayloadError, ClientConnectionError)):
            await response.content.read()

"""The gateway as an aiohttp application: embedded in another one, and as the server of the data port."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient, AiohttpServer

from gateway import app as gateway_app
from gateway.app import RUNNER_OPTIONS, create_app
from gateway.config.load import ConfigError
from gateway.observe.logs import configure
from gateway.ports import Forward
from tests.conftest import StartGateway, settings_for
from tests.proxy.use_case import UseCase
from tests.wire import (
    OK,
    PATIENCE,
    Parsed,
    RecordingUpstream,
    read_message,
    refuses_connections,
    send_request,
    send_until_closed,
)

GET = b"GET /x HTTP/1.1\r\nHost: c\r\n\r\n"
EXECUTE = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\nHost: c\r\n"
PACKED = gzip.compress(b'{"a": 1}', mtime=0)

Client = TestClient[Any, Any]
Embed = Callable[..., Awaitable[Client]]


@pytest.fixture
async def upstream() -> AsyncIterator[RecordingUpstream]:
    async with RecordingUpstream() as cluster:
        yield cluster


@pytest.fixture
def embed(aiohttp_client: AiohttpClient, aiohttp_server: AiohttpServer, upstream: RecordingUpstream) -> Embed:
    """Serves `create_app`: ``await embed(change, use_case, auto_decompress)``. change: gets the application first."""

    async def serve(
        change: Callable[[web.Application], None] = lambda app: None,
        use_case: UseCase | None = None,
        auto_decompress: bool = False,
    ) -> Client:
        application = create_app(settings_for(upstream.url), use_case or UseCase(), configure("error", "json"))
        change(application)
        return await aiohttp_client(await aiohttp_server(application, auto_decompress=auto_decompress))

    return serve


# Embedded


async def _own(request: web.Request) -> web.Response:
    return web.Response(text=f"own {request.method}")


async def test_own_routes_win_and_everything_else_goes_to_the_cluster(
    embed: Embed, upstream: RecordingUpstream
) -> None:
    client = await embed(lambda app: app.router.add_get("/own", _own) and None)
    async with client.get("/own") as response:
        assert (response.status, await response.text()) == (200, "own GET")
        assert "Server" in response.headers
    async with client.get("/i%2Fj/_search?q=1") as response:
        assert (response.status, await response.text()) == (200, "ok")
        assert dict(response.headers) == {"Content-Length": "2"}
    async with client.post("/own", data=b"x") as response:  # the route is for GET
        assert await response.text() == "ok"
    lines = [request.line for request in upstream.requests]
    assert lines == [b"GET /i%2Fj/_search?q=1 HTTP/1.1", b"POST /own HTTP/1.1"]


async def test_own_middlewares_run_for_every_request(embed: Embed, upstream: RecordingUpstream) -> None:
    seen = []

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        seen.append(request.path)
        if "Authorization" not in request.headers:
            raise web.HTTPUnauthorized(text="who are you?")
        return await handler(request)

    client = await embed(lambda app: app.middlewares.insert(0, guard))
    async with client.get("/i") as response:
        assert (response.status, await response.text()) == (401, "who are you?")
    async with client.get("/i", headers={"Authorization": "Basic YTpi"}) as response:
        assert response.status == 200
    assert (seen, len(upstream.requests)) == (["/i", "/i"], 1)


async def test_signals_can_add_headers(embed: Embed) -> None:
    async def add(_: web.Request, response: web.StreamResponse) -> None:
        response.headers["X-Own"] = "1"

    client = await embed(lambda app: app.on_response_prepare.append(add))
    async with client.get("/i") as response:
        assert dict(response.headers) == {"Content-Length": "2", "X-Own": "1"}


async def test_nested_applications_see_the_path_as_it_came(
    aiohttp_client: AiohttpClient, upstream: RecordingUpstream
) -> None:
    outer = web.Application()
    outer.router.add_get("/", _own)
    outer.add_subapp("/_plugins", create_app(settings_for(upstream.url), UseCase(), configure("error", "json")))
    client = await aiohttp_client(outer)
    async with client.get("/_plugins/_ml/models/m") as response:
        assert await response.text() == "ok"
    async with client.get("/else") as response:
        assert response.status == 404
    assert [request.line for request in upstream.requests] == [b"GET /_plugins/_ml/models/m HTTP/1.1"]


async def test_bodies_that_aiohttp_decompresses_are_an_error_that_says_what_to_do(
    embed: Embed, upstream: RecordingUpstream
) -> None:
    client = await embed(auto_decompress=True)
    headers = {"Content-Encoding": "gzip"}
    async with client.post("/i/_doc", data=PACKED, headers=headers) as response:
        assert response.status == 500
        assert "auto_decompress=False" in (await response.json())["error"]["reason"]
    assert upstream.requests == []
    async with client.post("/i/_doc", data=b"plain") as response:
        assert response.status == 200


@pytest.mark.parametrize("body", [PACKED, b"no gzip"], ids=["gzip", "no gzip"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_compressed_bodies_are_relayed_unchanged(
    body: bytes, chunked: bool, embed: Embed, upstream: RecordingUpstream
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield body

    client = await embed()
    data: Any = pieces() if chunked else body
    async with client.post("/i/_doc", data=data, headers={"Content-Encoding": "gzip"}) as response:
        assert response.status == 200
    assert upstream.requests[0].body == body


async def test_the_use_case_decides_on_execute_requests(embed: Embed, upstream: RecordingUpstream) -> None:
    use_case = UseCase(Forward([b'{"b":2}'], {"X-MLC-Gateway-Delivery": "strategy=x"}))
    client = await embed(use_case=use_case)
    path = "/_plugins/_ml/agents/a/_execute"
    async with client.post(path, data=PACKED, headers={"Content-Encoding": "gzip"}) as response:
        assert response.headers["X-MLC-Gateway-Delivery"] == "strategy=x"
    assert (use_case.calls[0].body, upstream.requests[0].body) == (b'{"a": 1}', b'{"b":2}')


async def test_requests_in_flight_end_before_the_application_is_cleaned_up(upstream: RecordingUpstream) -> None:
    application = create_app(settings_for(upstream.url), UseCase(), configure("error", "json"))
    runner = web.AppRunner(application, **RUNNER_OPTIONS)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    assert (await send_request(port, GET)).body == b"ok"
    await runner.cleanup()
    with pytest.raises(ConnectionRefusedError):
        await send_request(port, GET)


async def test_settings_that_cannot_be_used_fail_at_startup(tmp_path: Any) -> None:
    settings = settings_for("https://localhost:1", {"upstream": {"tls": {"ca_file": str(tmp_path / "none.pem")}}})
    runner = web.AppRunner(create_app(settings, UseCase(), configure("error", "json")))
    with pytest.raises(ConfigError):
        await runner.setup()
    await runner.cleanup()


def test_the_names_to_import_are_in_app() -> None:
    assert gateway_app.create_app is create_app
    assert RUNNER_OPTIONS["auto_decompress"] is False
    assert RUNNER_OPTIONS["handler_cancellation"] is True


# As the server of the data port

Start = Callable[..., Awaitable[Any]]


@pytest.fixture
def start(start_gateway: StartGateway) -> Start:
    async def on_aiohttp(url: str, use_case: UseCase | None = None, **over: Any) -> Any:
        over["listen"] = {**over.get("listen", {}), "http": "aiohttp"}
        return await start_gateway(url, use_case or UseCase(), over)

    return on_aiohttp


@pytest.fixture(autouse=True)
def _nothing_unhandled(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Any:
    """No test here may end in an error that nothing handled."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert "internal error" not in capfd.readouterr().err


async def _hold(upstream: RecordingUpstream, reader: asyncio.StreamReader, arrived: asyncio.Event) -> None:
    await reader.readuntil(b"\r\n\r\n")
    arrived.set()
    await reader.read()
    upstream.gone.set()


@pytest.mark.parametrize("raw", [GET, EXECUTE + b"Content-Length: 2\r\n\r\n{}"], ids=["passthrough", "execute"])
async def test_a_client_that_leaves_ends_the_clusters_request(raw: bytes, start: Start) -> None:
    arrived = asyncio.Event()
    async with RecordingUpstream(script=lambda upstream, reader, _: _hold(upstream, reader, arrived)) as upstream:
        gateway = await start(upstream.url)
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(raw)
        await asyncio.wait_for(arrived.wait(), PATIENCE)
        writer.transport.abort()
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)
    assert b"mlc_gateway_in_flight 0.0" in gateway.metrics.render().splitlines()


async def test_a_client_that_leaves_in_mid_body_ends_the_clusters_request(start: Start) -> None:
    arrived = asyncio.Event()
    async with RecordingUpstream(script=lambda upstream, reader, _: _hold(upstream, reader, arrived)) as upstream:
        gateway = await start(upstream.url)
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(b"POST /i HTTP/1.1\r\nHost: c\r\nContent-Length: 9\r\n\r\nabc")
        await asyncio.wait_for(arrived.wait(), PATIENCE)
        writer.transport.abort()
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)


BROKEN = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_response_that_breaks_off_is_broken_for_the_client(name: str, version: str, start: Start) -> None:
    go_on = asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        head, _, body = BROKEN[name].partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n" + body[:6])
        await go_on.wait()
        writer.write(body[6:])

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start(upstream.url)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(f"GET / HTTP/{version}\r\nHost: c\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        go_on.set()
        with pytest.raises(ConnectionResetError):
            await _read_to_end(reader)
        writer.close()
        assert (await _status(gateway.data_port)) in (200, 502)


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    while await reader.read(100):
        pass


async def _status(port: int) -> int:
    """Show that the gateway goes on."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://127.0.0.1:{port}/") as response:
                return response.status
        except aiohttp.ClientError:
            return 502


async def test_an_error_before_the_head_has_the_gateways_shape(start: Start) -> None:
    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"nonsense\r\n\r\n")

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start(upstream.url)
        answer = await send_request(gateway.data_port, GET)
    assert (answer.line, json.loads(answer.body)["status"]) == (b"HTTP/1.1 502 Bad Gateway", 502)


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_a_body_over_the_limit_is_refused(chunked: bool, start: Start) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start(upstream.url, limits={"body": 1000})
        framing = b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" if chunked else b"Content-Length: 2000\r\n\r\n"
        answer = await send_request(gateway.data_port, EXECUTE + framing + b"x" * 2000)
    assert (answer.line.split()[1], answer.values("connection")) == (b"413", [b"close"])
    assert upstream.requests == []


async def test_an_early_response_ends_the_upload(start: Start) -> None:
    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start(upstream.url)
        answer = await send_request(gateway.data_port, b"POST /i HTTP/1.1\r\nHost: c\r\nContent-Length: 9\r\n\r\nabc")
    assert (answer.line, answer.values("connection")) == (b"HTTP/1.1 413 Too Large", [b"close"])


@pytest.mark.parametrize(
    ("version", "connection", "persistent"), [("1.1", "", True), ("1.1", "close", False), ("1.0", "", False),
                                        ("1.0", "keep-alive", True)]
)  # fmt: skip
async def test_connections_are_kept_as_the_client_says(
    version: str, connection: str, persistent: bool, start: Start
) -> None:
    line = f"Connection: {connection}\r\n" if connection else ""
    raw = f"GET / HTTP/{version}\r\nHost: c\r\n{line}\r\n".encode()
    async with RecordingUpstream() as upstream:
        gateway = await start(upstream.url)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(raw)
        first = await read_message(reader)
        writer.write(raw)
        assert (
            first.values("connection")
            == {"1.1": [] if persistent else [b"close"], "1.0": [b"keep-alive"] * persistent}[version]
        )
        if persistent:
            assert (await read_message(reader)).body == b"ok"
        else:
            assert await reader.read() == b""
        writer.close()


async def test_drain_tells_clients_to_close(start: Start) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start(upstream.url, listen={"drain_seconds": PATIENCE})
        assert (await send_request(gateway.data_port, GET)).values("connection") == []
        stopping = asyncio.create_task(gateway.stop())
        await asyncio.sleep(0)
        assert (await send_request(gateway.data_port, GET)).values("connection") == [b"close"]
        raw = GET.replace(b"1.1", b"1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")
        assert (await send_until_closed(gateway.data_port, raw)).endswith(b"ok")
        gateway.stop_now()
        await asyncio.wait_for(stopping, PATIENCE)


async def _in_flight(port: int, arrived: asyncio.Event) -> asyncio.Task[Parsed]:
    task = asyncio.create_task(send_request(port, GET))
    await asyncio.wait_for(arrived.wait(), PATIENCE)
    return task


async def test_stop_lets_requests_in_flight_finish(start: Start) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        arrived.set()
        await go_on.wait()
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start(upstream.url, listen={"shutdown_seconds": PATIENCE})
        answer = await _in_flight(gateway.data_port, arrived)
        stopping = asyncio.create_task(gateway.stop())
        await refuses_connections(gateway.data_port)
        assert not stopping.done()
        go_on.set()
        assert (await answer).body == b"ok"
        await asyncio.wait_for(stopping, PATIENCE)


@pytest.mark.parametrize("hurried", [False, True], ids=["late", "hurried"])
async def test_stop_cuts_what_takes_too_long(hurried: bool, start: Start) -> None:
    arrived = asyncio.Event()
    async with RecordingUpstream(script=lambda upstream, reader, _: _hold(upstream, reader, arrived)) as upstream:
        gateway = await start(upstream.url, listen={"shutdown_seconds": 100 if hurried else 0.3})
        answer = await _in_flight(gateway.data_port, arrived)
        stopping = asyncio.create_task(gateway.stop())
        if hurried:
            gateway.stop_now()
        await asyncio.wait_for(stopping, PATIENCE)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await answer
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)


async def test_a_request_on_its_way_on_an_idle_connection_is_served_while_stopping(start: Start) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start(upstream.url, listen={"shutdown_seconds": PATIENCE})
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(GET)
        await read_message(reader)
        stopping = asyncio.create_task(gateway.stop())
        await refuses_connections(gateway.data_port)
        writer.write(GET)
        assert (await read_message(reader)).values("connection") == [b"close"]
        writer.close()
        await asyncio.wait_for(stopping, PATIENCE)


async def test_reload_serves_the_next_request_by_the_new_settings(start: Start) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        arrived.set()
        await go_on.wait()
        writer.write(OK)

    new_answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew"
    async with RecordingUpstream(script=script) as old, RecordingUpstream([new_answer]) as new:
        gateway = await start(old.url)
        answer = await _in_flight(gateway.data_port, arrived)
        changed = settings_for(new.url, {"listen": {"http": "aiohttp"}})
        await gateway.reload(changed, configure("error", "json"))
        assert (await send_request(gateway.data_port, GET)).body == b"new"
        go_on.set()
        assert (await answer).body == b"ok"
        with pytest.raises(ConfigError, match=r"listen.http"):
            await gateway.reload(settings_for(new.url), configure("error", "json"))


async def test_no_limit_on_idle_connections(start: Start) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start(upstream.url, listen={"timeouts": {"keepalive": 0}})
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        for _ in range(2):
            writer.write(GET)
            assert (await read_message(reader)).body == b"ok"
            await asyncio.sleep(0.05)
        writer.close()


async def test_the_log_shows_nothing_of_a_malformed_request(
    start: Start, upstream: RecordingUpstream, capfd: pytest.CaptureFixture[str]
) -> None:
    gateway = await start(upstream.url)
    came = await send_until_closed(gateway.data_port, b"GET / HTTP/1.1\r\nHost: c\r\nAuthorization : secret\r\n\r\n")
    assert came.startswith(b"HTTP/1.0 400 ")
    assert "secret" not in capfd.readouterr().err

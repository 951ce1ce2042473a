"""Exchanges for other tools: from the admin port, and by the command line."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.cli import run, tail
from gateway.config.inspector import SqliteExchanges
from gateway.inspector.har_reader import read_har
from gateway.inspector.pages import InspectorPages
from gateway.observe.record import Body, HttpMessage
from gateway.observe.secrets import marker
from gateway.recording.records import summarized
from gateway.recording.sinks.sqlite import SqliteStore
from tests.recording.records import RECORD, get, record
from tests.recording.test_bodies import PNG
from tests.wire import reserved

IMAGE = b"an image"
HASH = hashlib.sha256(IMAGE).hexdigest()
MARK = f"[MEDIA type=image/png length=8 sha256={HASH}]"
WITH_IMAGE = record(id="image", request=HttpMessage((("Host", "h"),), Body(9, f'{{"data": "{MARK}"}}')))
RECORDS = [RECORD, get("/one", id="one"), get("/two", id="two", status=404), WITH_IMAGE]


def _fill(directory: Path) -> SqliteStore:
    store = SqliteStore(SqliteExchanges(str(directory)))
    store.keep_medium(HASH, "image/png", IMAGE)
    store.add(RECORDS)
    return store


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TestClient[Any, Any]]:
    store = _fill(tmp_path)
    pages = InspectorPages(store)
    application = web.Application()
    application.router.add_routes(pages.routes())
    async with TestClient(TestServer(application)) as client:
        yield client
        pages.stop()
    store.close()


async def test_the_page_gives_a_har_file(client: TestClient[Any, Any]) -> None:
    response = await client.get("/inspector/export.har?status=404")
    assert response.headers["Content-Disposition"] == 'attachment; filename="exchanges.har"'
    assert [one.id for one in read_har(await response.read())] == ["two"]
    response = await client.get("/inspector/export.har")
    assert read_har(await response.read()) == RECORDS


@pytest.mark.parametrize(
    ("name", "part"),
    [("curl", "curl --globoff"), ("python", "import requests"), ("pytest", "def test_exchange_image()")],
)
async def test_the_page_gives_an_exchange_to_run(client: TestClient[Any, Any], name: str, part: str) -> None:
    response = await client.get(f"/inspector/exchanges/image/{name}")
    text = await response.text()
    assert (response.status, response.content_type) == (200, "text/plain")
    assert part in text
    assert "YW4gaW1hZ2U=" in text


# The commands


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "gateway.yaml"
    directory = tmp_path / "exchanges"
    file.write_text(json.dumps({"inspector": {"enabled": True, "sqlite": {"directory": str(directory)}}}))
    return str(file)


def test_nothing_is_exported_by_a_wrong_filter(config: str, capfd: Any) -> None:
    assert run(["har", "export", "-c", config, "--status", "abc"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("mlc-gateway har export: --status: 'abc' is neither")


def test_errors_are_in_words(config: str, capfd: Any) -> None:
    with reserved() as port:
        address, why = f"http://127.0.0.1:{port}", "connection refused. Is it the admin port?\n"
        for command, message in (
            (["har", "import", "-c", config, "no.har"], "no.har can't be read: No such file or directory\n"),
            (["replay", "no.har", "--to", address], "no.har can't be read: No such file or directory\n"),
            (
                ["tail", "--gateway", address],
                f"{address} can't be reached: {why}",
            ),
            (["tail", "--gateway", "a:9601"], "'a:9601' is not an address such as http://127.0.0.1:9200.\n"),
        ):
            assert run(command) == 2
            assert capfd.readouterr().err.endswith(f": {message}")


def test_exchanges_are_exported_and_imported(config: str, tmp_path: Path, capfdbinary: Any) -> None:
    _fill(tmp_path / "exchanges").close()
    assert run(["har", "export", "-c", config, "--media", "--path", "_execute"]) == 0
    exported = capfdbinary.readouterr().out
    image, plain = sorted(read_har(exported), key=lambda one: one.id, reverse=True)
    assert plain == RECORD
    assert image.request.body.text == '{"data": "YW4gaW1hZ2U="}'
    file = tmp_path / "x.har"
    file.write_bytes(exported)
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps({"inspector": {"enabled": True, "sqlite": {"directory": str(tmp_path / "other")}}}))
    old = b"2 of them are older than inspector.sqlite.seconds, so a gateway that runs may soon delete them"
    imported = b"2 exchanges imported\n" + old + b". To keep them, set it to 0\n"
    for report in (imported, b"0 exchanges imported; 2 were there already\n"):
        assert run(["har", "import", "-c", str(other), str(file)]) == 0
        assert capfdbinary.readouterr().err == report
    assert run(["har", "export", "-c", str(other)]) == 0
    assert read_har(capfdbinary.readouterr().out) == [summarized(one) for one in read_har(exported)]


def test_secrets_of_the_gateway_are_not_needed(config: str, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = json.loads(Path(config).read_text())
    listen = {"admin_host": "0.0.0.0", "admin_token": {"env": "ADMIN_TOKEN"}}
    Path(config).write_text(json.dumps({**settings, "listen": listen}))
    monkeypatch.delenv("ADMIN_TOKEN", raising=False)
    assert run(["har", "export", "-c", config]) == 0
    settings["inspector"]["opensearch"] = {"password": {"env": "NOT_SET"}}
    Path(config).write_text(json.dumps(settings))
    assert run(["har", "export", "-c", config]) == 2
    assert "inspector.opensearch.password: the environment variable NOT_SET is not set" in capfd.readouterr().err


def test_imported_exchanges_are_redacted(config: str, tmp_path: Path, capfdbinary: Any) -> None:
    request = {
        "method": "POST",
        "url": "https://u:hunter21@host/a?api_key=hunter22",
        "headers": [{"name": "Authorization", "value": "Basic dTpodW50ZXIyMw=="}, {"name": "A", "value": "hunter22"}],
        "cookies": [{"name": "a", "value": "hunter24"}],
        "postData": {"mimeType": "application/json", "text": json.dumps({"password": "hunter25", "data": PNG})},
    }
    content = {"size": 2, "mimeType": "text/plain", "text": "bm8gaHVudGVyMjU=", "encoding": "base64"}
    response = {"status": 200, "headers": [{"name": "Set-Cookie", "value": "a=hunter26"}], "content": content}
    entry = {"startedDateTime": "2026-01-01T00:00:00Z", "time": 1, "request": request, "response": response}
    file = tmp_path / "x.har"
    file.write_text(json.dumps({"log": {"version": "1.2", "entries": [entry]}}))
    assert run(["har", "import", "-c", config, str(file)]) == 0
    assert run(["har", "export", "-c", config]) == 0
    exported = capfdbinary.readouterr().out
    [found] = read_har(exported)
    assert b"hunter2" not in exported
    assert PNG[:80].encode() not in exported
    assert dict(found.request.headers)["Authorization"] == f"Basic {marker('dTpodW50ZXIyMw==')}"
    assert json.loads(found.request.body.text or "")["password"] == marker("hunter25")
    assert found.response is not None
    assert found.response.body.text == f"no {marker('hunter25')}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["har", "export", "--status", "odd"], "har export: --status: "),
        (["har", "import", "missing.har"], "missing.har"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "-c", config]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("settings", ["{}", "inspector: {enabled: true, stores: [audit_file]}"])
def test_settings_that_record_nothing(settings: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(settings)
    assert run(["har", "export", "-c", str(file)]) == 2
    assert "set inspector.enabled to true, with sqlite in inspector.stores" in capsys.readouterr().err


# tail


class Lines:
    """Standard output, line by line."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    def write(self, text: str) -> None:
        for line in text.splitlines():
            self.lines.put_nowait(line)

    def flush(self) -> None:
        pass


async def _tail(url: str, count: int, **wanted: str) -> list[dict[str, Any]]:
    """Follow until so many lines were printed, and return them."""
    output = Lines()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", output)
        following = asyncio.create_task(tail._follow(url.rstrip("/"), wanted, as_json=True))
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            line = asyncio.create_task(output.lines.get())
            await asyncio.wait((following, line), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            rows.append(json.loads(await line))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return rows


async def test_tail_prints_what_is_stored_from_now_on(tmp_path: Path) -> None:
    store = _fill(tmp_path)
    pages = InspectorPages(store)
    application = web.Application()
    application.router.add_routes(pages.routes())
    connected = asyncio.Event()

    async def note(*_: Any) -> None:
        connected.set()

    application.on_response_prepare.append(note)
    async with TestServer(application) as server:
        following = asyncio.create_task(_tail(str(server.make_url("")), 2, status="2xx"))
        await connected.wait()
        new = [get(f"/new/{number}", id=f"new{number}", status=status) for number, status in enumerate((200, 404, 201))]
        await asyncio.to_thread(store.add, new)
        try:
            rows = await following
        finally:
            pages.stop()
    store.close()
    assert [row["target"] for row in rows] == ["/new/0", "/new/2"]


Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _server(respond: Respond) -> TestServer:
    application = web.Application()
    application.router.add_get("/inspector/api/live", respond)
    server = TestServer(application)
    await server.start_server()
    return server


async def test_tail_goes_on_after_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_RETRY", (0.0,))
    seen: list[str | None] = []

    async def respond(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Last-Event-ID"))
        if len(seen) == 2:
            return web.json_response({"status": "no worker answers"}, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        row = {"n": len(seen)}
        await response.write(b"id: %d\nevent: rows\ndata: %b\n\n" % (len(seen) * 7, json.dumps([row]).encode()))
        return response

    server = await _server(respond)
    rows = await _tail(str(server.make_url("")).rstrip("/"), 3)
    await server.close()
    assert [row["n"] for row in rows][:3] == [1, 3, 4]
    assert seen[:4] == [None, "7", "7", "21"]


async def test_tail_says_why_the_gateway_refuses() -> None:
    async def respond(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"reason": "Exchanges are not recorded.", "help": "Set it."}}, status=503)

    server = await _server(respond)
    with pytest.raises(tail.CanNotFollow, match=r"Exchanges are not recorded. Set it."):
        await tail._follow(str(server.make_url("")).rstrip("/"), {}, as_json=True)
    await server.close()
    with pytest.raises(tail.CanNotFollow, match="can't be reached"):
        await tail._follow("http://127.0.0.1:1", {}, as_json=True)

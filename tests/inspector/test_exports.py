"""Exchanges for other tools: from the admin port, and by the command line."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.cli import run, tail
from gateway.config.inspector import SqliteExchanges
from gateway.inspector.exports import as_curl, as_pytest, as_python
from gateway.inspector.har import read_har, text_body
from gateway.inspector.pages import InspectorPages
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from gateway.observe.secrets import marker
from gateway.recording.records import summarized
from gateway.recording.sinks.sqlite import SqliteStore
from tests.http_thread import Handler, HttpThread
from tests.recording.records import RECORD, get, record
from tests.recording.test_records import PNG
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


SNIPPETS_IMAGE = b"\x89PNG not really"


def medium(sha256: str) -> tuple[str, bytes] | None:
    return ("image/png", SNIPPETS_IMAGE) if sha256 == HASH else None


def _sending(body: Body, *headers: tuple[str, str], **values: Any) -> ExchangeRecord:
    pairs = (("Host", "127.0.0.1:9200"), ("Content-Type", "application/json"), *headers)
    return record(**{"request": HttpMessage(pairs, body), **values})


HOSTILE = '{"input": "it\'s $HOME `id` \\\\ \\" é \\n"}'
CASES = [
    RECORD,
    _sending(Body(1, HOSTILE), ("X-Odd", "$(id) `id` 'x' \"y\" \\")),
    _sending(Body(1, '{"input": "' + "x" * 200_000 + '"}')),
    _sending(text_body(bytes(range(256)), 256)),
    _sending(Body(1, '[{"image": {"bytes": "[MEDIA type=image/png length=15 sha256=' + HASH + ']"}}]')),
    _sending(Body(), method="DELETE", target="/a%20b/'c'?q=$x&y=1"),
    _sending(Body(2, "{}"), ("Authorization", "[REDACTED length=9 sha256=abcdefabcdef]")),
]


class Upstream:
    """What a server received, and what it answers."""

    url = ""
    answer = b'{"answer": 1}'

    def __init__(self) -> None:
        self.received: list[tuple[str, str, dict[str, str], bytes]] = []


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    state = Upstream()

    class Recorder(Handler):
        def _handle(self) -> None:
            state.received.append((self.command, self.path, dict(self.headers.items()), self.read_body()))
            self.send(200, state.answer)

        do_GET = do_POST = do_DELETE = _handle

    with HttpThread(Recorder) as server:
        state.url = server.url
        yield state


def _expected_body(exchange: ExchangeRecord) -> bytes:
    body = exchange.request.body
    if body.encoding:
        return bytes(range(256))
    mark = f"[MEDIA type=image/png length=15 sha256={HASH}]"
    return (body.text or "").replace(mark, b64encode(SNIPPETS_IMAGE).decode()).encode()


_CURL = """#!{python}
import json, sys
data = sys.stdin.buffer.read() if "@-" in sys.argv else b""
with open({path!r}, "w") as file:
    json.dump([sys.argv[1:], data.hex()], file)
"""


@pytest.mark.parametrize("exchange", CASES)
def test_the_shell_gives_curl_exactly_the_request(exchange: ExchangeRecord, tmp_path: Path) -> None:
    curl, seen = tmp_path / "curl", tmp_path / "seen"
    curl.write_text(_CURL.format(python=sys.executable, path=str(seen)))
    curl.chmod(curl.stat().st_mode | stat.S_IXUSR)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "MLC_AUTHORIZATION": "Basic x y"}
    subprocess.run(["sh", "-eu"], input=as_curl(exchange, medium), env=environ, text=True, check=True)
    arguments, data = json.loads(seen.read_text())
    raw = arguments[arguments.index("--data-raw") + 1].encode() if "--data-raw" in arguments else b""
    body = bytes.fromhex(data) if "@-" in arguments else raw
    assert body == _expected_body(exchange)
    assert arguments[arguments.index("--request") + 1] == exchange.method
    assert f"http://127.0.0.1:9200{exchange.target}" in arguments
    headers = [arguments[index + 1] for index, one in enumerate(arguments) if one == "--header"]
    wanted = [f"{name}: {value}" for name, value in exchange.request.headers if name != "Host"]
    assert headers == [one.replace("[REDACTED length=9 sha256=abcdefabcdef]", "Basic x y") for one in wanted]


def test_curl_does_not_wait_for_the_body_of_an_answer_to_head() -> None:
    assert (
        as_curl(get("/index", method="HEAD"), medium)
        == "curl --globoff --path-as-is --head http://127.0.0.1:9200/index\n"
    )


@pytest.mark.parametrize("write", [as_curl, as_python, as_pytest])
def test_what_came_over_tls_is_sent_over_tls(write: Callable[[ExchangeRecord, Any], str]) -> None:
    assert "https://127.0.0.1:9200" in write(_sending(Body(), scheme="https"), medium)
    assert "https://127.0.0.1:9200" in write(record(request=HttpMessage(), scheme="https"), medium)


def test_a_header_name_can_not_run_commands() -> None:
    name = "`id`-$(id)-'token"
    text = as_curl(_sending(Body(), (name, "[REDACTED length=1 sha256=aaaaaaaaaaaa]")), medium)
    (variable,) = re.findall(r"\$(MLC_\w+)", text)
    script = f"curl() {{ printf '%s\\n' \"$@\"; }}; {variable}=v\n{text}"
    shown = subprocess.run(["sh", "-u"], input=script, text=True, capture_output=True, check=True)
    assert f"{name}: v" in shown.stdout.splitlines()


@pytest.mark.parametrize("exchange", CASES)
def test_the_script_sends_the_request(
    exchange: ExchangeRecord, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_AUTHORIZATION", "Basic x y")
    script = as_python(exchange, medium).replace("127.0.0.1:9200", upstream.url.removeprefix("http://"))
    exec(compile(script, "script", "exec"), {"print": lambda _: None})
    ((method, path, headers, body),) = upstream.received
    expected = _expected_body(exchange)
    assert (method, path) == (exchange.method, exchange.target)
    same = body == expected or json.loads(body) == json.loads(expected)
    assert same
    assert headers["Content-Type"] == "application/json"
    if any(name == "Authorization" for name, _ in exchange.request.headers):
        assert headers["Authorization"] == "Basic x y"


def _run_pytest(text: str, tmp_path: Path, url: str) -> str:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(file)]
    environ = {**os.environ, "MLC_URL": url}
    return subprocess.run(command, env=environ, cwd=tmp_path, text=True, capture_output=True, check=False).stdout


@pytest.mark.slow
def test_the_test_passes_and_fails(upstream: Upstream, tmp_path: Path) -> None:
    answer = Body(1, '{"answer": 1, "outputs": [{"name": "memory_id", "result": "old"}], "memory_id": "old"}')
    text = as_pytest(record(response=HttpMessage((), answer)), medium)
    upstream.answer = b'{"answer": 1, "outputs": [{"name": "memory_id", "result": "new"}], "memory_id": "new"}'
    assert "1 passed" in _run_pytest(text, tmp_path, upstream.url)
    upstream.answer = b'{"answer": 2, "outputs": []}'
    assert "1 failed" in _run_pytest(text, tmp_path, upstream.url)


@pytest.mark.slow
def test_a_request_that_is_not_whole_says_why(tmp_path: Path) -> None:
    lost = _sending(Body(1, '{"image": "[MEDIA type=image/png length=15 sha256=' + "0" * 64 + ']"}'))
    reason = "1 media are missing: `inspector.media: keep` keeps them"
    assert f"# {reason}" in as_curl(lost, medium)
    assert f"# {reason}" in as_python(lost, medium)
    assert "1 skipped" in _run_pytest(as_pytest(lost, medium), tmp_path, "")
    secret = _sending(Body(1, '{"password": "[REDACTED length=3 sha256=abcdefabcdef]"}'))
    assert "# Secrets in the request were redacted" in as_curl(secret, medium)
    absent = _sending(Body(9))
    assert "# The body of the request was not recorded" in as_python(absent, medium)

"""Recorded requests are sent again as they were, in their order, and responses are compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.cli import run
from gateway.inspector.har import write_har
from gateway.inspector.replay import Difference, Options, Result, differences, replay
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from tests.http_thread import Handler, HttpThread
from tests.recording.records import get, record

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Target:
    """A server that notes what it receives. respond: what it answers; by default ``{}``."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, dict[str, str], bytes]] = []
        self.running = self.most = 0
        self.respond: Respond = self._empty
        self.url = ""

    async def _empty(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        self.most = max(self.most, self.running)
        self.received.append((request.method, request.raw_path, dict(request.headers), await request.read()))
        try:
            return await self.respond(request)
        finally:
            self.running -= 1


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    state = Target()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", state.handle)
    async with TestServer(application) as server:
        state.url = str(server.make_url("")).rstrip("/")
        yield state


async def _replay(records: list[ExchangeRecord], options: Options) -> list[Result]:
    return [result async for result in replay(records, options, lambda _: None)]


async def test_requests_are_sent_as_they_were(target: Target) -> None:
    sent = record(
        intent="write",
        target="/a%20b/%2f?q=%41&x",
        request=HttpMessage(
            (("Host", "old"), ("X-Mine", "1"), ("Content-Length", "9"), ("Content-Encoding", "gzip"), ("TE", "x")),
            Body(9, '{"é": 1}'),
        ),
    )
    (result,) = await _replay([sent], Options(target.url))
    ((method, path, headers, body),) = target.received
    assert (method, path, body) == ("POST", "/a%20b/%2f?q=%41&x", '{"é": 1}'.encode())
    assert {name: value for name, value in headers.items() if name not in ("Host", "Content-Length")} == {"X-Mine": "1"}
    assert (result.status, result.failed, result.skipped) == (200, "", "")


async def test_cookies_of_answers_are_not_sent(target: Target) -> None:
    async def set_cookie(_: web.Request) -> web.StreamResponse:
        return web.json_response({}, headers={"Set-Cookie": "a=b"})

    target.respond = set_cookie
    await _replay(
        [get("/1", started=1.0), get("/2", started=2.0)], Options(target.url.replace("127.0.0.1", "localhost"))
    )
    assert [headers.get("Cookie") for _, _, headers, _ in target.received] == [None, None]


async def test_agents_run_only_if_that_is_allowed(target: Target) -> None:
    records = [record(id=intent, intent=intent) for intent in ("execute", "execute_stream", "quick_execute", "write")]
    results = await _replay(records, Options(target.url))
    assert sorted(one.id for one in results if one.skipped) == ["execute", "execute_stream", "quick_execute"]
    assert len(target.received) == 1
    results = await _replay(records, Options(target.url, allow_execute=True))
    assert not any(one.skipped for one in results)


async def test_a_connection_keeps_its_order(target: Target) -> None:
    both = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        if target.running == 2:
            both.set()
        await both.wait()
        for _ in range(5):
            await asyncio.sleep(0)  # others may overtake
        return web.json_response({})

    target.respond = slowly
    records = [get(f"/{connection}/{n}", connection=connection, started=n) for n in range(20) for connection in (1, 2)]
    assert len(await _replay(records, Options(target.url))) == 40
    for connection in (1, 2):
        paths = [path for _, path, _, _ in target.received if path.startswith(f"/{connection}/")]
        assert paths == [f"/{connection}/{n}" for n in range(20)]
    assert target.most == 2


async def test_so_many_requests_at_a_time(target: Target) -> None:
    both = asyncio.Event()

    async def wait_for_two(_: web.Request) -> web.StreamResponse:
        if target.running == 2:
            both.set()
        await both.wait()
        return web.json_response({})

    target.respond = wait_for_two
    await _replay([get("/", connection=n) for n in range(6)], Options(target.url, connections=2))
    assert target.most == 2


async def test_differences_and_failures(target: Target) -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        if request.path == "/cut":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"a": 2}, headers={"Server": "x", "Date": "y"}, status=201)

    target.respond = respond
    records = [get("/a", '{"a": 1}', status=201), get("/cut", connection=9)]
    results = await _replay(records, Options(target.url, ignored=["headers.*"]))
    by_target = {one.target: one for one in results}
    assert by_target["/a"].differences == (Difference("body.a", 1, 2),)
    assert by_target["/cut"].failed.startswith("ServerDisconnectedError")


async def test_added_headers_replace_recorded_ones(target: Target) -> None:
    sent = get("/", request=HttpMessage((("authorization", "old"), ("X-A", "1"))))
    await _replay([sent], Options(target.url, headers={"Authorization": "new"}))
    headers = target.received[0][2]
    assert (headers["Authorization"], headers["X-A"]) == ("new", "1")


# The command


def _file(tmp_path: Path, *records: ExchangeRecord) -> str:
    file = tmp_path / "traffic.har"
    file.write_bytes(b"".join(write_har(records)))
    return str(file)


class Fixed(Handler):
    def do_GET(self) -> None:
        self.send(200, b'{"a": 1, "path": "%s"}' % self.path.encode())

    do_POST = do_GET


def _run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any]:
    code = run(["replay", *argv])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(tmp_path, get("/x", '{"a": 1, "path": "/x"}'), record())
    with HttpThread(Fixed) as server:
        code, report = _run(capsys, file, "--to", server.url, "--compare", "--ignore", "headers.*")
        assert code == 0
        counts = {name: report["summary"][name] for name in ("requests", "sent", "skipped", "failed", "different")}
        assert counts == {"requests": 2, "sent": 1, "skipped": 1, "failed": 0, "different": 0}
        code, report = _run(capsys, _file(tmp_path, get("/x", '{"a": 2}')), "--to", server.url, "--compare")
        assert code == 1
        fields = [row["field"] for row in report["requests"][0]["differences"]]
        assert {"body.a", "body.path"} <= set(fields)
        assert run(["replay", _file(tmp_path, get("/x", '{"a": 2}')), "--to", server.url]) == 0


def test_a_dry_run_sends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = _run(capsys, _file(tmp_path, get("/x"), record()), "--to", "http://127.0.0.1:1", "--dry-run")
    assert (code, report["summary"]["would be sent"], report["summary"]["skipped"]) == (0, 1, 1)


def test_a_server_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = _run(capsys, _file(tmp_path, get("/x")), "--to", "http://127.0.0.1:1")
    assert (code, report["summary"]["failed"]) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "127.0.0.1:9200"], "is not an address such as"),
        (["--to", "http://x?y"], "is not an address such as"),
        (["--to", "http://x", "--header", "a"], "is not NAME:VALUE"),
        (["--to", "http://x", "--rate", "0"], "0"),
    ],
)
def test_wrong_options(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", _file(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_har(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.har"
    file.write_text("{}")
    assert run(["replay", str(file), "--to", "http://x"]) == 2
    assert "log must be an object. Is the file a HAR 1.2?" in capsys.readouterr().err


def _json(value: Any, **headers: str) -> HttpMessage:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return HttpMessage(tuple((name.replace("_", "-"), item) for name, item in headers.items()), Body(1, text))


@pytest.mark.parametrize(
    ("expected", "actual", "found"),
    [
        ({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1.0}, []),
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "y"}]}, [Difference("body.a[1].b", "x", "y")]),
        ({"a": 1}, {"b": 1}, [Difference("body.a", 1, None), Difference("body.b", None, 1)]),
        ([1], [1, 2], [Difference("body[1]", None, 2)]),
        ({"a": 1}, {"a": True}, [Difference("body.a", 1, True)]),
        ({"a": None}, {}, [Difference("body.a", None, None)]),
        ("text", "other", [Difference("body", "text", "other")]),
        ({"took": 1, "a": 2}, {"took": 3, "a": 2}, []),
        ({"memory_id": "a", "task_id": "b"}, {"memory_id": "c", "task_id": "d"}, []),
        ([{"name": "memory_id", "result": "a"}], [{"name": "memory_id", "result": "b"}], []),
        ([{"name": "a", "result": 1}], [{"name": "a", "result": 2}], [Difference("body[0].result", 1, 2)]),
    ],
)
def test_bodies(expected: Any, actual: Any, found: list[Difference]) -> None:
    assert differences(200, _json(expected), 200, _json(actual)) == found


def test_status_and_headers() -> None:
    before, after = _json({}, Server="a", Date="b", X_Y="1"), _json({}, server="a", date="c", X_Z="1")
    assert differences(200, before, 404, after) == [
        Difference("status", 200, 404),
        Difference("headers.x-y", "1", None),
        Difference("headers.x-z", None, "1"),
    ]
    assert differences(200, before, 404, after, ["headers.*", "status"]) == []


@pytest.mark.parametrize("name", ["X-Request-Id", "X-Opaque-Id", "X-MLC-Gateway-Delivery", "Date"])
def test_what_differs_in_any_two_responses_is_not_compared(name: str) -> None:
    refusal = {"error": {"type": "ValidationException"}, "status": 400}
    assert differences(400, _json(refusal, **{name: "a"}), 400, _json(refusal, **{name: "b"})) == []


def test_what_was_not_recorded_is_not_compared() -> None:
    assert differences(200, None, 200, _json({})) == []
    assert differences(200, HttpMessage((), Body(9)), 200, _json({})) == []
    assert differences(200, HttpMessage((), Body(9, '{"a', omitted="It is cut.")), 200, _json({})) == []


def test_long_values_are_cut() -> None:
    (found,) = differences(200, _json("x" * 1000), 200, _json("y"))
    assert found.expected.endswith("… (1000 characters)")
    assert len(found.expected) < 300

"""The adapters' port: who may use it, keys, clients that leave, streams that break, reload."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import openai
import pytest
from aiohttp.test_utils import TestServer

from gateway.adapters.requests import COMMENT
from gateway.adapters.run import AgentRun
from gateway.config.load import ConfigError
from gateway.execute.run_events import RunEvent, TextDelta
from tests.adapters.conftest import ANSWER, Deploy
from tests.conftest import StartGateway, settings_for
from tests.execute.stub_cluster import DOCUMENTS, V1, Cluster
from tests.execute.test_session_stream import event
from tests.execute.test_stream_watch import STREAM
from tests.lifecycle.process import until

QUESTION: list[Any] = [{"role": "user", "content": "hi"}]
BODY = {"model": "conv-d", "messages": QUESTION}
AG_UI = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "hi"}]}
PORT = {"listen": {"adapters_port": 0}}


@pytest.mark.parametrize(
    ("headers", "settings", "status"),
    [
        ({}, {}, 200),
        ({"Host": "localhost:1"}, {}, 200),
        ({"Host": "[::1]:9"}, {}, 200),
        ({"Host": "evil.example"}, {}, 403),
        ({"Host": "app.example:80"}, {"hosts": ["*.example"]}, 200),
        ({"Host": "localhost"}, {"hosts": ["*.example"]}, 403),
        ({"Origin": "https://evil.example"}, {}, 403),
        ({"Origin": "null"}, {}, 403),
        ({"Origin": "https://app.example"}, {"origins": ["https://app.example"]}, 200),
        ({"Origin": "https://app.example:8443"}, {"origins": ["https://app.example"]}, 403),
        ({"Origin": "https://any.example"}, {"origins": ["*"]}, 200),
    ],
)
async def test_other_hosts_and_foreign_pages_are_refused(
    deploy: Deploy, headers: dict[str, str], settings: Any, status: int
) -> None:
    async with deploy("2.19.0", {"adapters": settings}) as deployed, deployed.http() as client:
        for path, body in (("/v1/chat/completions", BODY), ("/ag-ui/conv-d", AG_UI)):
            async with client.post(path, json=body, headers=headers) as response:
                text = await response.text()
                assert response.status == status
                if status == 403:
                    assert "adapters." in json.loads(text)["error"]["message"]
                elif "Origin" in headers:
                    assert response.headers["Access-Control-Allow-Origin"] in (headers["Origin"], "*")
        assert bool(deployed.simulator.received) is (status == 200)


async def test_a_page_asks_first(deploy: Deploy) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    async with (
        deploy("2.19.0", {"adapters": {"origins": ["https://app.example"]}}) as deployed,
        deployed.http() as client,
    ):
        async with client.options("/ag-ui/conv-d", headers={"Origin": "https://app.example", **asks}) as response:
            assert response.status == 200
            assert "authorization" in response.headers["Access-Control-Allow-Headers"]
        async with client.options("/ag-ui/conv-d", headers={"Origin": "https://other.example", **asks}) as response:
            assert response.status == 403


async def test_a_key_stands_for_credentials_and_is_seen_nowhere(start_gateway: StartGateway, tmp_path: Path) -> None:
    key, credentials = "canary-0123456789abcdef", tmp_path / "authorization"
    (tmp_path / "key").write_text(key)
    credentials.write_text("Basic YWRtaW46YWRtaW4=")
    keys = [{"key": {"file": str(tmp_path / "key")}, "authorization": {"file": str(credentials)}}]
    cluster = Cluster()
    async with serving(cluster.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, "adapters": {"keys": keys}})
        base = f"http://127.0.0.1:{gateway.adapters_port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as client:
            await client.chat.completions.create(model=V1, messages=QUESTION)
        async with openai.AsyncOpenAI(base_url=base, api_key="other", max_retries=0) as client:
            await client.chat.completions.create(model=V1, messages=QUESTION)
    sent = [headers.get("Authorization") for headers in cluster.lookups]
    assert set(sent) == {"Basic YWRtaW46YWRtaW4=", "Bearer other"}
    assert key not in str(cluster.lookups)


@asynccontextmanager
async def serving(answer: Any) -> AsyncIterator[str]:
    app = aiohttp.web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


class Broken:
    """A cluster whose stream ends after some bytes, in one of several ways."""

    def __init__(self) -> None:
        self.cluster, self.size, self.cuts = Cluster(), 0, False
        self.asked, self.left = asyncio.Event(), asyncio.Event()
        self.waits = False

    async def answer(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.method == "GET":
            return await self.cluster.answer(request)
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(STREAM[: self.size])
        self.asked.set()
        if self.waits:
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        if self.cuts:
            assert request.transport is not None
            request.transport.abort()
        return response


@pytest.mark.parametrize(
    ("cuts", "step"),
    [(False, 41), (True, 53), *(pytest.param(cuts, 1, marks=pytest.mark.slow(30)) for cuts in (False, True))],
)
async def test_an_answer_that_ends_at_any_byte_is_never_taken_for_whole(
    start_gateway: StartGateway, cuts: bool, step: int
) -> None:
    broken = Broken()
    broken.cuts = cuts
    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, PORT)
        base = f"http://127.0.0.1:{gateway.adapters_port}"
        client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0)
        async with client, aiohttp.ClientSession(base) as http:
            for size in [*range(0, len(STREAM) - 5, step), len(STREAM) - 5]:
                broken.size = size
                with pytest.raises(openai.APIError):
                    async for _ in await client.chat.completions.create(model=V1, messages=QUESTION, stream=True):
                        pass
                with pytest.raises(openai.APIError):
                    await client.chat.completions.create(model=V1, messages=QUESTION)
                async with http.post(f"/ag-ui/{V1}", json=AG_UI) as response:
                    *_, last = (await response.text()).strip().split("\n\n")
                    assert json.loads(last.removeprefix("data: "))["type"] == "RUN_ERROR"
            broken.size, broken.cuts = len(STREAM), False
            answer = await client.chat.completions.create(model=V1, messages=QUESTION)
            assert answer.choices[0].message.content == "It is größer."


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (
            b'{"error": {"type": "x", "reason": "no nodes", "details": "d"}, "status": 503}',
            "application/json",
            "no nodes",
        ),
        (b'{"error": "not here"}', "application/json; charset=UTF-8", "not here"),
        (b"<html>Sign in</html>", "text/html", "no text that can be read"),
        (b"", "text/plain", "no text that can be read"),
        (b'data: {"error": {"type": "x", "reason": "no nodes"}}\n\n', "TEXT/Event-Stream;charset=utf-8", "no nodes"),
        (b'data: {"error": null}\n\n', "text/event-stream", "ended before the run did"),
    ],
    ids=["JSON", "a text", "a page", "nothing", "an event", "null"],
)
async def test_an_error_within_a_200_is_an_error(
    start_gateway: StartGateway, body: bytes, kind: str, words: str
) -> None:
    cluster = Cluster()

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.method == "GET":
            return await cluster.answer(request)
        return aiohttp.web.Response(body=body, headers={"Content-Type": kind})

    async with serving(answer) as url:
        gateway = await start_gateway(url, None, PORT)
        base = f"http://127.0.0.1:{gateway.adapters_port}"
        client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0)
        async with client, aiohttp.ClientSession(base) as http:
            with pytest.raises(openai.APIError, match=words):
                await client.chat.completions.create(model=V1, messages=QUESTION)
            with pytest.raises(openai.APIError, match=words):
                async for _ in await client.chat.completions.create(model=V1, messages=QUESTION, stream=True):
                    pass
            async with http.post(f"/ag-ui/{V1}", json=AG_UI) as response:
                *_, last = (await response.text()).strip().split("\n\n")
            event = json.loads(last.removeprefix("data: "))
            assert event["type"] == "RUN_ERROR"
            assert words in event["message"]


@pytest.mark.parametrize("path", ["/ag-ui/conv", "/v1/chat/completions", "stream"])
async def test_a_client_that_leaves_ends_the_run(start_gateway: StartGateway, path: str) -> None:
    broken = Broken()
    broken.waits, broken.size = True, 200
    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, PORT)
        body: Any = {"model": V1, "messages": QUESTION, "stream": path == "stream"}
        target = f"/ag-ui/{V1}" if path.startswith("/ag-ui") else "/v1/chat/completions"
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.adapters_port}") as client:
            request = asyncio.create_task(client.post(target, json=AG_UI if "ag-ui" in target else body))
            await broken.asked.wait()
            if "completions" not in path:
                response = await request
                await response.content.readany()
                response.close()
            else:
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)
            await asyncio.wait_for(broken.left.wait(), 30)


async def test_a_stream_with_nothing_to_send_has_comments(start_gateway: StartGateway) -> None:
    broken = Broken()
    broken.waits = True
    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, "adapters": {"comment_seconds": 0.02}})
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.adapters_port}") as client:
            body = {"model": V1, "messages": QUESTION, "stream": True, "tools": [{"type": "web_search"}]}
            for path, asked, notices in (
                (f"/ag-ui/{V1}", AG_UI, None),
                ("/v1/chat/completions", body, "TOOLS_LEFT_OUT"),
            ):
                async with client.post(path, json=asked) as response:
                    assert response.headers.get("x-mlc-gateway-notice") == notices
                    seen = b""
                    while COMMENT * 2 not in seen:
                        seen += await response.content.readany()


async def test_new_settings_apply_from_the_next_request_on(deploy: Deploy) -> None:
    async with deploy("2.19.0") as deployed, deployed.openai() as client:
        await client.chat.completions.create(model="conv-d", messages=QUESTION)
        over = {"adapters": {"agents": {"helper": deployed.agents["conv-d"]}}, **PORT}
        settings = settings_for(
            deployed.simulator.url, {**over, "listen": {**over["listen"], "http": deployed.http_server}}
        )
        await deployed.gateway.reload(settings, deployed.gateway.log)
        for name in ("helper", deployed.agents["conv-d"]):  # GET /v1/models lists the id
            answer = await client.chat.completions.create(model=name, messages=QUESTION)
            assert answer.choices[0].message.content == ANSWER
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="conv-d", messages=QUESTION)


async def test_a_missing_package_is_named(start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("gateway.adapters")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"uvicorn, which is not installed: pip install 'mlc-gateway\[adapters\]'"):
        await start_gateway("http://127.0.0.1:1", None, PORT)


async def test_a_body_that_is_too_long_or_coded_is_refused(deploy: Deploy) -> None:
    async with deploy("2.19.0", {"limits": {"body": 1000}}) as deployed, deployed.http() as client:
        for path in ("/v1/chat/completions", "/ag-ui/conv-d"):
            async with client.post(path, json={"a": "x" * 2000}) as response:
                assert response.status == 413
            async with client.post(path, json={}, headers={"Content-Encoding": "gzip"}) as response:
                assert response.status == 415
        async with client.get("/nosuch") as response:
            assert response.status == 404
            assert "/nosuch" in (await response.json())["error"]["message"]
        async with client.get("/ag-ui/conv-d") as response:
            assert response.status == 405


@pytest.mark.slow
def test_nothing_is_imported_without_the_port_and_then_only_what_is_on() -> None:
    import subprocess
    import sys

    mcp = [{"name": "ask", "agent": "a", "description": "d"}]
    only_openai = {"ag_ui": False}
    http = ["starlette", "uvicorn"]
    steps: list[tuple[dict[str, Any], list[str]]] = [
        ({}, []),
        ({"adapters": {"mcp": mcp}}, []),
        ({**PORT, "adapters": only_openai}, http),
        ({**PORT, "adapters": {**only_openai, "mcp": mcp}}, ["mcp", "mcp_types", "pydantic", *http]),
        (PORT, ["ag_ui", "mcp", "mcp_types", "pydantic", *http]),
    ]
    code = (
        "import sys; from gateway.app import build; from gateway.config.load import load\n"
        f"for settings in {[settings for settings, _ in steps]!r}:\n"
        "    build(load(None, {}, settings))\n"
        "    names = ('ag_ui', 'mcp', 'mcp_types', 'pydantic', 'starlette', 'uvicorn')\n"
        "    print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(imported) for _, imported in steps]


async def test_what_names_the_caller_reaches_the_cluster_as_it_came(start_gateway: StartGateway) -> None:
    cluster = Cluster()
    async with serving(cluster.answer) as url:
        over = {"listen": {"adapters_port": 0}, "adapters": {"hosts": ["gateway.example"]}}
        gateway = await start_gateway(url, None, {**over, "upstream": {"url": url, "host_header": "client"}})
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.example\r\nX-Tenant: J\xc3\xb6rg\r\n"
            b"Content-Type: application/json\r\nCookie: a=b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        )
        body = json.dumps({"model": V1, "messages": QUESTION}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.adapters_port)
        writer.write(head % len(body) + body)
        assert b" 200 " in await reader.read()
        writer.close()
    assert cluster.executed[-1]["x-tenant"] == "Jörg"
    assert cluster.executed[-1]["host"] == "gateway.example"
    assert "cookie" not in cluster.executed[-1]


async def test_a_body_that_does_not_come_is_late_and_one_that_is_broken_off_is_no_fault(
    deploy: Deploy, capsys: pytest.CaptureFixture[str]
) -> None:
    async with deploy("2.19.0", {"listen": {"timeouts": {"body": 0.05}}}) as deployed:
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        for path in (b"/v1/chat/completions", b"/v1/responses", b"/ag-ui/conv-d"):
            reader, writer = await asyncio.open_connection("127.0.0.1", deployed.gateway.adapters_port)
            writer.write(head % path)
            assert b" 408 " in await reader.readline()
            writer.close()
            _, writer = await asyncio.open_connection("127.0.0.1", deployed.gateway.adapters_port)
            writer.write(head % path)
            writer.close()
        async with deployed.openai() as client:
            await client.models.list()
    assert "internal error" not in "".join(capsys.readouterr())


async def test_who_may_not_search_for_agents_names_them_by_id(start_gateway: StartGateway) -> None:
    cluster = Cluster()

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.path.endswith("/_search"):
            error = {"type": "security_exception", "reason": "no permissions for [agents/search]"}
            return aiohttp.web.json_response({"error": error, "status": 403}, status=403)
        if request.path.endswith("/agents/own"):
            return aiohttp.web.json_response(DOCUMENTS["agents"][V1])
        return await cluster.answer(request)

    async with serving(answer) as url:
        gateway = await start_gateway(url, None, PORT)
        base = f"http://127.0.0.1:{gateway.adapters_port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="k", max_retries=0) as client:
            for model in (V1, "own"):
                await client.chat.completions.create(model=model, messages=QUESTION)
            with pytest.raises(openai.PermissionDeniedError, match="no permissions"):
                await client.chat.completions.create(model="nosuch", messages=QUESTION)


@pytest.mark.parametrize("begun", [b"", b"POST / HTTP/1.1\r\nHost: loc"], ids=["nothing", "a part"])
async def test_a_head_that_does_not_come_is_late(deploy: Deploy, begun: bytes) -> None:
    """Also that of a second request; a first one that came in time is answered however long that takes."""
    async with deploy("2.19.0", {"listen": {"timeouts": {"head": 0.3, "keepalive": 0}}}) as deployed:
        port = deployed.gateway.adapters_port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        late = await asyncio.wait_for(reader.read(), 20)
        assert late.startswith(b"HTTP/1.1 408 " if begun else b"")
        assert bool(late) is bool(begun)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /nosuch HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
        writer.write(b"GET /nosuch HT")
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_a_long_answer_is_no_late_head(start_gateway: StartGateway) -> None:
    broken = Broken()
    broken.waits, broken.size = True, 200
    async with serving(broken.answer) as url:
        over = {"listen": {"adapters_port": 0, "timeouts": {"head": 0.1, "keepalive": 1}}}
        gateway = await start_gateway(url, None, {**over, "adapters": {"comment_seconds": 0.05}})
        url = f"http://127.0.0.1:{gateway.adapters_port}/ag-ui/{V1}"
        async with aiohttp.ClientSession() as client, client.post(url, json=AG_UI) as response:
            seen = b""
            while seen.count(COMMENT) < 8:
                seen += await response.content.readany()


async def test_a_client_that_does_not_read_loses_its_connection(start_gateway: StartGateway) -> None:
    """And the run ends with it. One that reads slowly keeps it."""
    large, left = event("x" * 60_000, False, "m") + b"\n\n", asyncio.Event()
    cluster = Cluster()

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.method == "GET":
            return await cluster.answer(request)
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            while True:
                await response.write(large)
        finally:
            left.set()

    async with serving(answer) as url:
        gateway = await start_gateway(url, None, {"listen": {"adapters_port": 0, "timeouts": {"send": 0.5}}})
        body = json.dumps({"model": V1, "messages": QUESTION, "stream": True}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.adapters_port, limit=1 << 16)
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"x" * 1000)
        await asyncio.wait_for(left.wait(), 30)
        assert gateway._adapters is not None
        connections = gateway._adapters._server.server_state.connections
        await until(lambda: not connections)
        writer.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/ag-ui/conv-d", AG_UI),
        ("/v1/chat/completions", {**BODY, "stream": True}),
        ("/v1/responses", {"model": "conv-d", "input": "hi", "stream": True}),
    ],
)
async def test_a_stream_with_an_internal_error_says_so_and_breaks_off(
    deploy: Deploy, path: str, body: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fault(_: AgentRun) -> AsyncIterator[RunEvent]:
        yield TextDelta("It ")
        raise ValueError("a fault")

    monkeypatch.setattr(AgentRun, "events", fault)
    async with deploy("2.19.0") as deployed, deployed.http() as client, client.post(path, json=body) as response:
        seen = b""
        try:
            async for piece in response.content.iter_any():
                seen += piece
            is_whole = True
        except aiohttp.ClientPayloadError:
            is_whole = False
    assert not is_whole
    *_, last = seen.strip().split(b"\n\n")
    document = json.loads(last.rpartition(b"data: ")[2])
    assert "internal error of the gateway" in json.dumps(document)
    assert document.get("type") in ("RUN_ERROR", "response.failed", None)
    assert "a fault" in "".join(capsys.readouterr())


@pytest.mark.slow
async def test_an_answer_that_is_too_long_to_be_held_is_an_error(start_gateway: StartGateway) -> None:
    """An agent that never ends. AG-UI relays it, and holds nothing of it."""
    large = event("x" * (1 << 20), False, "m") + b"\n\n"
    cluster = Cluster()

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.method == "GET":
            return await cluster.answer(request)
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(large)

    async with serving(answer) as url:
        base = f"http://127.0.0.1:{(await start_gateway(url, None, PORT)).adapters_port}"
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError, match="longer than 16 MiB"):
                await client.chat.completions.create(model=V1, messages=QUESTION)
            with pytest.raises(openai.InternalServerError, match="longer than 16 MiB"):
                await client.responses.create(model=V1, input="hi")
        async with aiohttp.ClientSession(base) as http, http.post(f"/ag-ui/{V1}", json=AG_UI) as response:
            seen = 0
            while seen < 20 << 20:
                seen += len(await response.content.readany())

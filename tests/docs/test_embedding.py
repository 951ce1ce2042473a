"""`docs/reference/embedding.md`: its table is the one of the tests, and its example runs."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpClient, AiohttpServer

from gateway.app import RUNNER_OPTIONS
from tests.docs.embedding_page import PAGE, written
from tests.docs.pages import files_of
from tests.wire import RecordingUpstream


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == written(), "python -m tests.docs.embedding_page"


async def test_the_example_runs(
    aiohttp_client: AiohttpClient, aiohttp_server: AiohttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(web, "run_app", lambda app, **options: ran.append((app, options)))
    async with RecordingUpstream() as upstream:
        example = files_of("reference/embedding.md")["embedded.py"]
        source = example.replace("http://127.0.0.1:9200", upstream.url)
        assert source != example
        exec(compile(source, "embedded.py", "exec"), {"__name__": "__main__"})
        [(app, options)] = ran
        assert options == {"port": 9300, **RUNNER_OPTIONS}
        server = await aiohttp_server(app, auto_decompress=options["auto_decompress"])
        client = await aiohttp_client(server)
        async with client.get("/ping") as response:
            assert (response.status, await response.text()) == (200, "pong")
        async with client.get("/_cat/indices") as response:
            assert response.status == 401
        async with client.get("/_cat/indices", headers={"X-Team": "search"}) as response:
            assert (response.status, await response.text()) == (200, "ok")
    assert [request.line for request in upstream.requests] == [b"GET /_cat/indices HTTP/1.1"]

"""Recorded runs of agents, from end to end: exported, sent again, and run as a test."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.config.inspector import SqliteExchanges
from gateway.inspector.exports import as_pytest, oldest_first
from gateway.inspector.har import read_har, write_har
from gateway.inspector.replay import Options, Result, replay
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import Filter
from tests.execute.conftest import Deployment, StartDeployment

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "format": "png", "data": PNG}}
AGENTS = ("flow-bedrock_messages", "flow-openai_messages", "flow-gemini_contents", "flow-anthropic_messages")


@pytest.fixture
async def deployment(start_deployment: StartDeployment, tmp_path: Path) -> Deployment:
    inspector = {"enabled": True, "media": "keep", "sqlite": {"directory": str(tmp_path / "exchanges")}}
    return await start_deployment("3.4.0", {"inspector": inspector})


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = SqliteStore(SqliteExchanges(str(tmp_path / "exchanges")))
    yield store
    store.close()


async def _run_all(deployment: Deployment, store: SqliteStore) -> list[ExchangeRecord]:
    """Run agents with an image and pass a request on. Return the exchanges, once all are stored."""
    for agent in AGENTS:
        response = await deployment.execute(agent, {"input": [{"type": "text", "text": f"What is {agent}?"}, IMAGE]})
        assert response.status == 200
    async with deployment.client.get("/_plugins/_ml/agents/" + deployment.agents[AGENTS[0]]) as response:
        await response.read()
    await deployment.gateway._recording.stop()
    return await asyncio.to_thread(lambda: list(oldest_first(store, Filter())))


async def _replay(records: list[ExchangeRecord], url: str, store: SqliteStore) -> list[Result]:
    options = Options(url, allow_execute=True)
    return [result async for result in replay(records, options, store.medium)]


async def test_a_replay_of_an_export_finds_no_difference(deployment: Deployment, store: SqliteStore) -> None:
    records = read_har(b"".join(write_har(await _run_all(deployment, store))))
    results = await _replay(records, deployment.url, store)
    assert [(one.skipped, one.failed, one.status, one.differences) for one in results] == [("", "", 200, ())] * 5


@pytest.fixture
async def broken_front() -> AsyncIterator[str]:
    """A front that forwards nothing of the input, and answers as if it had."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"inference_results": [{"output": [{"name": "response", "result": "I see."}]}]})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.mark.slow
async def test_an_exported_test_passes_and_fails(
    deployment: Deployment, store: SqliteStore, broken_front: str, tmp_path: Path
) -> None:
    records = await _run_all(deployment, store)
    file = tmp_path / "test_recorded.py"
    file.write_text(as_pytest(records[0], store.medium))

    async def run(url: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(file)]
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "MLC_URL": url}, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0].decode()

    assert "1 passed" in await run(deployment.url)
    assert "1 failed" in await run(broken_front)

"""``mlc-gateway mcp`` with the official client, which starts it and speaks to it over its standard streams."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from gateway import cli
from gateway.app.adapters import serve_standard_streams
from gateway.config.load import ConfigError
from gateway.observe.logs import configure
from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.adapters.conftest import ANSWER
from tests.adapters.test_listener import Broken, serving
from tests.adapters.test_mcp import PNG, over, refusal_of, text_of, tool, without_the_package
from tests.conftest import settings_for
from tests.execute.stub_cluster import V1, Cluster
from tests.execute.test_stream_watch import STREAM
from tests.wire import PATIENCE

each = pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
CREDENTIALS = "Basic YW5uOmNhbmFyeQ=="


def command(folder: Path, url: str, settings: Any) -> list[str]:
    """Return the command, with its settings in a file."""
    file = folder / "gateway.yaml"
    file.write_text(json.dumps({**settings, "upstream": {"url": url}}))
    return [sys.executable, "-m", "gateway", "mcp", "-c", str(file)]


def environment(folder: Path) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("GATEWAY__")}
    return {**environ, "MLC_AUTHORIZATION": CREDENTIALS, "XDG_STATE_HOME": str(folder)}


@asynccontextmanager
async def client_of(folder: Path, url: str, settings: Any, mode: str) -> AsyncIterator[Client]:
    program, *arguments = command(folder, url, settings)
    parameters = StdioServerParameters(command=program, args=arguments, env=environment(folder))
    with (folder / "log").open("w") as log:
        async with asyncio.timeout(3 * PATIENCE), Client(stdio_client(parameters, log), mode=mode) as client:
            yield client


@pytest.mark.slow
@each
async def test_a_client_starts_the_command_and_calls_tools(tmp_path: Path, mode: str) -> None:
    rules = {"agents": {"rules": [{"agent": "fc-*", "memory": "gateway"}]}}
    tools = over(tool("fc-openai_tutorial"), tool("flow-openai_messages", "look"), **rules)
    async with Simulator("3.4.0", streams=True) as simulator:
        seed_core(simulator.core, simulator.llm_url)
        async with client_of(tmp_path, simulator.url, tools, mode) as client:
            assert [one.name for one in (await client.list_tools()).tools] == ["ask", "look"]
            image = {"data": PNG, "mimeType": "image/png"}
            assert text_of(await client.call_tool("look", {"text": "What is it?", "images": [image]})) == ANSWER
            assert f"data:image/png;base64,{PNG}" in json.dumps(simulator.received[-1])
            for text in ("apples", "pears"):
                await client.call_tool("ask", {"text": text, "session": "one"})
            assert "apples" in json.dumps(simulator.received[-1])
            assert "Unknown tool" in refusal_of(await client.call_tool("nosuch", {"text": "hi"}))
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["event"] for line in log} == {"request"}


@pytest.mark.slow
@each
async def test_progress_and_a_call_that_is_cancelled(tmp_path: Path, mode: str) -> None:
    broken = Broken()
    broken.waits, broken.size = True, len(STREAM) // 2
    begun = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    async with serving(broken.answer) as url, client_of(tmp_path, url, over(tool(V1)), mode) as client:
        call = asyncio.create_task(client.call_tool("ask", {"text": "hi"}, progress_callback=note))
        await begun.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.wait_for(broken.left.wait(), PATIENCE)
        broken.waits = False
        assert "may have acted" in refusal_of(await client.call_tool("ask", {"text": "hi"}))
        broken.size = len(STREAM)
        assert text_of(await client.call_tool("ask", {"text": "hi"})) == "It is größer."


@pytest.mark.slow
async def test_the_credentials_reach_the_cluster_and_nothing_else(tmp_path: Path) -> None:
    cluster = Cluster()
    async with serving(cluster.answer) as url, client_of(tmp_path, url, over(tool(V1)), "2026-07-28") as client:
        assert text_of(await client.call_tool("ask", {"text": "hi"})) == "ran"
    heads = [*cluster.lookups, *cluster.executed]
    assert {head.get("Authorization") for head in heads} == {CREDENTIALS}
    assert "YW5uOmNhbmFyeQ" not in (tmp_path / "log").read_text()


async def run(folder: Path, url: str, settings: Any, input: bytes) -> tuple[int | None, bytes, bytes]:
    """Return the exit code, and what the command has printed."""
    process = await asyncio.create_subprocess_exec(
        *command(folder, url, settings),
        env=environment(folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(3 * PATIENCE):
        output, errors = await process.communicate(input)
    return process.returncode, output, errors


@pytest.mark.slow
async def test_only_messages_are_printed_and_the_end_of_the_input_ends_it(tmp_path: Path) -> None:
    broken = Broken()
    broken.waits = True
    parameters = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "ask", "arguments": {"text": "hi"}}},
    ]
    lines = "not JSON\n" + "".join(f"{json.dumps(message)}\n" for message in messages)
    settings = {**over(tool(V1)), "logs": {"level": "debug"}}
    async with serving(broken.answer) as url:
        code, output, _ = await run(tmp_path, url, settings, lines.encode())
    assert code == 0
    answers = [json.loads(line) for line in output.splitlines()]
    assert answers[0]["result"]["protocolVersion"] == "2025-11-25"
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)


@pytest.mark.slow
async def test_a_signal_ends_it(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        process = await asyncio.create_subprocess_exec(
            *command(tmp_path, "http://127.0.0.1:1", over(tool(V1))),
            env=environment(tmp_path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(3 * PATIENCE):
            process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            await process.stdout.readline()
            process.send_signal(number)
            assert await process.wait() == -number


def test_without_tools_it_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(command(tmp_path, "http://127.0.0.1:1", {})[3:]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("adapters.mcp: names no agents")


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without_the_package(monkeypatch)
    settings = settings_for("http://127.0.0.1:1", over(tool("a")))
    with pytest.raises(ConfigError, match=r"needs the package mcp, .*pip install 'mlc-gateway\[mcp\]'"):
        await serve_standard_streams(settings, configure("error", "json"), "")

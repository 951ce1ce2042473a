"""The metrics of a running gateway: refusals, added latency, rewrites, bytes, profiles, sessions."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config.memory import Memory
from gateway.memory.model import Owner, SessionKey, Turn
from gateway.memory.sessions import Sessions
from gateway.memory.store import SessionConflict, StoreUnavailable
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from tests.conftest import StartGateway
from tests.execute.conftest import StartDeployment
from tests.proxy.use_case import UseCase
from tests.sessions.conftest import RULE
from tests.wire import OK, RecordingUpstream, read_message, reserved, send_request

GET = b"GET /_cat/indices HTTP/1.1\r\nHost: a\r\n\r\n"
TEXT = {"input": "What is it?"}
VIDEO = {"input": [{"type": "video", "source": {"type": "base64", "format": "mp4", "data": "AAAA"}}]}


def values(gateway: Gateway, name: str) -> dict[str, float]:
    """Return the values of a metric by its labels' values, joined with commas."""
    text = gateway.metrics.render().decode()
    lines = re.findall(rf"^mlc_gateway_{name}(?:{{(.*)}})? (.*)$", text, re.MULTILINE)
    return {",".join(re.findall(r'"(.*?)"', labels)): float(value) for labels, value in lines}


async def test_no_metric_is_described_twice(start_gateway: StartGateway) -> None:
    """Prometheus' own check of a page (`promtool check metrics`) fails at the second description."""
    gateway = await start_gateway("http://127.0.0.1:1", UseCase())
    described = re.findall(r"^# HELP (\S+)", gateway.metrics.render().decode(), re.MULTILINE)
    assert len(described) == len(set(described))


async def test_refusals_are_counted_by_code_or_type(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment()
    gateway = deployment.gateway
    await deployment.execute("flow-d", VIDEO)
    await deployment.execute("flow-d", {"input": 7})
    await deployment.execute("no-such-agent", TEXT)
    counted = values(gateway, "refusals_total")
    assert counted.pop("ValidationException") == 1
    assert counted.pop("UnresolvedAgent") == 1
    assert set(counted.values()) == {1}
    assert counted
    assert all(re.fullmatch(r"[A-Z_0-9]+", code) for code in counted)


async def test_bytes_that_are_no_request_and_a_dead_cluster_are_counted(start_gateway: StartGateway) -> None:
    with reserved() as port:
        gateway = await start_gateway(f"http://127.0.0.1:{port}", UseCase())
        await send_request(gateway.data_port, GET)
        await send_request(gateway.data_port, b"GET / HTTP/1.1\r\n\r\n")
    assert values(gateway, "refusals_total") == {"UpstreamUnavailable": 1, "ValidationException": 1}


async def test_the_added_time_begins_with_the_last_byte_of_the_request(start_gateway: StartGateway) -> None:
    head_sent, answered = asyncio.Event(), asyncio.Event()

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head_sent.set()
        await reader.readexactly(4)
        writer.write(OK)
        await answered.wait()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(b"POST /i/_bulk HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n")
        await head_sent.wait()
        writer.write(b"ab")
        began = time.monotonic()
        writer.write(b"cd")
        await read_message(reader)
        took = time.monotonic() - began
        answered.set()
        writer.close()
    assert values(gateway, "added_seconds_count") == {"passthrough": 1}
    assert 0 <= values(gateway, "added_seconds_sum")["passthrough"] <= took


async def test_a_request_that_is_never_whole_adds_no_time(start_gateway: StartGateway) -> None:
    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.read()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(b"POST /i/_bulk HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
        await read_message(reader)
        writer.close()
    assert values(gateway, "upstream_seconds_count") == {"passthrough": 1}
    assert values(gateway, "added_seconds_count") == {}


async def test_bytes_from_clients_and_nodes(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        if gateway.settings.listen.http == "aiohttp":
            return  # the head is written again for the gateway's own reader, so its size differs
        for _ in range(2):
            await send_request(gateway.data_port, GET)
    assert values(gateway, "client_received_bytes_total") == {"": 2 * len(GET)}


async def test_rewrites_and_lookups(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment()
    for _ in range(3):
        assert (await deployment.execute("flow-d", TEXT)).status == 200
    assert values(deployment.gateway, "rewrite_seconds_count") == {"": 3}
    assert values(deployment.gateway, "profile_lookups_total") == {"cached": 2, "read": 1, "failed": 0}
    assert values(deployment.gateway, "cached_profiles") == {"": 1}
    await deployment.execute("no-such-agent", TEXT)
    assert values(deployment.gateway, "profile_lookups_total")["failed"] == 1
    assert values(deployment.gateway, "cached_profiles") == {"": 1}


async def test_turns_and_runs_of_gateway_memory(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment(over={"agents": {"rules": [RULE]}})
    assert (await deployment.execute("flow-d", TEXT)).status == 200
    assert values(deployment.gateway, "session_turns_total") == {"stored": 1, "failed": 0}
    assert values(deployment.gateway, "session_runs") == {"": 0}


@pytest.mark.parametrize("conflict", [False, True])
async def test_turns_that_are_not_stored(conflict: bool) -> None:
    class Failing:
        async def append(self, *_: Any) -> None:
            raise SessionConflict("gone", 0) if conflict else StoreUnavailable("down")

    counted: list[str] = []
    sessions = Sessions(Failing(), Memory(), configure("critical", "json"), count=counted.append)  # type: ignore[arg-type]
    key = SessionKey(Owner("o", "a"), "gws-1")
    assert await sessions.busy.enter(key, 0)
    assert await sessions.commit(key, 1, Turn("t", ()))
    assert counted == ["failed"]
    assert sessions.in_use == 0


def test_counters_of_budgets_begin_at_zero() -> None:
    """The alert about their store compares two values: a series that began at 1 would hide its first failure."""
    lines = [line for line in Metrics().render().decode().splitlines() if line.startswith("mlc_gateway_budget_events")]
    assert lines == [
        f'mlc_gateway_budget_events_total{{outcome="{outcome}"}} 0.0'
        for outcome in ("refused", "read_failed", "write_failed")
    ]


def test_each_metric_is_described_once() -> None:
    described = re.findall(r"^# TYPE (\S+)", Metrics().render().decode(), re.MULTILINE)
    assert len(described) == len(set(described))

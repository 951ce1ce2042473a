"""The metrics of each node: one series for each address, which continues after a reload."""

from __future__ import annotations

import asyncio
import re

from gateway.app import Gateway
from gateway.observe.logs import configure
from tests.conftest import settings_for
from tests.faults.client import Ask, once
from tests.faults.deployment import LONG, running_gateway
from tests.faults.upstream import FaultyUpstream, settled
from tests.wire import OK, RecordingUpstream, read_message, send_request

EJECTING = {"ejection": {"failures": 2, "seconds": 60}, "health": {"interval": 0}}


_TRAFFIC = ("connections", "waiting", "received_bytes_total")


def series(gateway: Gateway) -> dict[str, dict[str, float]]:
    """Return the metrics by node address and by name (with kind, for failures)."""
    found: dict[str, dict[str, float]] = {}
    text = gateway.metrics.render().decode()
    for name, labels, value in re.findall(r"^mlc_gateway_node_(\w+)\{(.*)\} (.*)$", text, re.MULTILINE):
        if name in _TRAFFIC:
            continue
        values = dict(re.findall(r'(\w+)="(.*?)"', labels))
        key = f"{name} {values['kind']}" if "kind" in values else name
        assert key not in found.setdefault(values["node"], {})
        found[values["node"]][key] = float(value)
    return found


def expected(requests: int, *, pending: int = 0, down: int = 0, ejected: int = 0, **failures: int) -> dict[str, float]:
    kinds = {f"failures_total {kind}": failures.get(kind, 0) for kind in ("connect", "reset", "invalid", "timeout")}
    counts = {"requests_total": requests, "pending": pending, "down": down, "ejected": ejected}
    return {**counts, "pool_rebuilds_total": 0, **kinds}


async def test_each_node_has_its_own_series() -> None:
    good, bad = FaultyUpstream(), FaultyUpstream()
    async with running_gateway(good, bad, **EJECTING) as gateway:
        a, b = (f"127.0.0.1:{one.port}" for one in (good, bad))
        assert series(gateway) == {a: expected(0), b: expected(0)}
        await bad.kill()
        for number in range(10):
            await once(gateway.data_port, Ask(b"%d" % number))
        assert series(gateway) == {a: expected(10), b: expected(0, connect=2, ejected=1)}


async def test_failures_are_told_apart_and_pending_ones_counted() -> None:
    upstream = FaultyUpstream()
    async with running_gateway(upstream) as gateway:
        node = f"127.0.0.1:{upstream.port}"
        for fault in ("garbage", "resets without an answer", "closes within the head", "closes within the body"):
            await once(gateway.data_port, Ask(b"f", b"POST", fault=fault))
        assert series(gateway) == {node: expected(4, invalid=1, reset=3)}
        same = settings_for(upstream.url, {"upstream": {"url": upstream.url, "timeouts": LONG}})
        await gateway.reload(same, gateway.log)
        late = asyncio.create_task(once(gateway.data_port, Ask(b"l", fault="stalls before the answer")))
        assert await settled(lambda: series(gateway)[node]["pending"] == 1)
        for connection in gateway.upstream._connections:
            connection.deadline = 0.0  # has passed
        await late
        assert series(gateway) == {node: expected(5, invalid=1, reset=3, timeout=1)}


async def test_a_node_keeps_its_series_over_reloads() -> None:
    async with FaultyUpstream() as upstream:
        once_given = {"nodes": [upstream.url], "health": {"interval": 0}}
        async with running_gateway(url=upstream.url, **once_given) as gateway:
            for _ in range(2):
                for number in range(4):
                    await once(gateway.data_port, Ask(b"%d" % number))
                await gateway.reload(settings_for(upstream.url, {"upstream": once_given}), configure("error", "json"))
            assert series(gateway) == {f"127.0.0.1:{upstream.port}": expected(8)}


def traffic(gateway: Gateway) -> dict[str, float]:
    """Return the connections by state, the requests that wait for one, and the bytes received, of the only node."""
    text = gateway.metrics.render().decode()
    found = re.findall(r"^mlc_gateway_node_(?:connections|waiting|received_bytes_total)\{.*\} .*$", text, re.MULTILINE)
    states = (re.search(r'state="(\w+)"', line) or re.search(r"node_(\w+)", line) for line in found)
    return {state[1]: float(line.split()[-1]) for state, line in zip(states, found, strict=True) if state}


async def test_connections_waiting_requests_and_bytes_of_a_node() -> None:
    answering = asyncio.Event()

    async def answer_when_allowed(
        upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            upstream.requests.append(await read_message(reader))
            await answering.wait()
            writer.write(OK)

    async with RecordingUpstream(script=answer_when_allowed) as upstream:
        over = {"url": upstream.url, "connections": 1}
        async with running_gateway(**over) as gateway:
            idle = {"idle": 0, "busy": 0, "connecting": 0, "waiting": 0, "received_bytes_total": 0}
            assert traffic(gateway) == idle
            get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
            asked = [asyncio.create_task(send_request(gateway.data_port, get)) for _ in range(2)]
            assert await settled(lambda: traffic(gateway) == {**idle, "busy": 1, "waiting": 1})
            answering.set()
            await asyncio.gather(*asked)
            assert traffic(gateway) == {**idle, "idle": 1, "received_bytes_total": 2 * len(OK)}

"""Several workers on one port: watched, restarted, distinguished in the metrics, and counted."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.app.supervisor import merge_metrics
from gateway.observe.metrics import Metrics
from tests.lifecycle.process import Process, until
from tests.wire import RecordingUpstream, send_request

ASK = b"GET /x HTTP/1.1\r\nHost: c\r\n\r\n"


@asynccontextmanager
async def two_workers(folder: Path, **more: Any) -> AsyncIterator[tuple[Process, int, int]]:
    """A gateway of two workers, its data port and its admin port."""
    async with RecordingUpstream() as upstream:
        settings = {"upstream": {"url": upstream.url}, "listen": {"workers": 2}, **more}
        async with Process(folder, settings) as gateway:
            yield gateway, *await gateway.ports(2)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def page(port: int, path: str, method: str = "GET", body: str = "") -> str:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return (await send_request(port, f"{head}{body}".encode())).body.decode()


@pytest.mark.slow
async def test_connections_are_spread_metrics_name_the_worker_and_all_reload_or_none(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (gateway, port, admin), RecordingUpstream() as other:
        assert await page(admin, "/health/live") == '{"status":"live"}'
        assert await page(admin, "/health/ready") == '{"status":"ready","workers":"2 of 2"}'
        assert await page(admin, "/profiles/drop", "POST") == '{"status":"dropped","workers":"2 of 2"}'
        hold = '{"name":"u","seconds":30,"connectors":{"connectors/c":{}},"connector_ids":{}}'
        assert await page(admin, "/profiles/hold", "POST", hold) == '{"status":"held","known":false,"runs":0}'
        assert await page(admin, "/profiles/hold", "POST", hold) == '{"status":"held","known":true,"runs":0}'
        assert "unknown field" in await page(admin, "/profiles/hold", "POST", '{"x":1}')
        assert await page(admin, "/profiles/hold?name=u", "DELETE") == '{"status":"released","known":true,"runs":0}'
        for _ in range(40):
            assert (await send_request(port, ASK)).body == b"ok"
        text = await page(admin, "/metrics")
        found = re.findall(
            r'^mlc_gateway_requests_total\{intent="pass.*",status="200",worker="(\d)"\} (.*)', text, re.M
        )
        counts = {worker: float(count) for worker, count in found}
        assert set(counts) == {"0", "1"}
        assert sum(counts.values()) == 40
        assert re.findall(r"^mlc_gateway_worker_up.*", text, re.M) == [
            'mlc_gateway_worker_up{worker="0"} 1.0',
            'mlc_gateway_worker_up{worker="1"} 1.0',
        ]

        gateway.write({"upstream": {"url": other.url}, "listen": {"workers": 2}, "nope": 1})
        gateway.signal(signal.SIGHUP)
        [failed] = await gateway.event("reload failed")
        assert ("worker" in failed, failed["problems"][0].partition(";")[0]) == (False, "nope: unknown key")
        gateway.write('listen: {admin_token: {file: "\\0"}}')
        gateway.signal(signal.SIGHUP)
        failed = (await gateway.event("reload failed", 2))[1]
        assert ("worker" in failed, "ValueError" in failed["exception"]) == (False, True)
        gateway.write({"upstream": {"url": other.url}, "listen": {"workers": 2}})
        gateway.signal(signal.SIGHUP)
        reloaded = await gateway.event("settings reloaded", 2)
        assert sorted(event["worker"] for event in reloaded) == [0, 1]
        for count in range(1, 11):
            await send_request(port, ASK)
            assert len(other.requests) == count
        assert Counter(event["event"] for event in gateway.events)["reload failed"] == 2


@pytest.mark.slow
async def test_a_worker_that_ends_is_started_again_and_one_whose_supervisor_ends_stops(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (gateway, port, admin):
        before = children(gateway.process.pid)
        os.kill(before[0], signal.SIGKILL)
        [ended] = await gateway.event("worker ended")
        assert (ended["pid"], ended["status"]) == (before[0], -9)
        assert (await send_request(port, ASK)).body == b"ok"
        await gateway.event("listening", 7)  # both ports of both workers, the admin port, and both of the new one
        after = children(gateway.process.pid)
        assert (len(after), before[1] in after, before[0] in after) == (2, True, False)
        text = await page(admin, "/metrics")
        restarts = re.findall(r'^mlc_gateway_worker_restarts_total\{worker="(\d)"\} (.*)', text, re.M)
        assert dict(restarts) == {"0": "0.0", "1": "0.0"} | {str(ended["worker"]): "1.0"}
        # And all end with their supervisor, however it ends: their standard input does.
        gateway.signal(signal.SIGKILL)
        await gateway.process.wait()
        await until(lambda: not any(map(alive, after)))
        with socket.socket() as one:  # nobody holds the port any more
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))


@pytest.mark.slow
async def test_workers_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "gateway.py").write_text("raise SystemExit('imported from the working directory')")
    async with Process(tmp_path, {"listen": {"workers": 2}}, installed=True) as gateway:
        await gateway.ports(2)


@pytest.mark.slow
async def test_a_worker_that_has_read_the_old_settings_while_it_starts_reloads_too(tmp_path: Path) -> None:
    fifo = tmp_path / "secret"
    os.mkfifo(fifo)
    async with two_workers(tmp_path) as (gateway, *_):
        listen = {"listen": {"workers": 2}}
        gateway.write({**listen, "telemetry": {"traces": {"secret": {"file": str(fifo)}}}})
        os.kill(children(gateway.process.pid)[0], signal.SIGKILL)
        [ended] = await gateway.event("worker ended")
        held = await asyncio.to_thread(os.open, fifo, os.O_WRONLY)  # the new worker has read the settings file
        try:
            gateway.write(listen)
            gateway.signal(signal.SIGHUP)
            [other] = await gateway.event("settings reloaded")
            os.write(held, b"x")
        finally:
            os.close(held)
        reloaded = await gateway.event("settings reloaded", 2)
        assert [event["worker"] for event in reloaded] == [other["worker"], ended["worker"]]


@pytest.mark.slow
async def test_a_reload_changes_the_log_level_of_the_supervisor_too(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (gateway, port, _), RecordingUpstream() as other:
        logs = {"logs": {"level": "warning"}}
        gateway.write({"upstream": {"url": other.url}, "listen": {"workers": 2}, **logs})
        gateway.signal(signal.SIGHUP)
        while not other.requests:  # a worker reloads after its supervisor
            await send_request(port, ASK)
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
    assert [event for event in gateway.events if event["event"] == "stopped" and "worker" not in event] == []


@pytest.mark.slow
async def test_a_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = {"listen": {"workers": 2, "data_port": taken.getsockname()[1]}}
        async with Process(tmp_path, settings) as gateway:
            assert await gateway.ended() == 1
            assert [event["event"] for event in gateway.events] == ["default cluster"]


def test_pages_are_merged_sample_by_sample() -> None:
    one, two = Metrics(), Metrics()
    for metrics, intent, status in ((one, "execute", 200), (two, "execute", 200), (two, "passthrough", 0)):
        metrics.traffic.answered[intent, status] += 1
    page = merge_metrics({"0": one.render().decode(), "1": two.render().decode()}).decode()
    samples = [line for line in page.splitlines() if line.startswith("mlc_gateway_requests_total")]
    assert samples == [
        'mlc_gateway_requests_total{intent="execute",status="200",worker="0"} 1.0',
        'mlc_gateway_requests_total{intent="execute",status="200",worker="1"} 1.0',
        'mlc_gateway_requests_total{intent="passthrough",status="0",worker="1"} 1.0',
    ]
    assert 'mlc_gateway_in_flight{worker="1"} 0.0' in page.splitlines()
    comments = Counter(line for line in page.splitlines() if line.startswith("#"))
    assert set(comments.values()) == {1}

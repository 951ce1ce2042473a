"""A fault of the gateway, at any step of any request: the client has its answer, and nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from gateway.admin.application import AdminListener
from gateway.app import Gateway, build
from gateway.observe.logs import configure
from gateway.ports import Forward
from gateway.proxy.admission import Admission
from gateway.proxy.client_connection import ClientConnection
from gateway.proxy.data_port import DataPort, Router
from gateway.proxy.exchange import Exchange
from gateway.proxy.lifecycle import DisconnectPoller
from gateway.proxy.listener import DataListener
from gateway.proxy.memory_read import MemoryRead
from gateway.proxy.request_log import RequestLog
from gateway.proxy.request_receiver import Backlog, RequestReceiver
from gateway.proxy.run import AnswerReport, Run
from gateway.recording.recorder import Recorder, Recording
from gateway.upstream.client import Upstream
from gateway.upstream.connection import Connection, ResponseReceiver
from gateway.upstream.nodes import NodeSet
from gateway.upstream.pool import Pool
from tests.conftest import StartGateway, settings_for
from tests.proxy.use_case import Stage, UseCase
from tests.wire import RecordingUpstream, read_message

EXECUTE = "/_plugins/_ml/agents/a/_execute"
LARGE = b'{"query": "' + b"x" * 300_000 + b'"}'
REQUESTS = {
    "run": ("POST", EXECUTE, b'{"input": "hello"}'),
    "read": ("GET", "/_cat/indices", None),
    "search": ("POST", "/index/_search", b"{}"),
    "upload": ("POST", "/_bulk", LARGE),
    "memory": ("GET", "/_plugins/_ml/memory/m/messages", None),
    "write": ("PUT", "/_plugins/_ml/models/m", b"{}"),
}
FAULTS: list[tuple[type, str]] = [
    (RequestLog, "response_began"), (RequestLog, "finished"), (RequestLog, "failed"), (RequestLog, "rewrote"),
    (Recorder, "add"), (AnswerReport, "run"),
    (Admission, "enter"), (DataPort, "admit"), (DataPort, "exchange"), (Router, "exchange"),
    (Exchange, "start"), (Exchange, "on_connection"), (Exchange, "on_head"), (Exchange, "on_body"),
    (Exchange, "parts"), (Exchange, "captured"), (Exchange, "_captured"), (Exchange, "reply"),
    (Exchange, "_invalidate"), (Run, "captured"), (Run, "parts"), (MemoryRead, "_hold"),
    (RequestReceiver, "_feed"), (Upstream, "_acquire"), (Upstream, "_prepare"), (NodeSet, "pick"),
    (Pool, "take"), (Pool, "try_upload"), (Connection, "_wait_for_head"), (ResponseReceiver, "_read_head"),
    (ResponseReceiver, "_answer"),
]  # fmt: skip


class Fault(Exception):
    """Raised where nobody expects it."""


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Callable[[], bool]:
    """Let the next call raise; return a function that tells if it did."""
    original = getattr(owner, name)
    raised: list[str] = []

    def method(*args: Any, **more: Any) -> Any:
        if not raised:
            raised.append(name)
            raise Fault(name)
        return original(*args, **more)

    monkeypatch.setattr(owner, name, method)
    return lambda: bool(raised)


class Client:
    def __init__(self, gateway: Gateway) -> None:
        self.session = ClientSession(f"http://127.0.0.1:{gateway.data_port}", timeout=ClientTimeout(3))

    async def status(self, method: str, path: str, body: bytes | None) -> int:
        headers = {"Content-Type": "application/json"}
        async with self.session.request(method, path, data=body, headers=headers) as response:
            await response.read()
            return response.status


async def check_nothing_is_held(gateway: Gateway) -> None:
    port = gateway._now.port
    for _ in range(100):
        if not port.lifecycle.running and not any(node.busy for node in gateway.upstream.node_states()):
            break
        await asyncio.sleep(0.01)
    assert port.lifecycle.running == 0
    assert (port._admission.running, port._admission.waiting) == (0, 0)
    for pool in gateway.upstream._pools.values():
        assert pool.connections == set(pool._idle)
        assert not pool._uploads
        assert not pool._waiters


@pytest.mark.parametrize("request_name", REQUESTS)
async def test_the_client_is_answered_and_nothing_leaks(
    start_gateway: StartGateway, tmp_path: Any, request_name: str
) -> None:
    request = REQUESTS[request_name]
    over = {
        "admission": {"total": 10},
        "inspector": {"enabled": True, "sqlite": {"directory": str(tmp_path)}},
        "upstream": {"connections": 2},
    }
    use_case = UseCase(Forward([b"{}"], stages=(Stage(report=lambda status, body: None),)))
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case, over)
        client = Client(gateway)
        assert await client.status(*request) == 200
        for owner, name in FAULTS:
            with pytest.MonkeyPatch.context() as patch:
                failed = fail_once(patch, owner, name)
                first = await client.status(*request)
                assert first in ((200, 500, 502) if failed() else (200,)), (owner, name)
                assert await client.status(*request) == 200, (owner, name)
            await check_nothing_is_held(gateway)
        await client.session.close()


async def test_a_run_whose_measurement_fails_gives_up_what_it_holds(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = ["session"]
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"], stages=(Stage(abandon=held.clear),))))
        client = Client(gateway)
        fail_once(monkeypatch, RequestLog, "rewrote")
        assert await client.status(*REQUESTS["run"]) == 500
        await client.session.close()
    assert not held


async def test_a_use_case_that_waited_for_cancelled_work_is_a_500(start_gateway: StartGateway) -> None:
    class Cancelled(UseCase):
        async def execute(self, call: Any) -> Forward:
            shared = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(shared.cancel)
            await shared
            raise AssertionError

    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, Cancelled())
        client = Client(gateway)
        assert await client.status(*REQUESTS["run"]) == 500
        await check_nothing_is_held(gateway)
        await client.session.close()


async def test_requests_that_wait_are_admitted_after_one_that_fails(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, None, {"admission": {"total": 1}})
        client = Client(gateway)
        original, calls = Exchange.start, []

        def start(self: Exchange) -> None:
            calls.append(self)
            if len(calls) == 2:
                raise Fault("start")
            original(self)

        monkeypatch.setattr(Exchange, "start", start)
        answers = await asyncio.gather(*(client.status(*REQUESTS["read"]) for _ in range(4)))
        assert sorted(answers) == [200, 200, 200, 500]
        await check_nothing_is_held(gateway)
        await client.session.close()


async def test_one_connection_that_fails_does_not_stop_the_backlog() -> None:
    done = asyncio.Event()

    class Broken:
        broken = False

        def continue_reading(self) -> None:
            raise Fault

        def break_off(self) -> None:
            self.broken = True

    class Sound(Broken):
        def continue_reading(self) -> None:
            done.set()

    backlog, broken = Backlog(), Broken()
    backlog.add(broken)
    backlog.add(Sound())
    async with asyncio.timeout(3):
        await done.wait()
    assert broken.broken


@pytest.mark.parametrize(("name", "ended"), [("close", 3), ("cut_off", 2)])
@pytest.mark.slow
async def test_a_connection_that_fails_while_the_gateway_stops_does_not_keep_others_open(
    name: str, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = asyncio.Semaphore(0)

    async def silent(_: RecordingUpstream, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await read_message(reader)
        arrived.release()
        await reader.read()

    async with RecordingUpstream(script=silent) as upstream:
        settings = settings_for(upstream.url, {"listen": {"shutdown_seconds": 0.5}})
        gateway = build(settings, UseCase(), configure("critical", "json"))
        await gateway.start()
        clients = [await asyncio.open_connection("127.0.0.1", gateway.data_port) for _ in range(3)]
        for _, writer in clients if name == "cut_off" else []:  # idle connections are closed, others are cut
            writer.write(b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")
            await arrived.acquire()
        failed = fail_once(monkeypatch, ClientConnection, name)
        await gateway.stop()
        assert failed()
        async with asyncio.timeout(3):
            ends = asyncio.as_completed([end_of(reader) for reader, _ in clients])
            for _ in range(ended):
                await next(ends)
        for _, writer in clients:
            writer.transport.abort()


async def end_of(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""


PARTS: list[tuple[type, str]] = [
    (DataListener, "stop"), (AdminListener, "stop"), (NodeSet, "close"), (Pool, "close"), (Recording, "stop"),
]  # fmt: skip


@pytest.mark.parametrize("fails", PARTS[:-1], ids=lambda part: part[0].__name__)
async def test_a_part_that_fails_while_the_gateway_stops_does_not_keep_others_open(
    fails: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[tuple[type, str]] = []

    def note(part: tuple[type, str]) -> None:
        original = getattr(*part)

        async def stop(*args: Any) -> None:
            await original(*args)
            stopped.append(part)
            if part == fails:
                raise Fault

        monkeypatch.setattr(*part, stop)

    for part in PARTS:
        note(part)
    gateway = build(settings_for("http://127.0.0.1:1"), UseCase(), configure("critical", "json"))
    await gateway.start()
    with pytest.raises(Fault):
        await gateway.stop()
    assert stopped == PARTS


async def test_the_poller_goes_on_after_a_connection_that_fails() -> None:
    class Broken:
        def paused_descriptor(self) -> int:
            raise Fault

    poller = DisconnectPoller([Broken()])  # type: ignore[list-item]
    poller.start()
    first = poller._timer
    with pytest.raises(Fault):
        poller._poll()
    assert poller._timer is not first
    poller.stop()


async def test_a_fault_before_there_is_an_exchange_is_logged(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url)
        client = Client(gateway)
        fail_once(monkeypatch, Router, "exchange")
        assert await client.status(*REQUESTS["search"]) == 500
        await client.session.close()
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [event["client"] for event in events if event["event"] == "internal error"] == ["127.0.0.1"]

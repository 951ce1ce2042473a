"""The recorder in a process of its own: what arrives there, and what happens when it stalls or dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from multidict import CIMultiDict

from gateway.app import Gateway
from gateway.config.inspector import Inspector, SqliteExchanges
from gateway.execute.rendered import Rendering
from gateway.http1.request_heads import RequestReader
from gateway.http1.response_heads import ResponseHead
from gateway.http1.rules import HeadLimits
from gateway.inspector.process.arrived import BatchReader
from gateway.inspector.process.gathering import Gathering, Numbers
from gateway.inspector.process.messages import READ_BATCH
from gateway.inspector.process.own_memory import MemoryGone, can_read_own_memory, open_own_memory, read_memory
from gateway.inspector.process.recorder import ProcessRecorder
from gateway.inspector.recorder import Recorder
from gateway.inspector.records import RecordMaker
from gateway.inspector.store import Filter, StoreError
from gateway.inspector.stores.registry import open_store
from gateway.inspector.writer import Waiting
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.metrics import Metrics
from gateway.observe.record import Delivery, RecordedError, TraceContext
from gateway.ports import Answer, Steps
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.capture import Bodies, Captured, CapturedError, Passed, Shared
from gateway.proxy.routes import Intent, Route
from tests.conftest import StartGateway, settings_for
from tests.proxy.use_case import UseCase
from tests.wire import PATIENCE, RecordingUpstream, send_request

LIMITS = HeadLimits()
FIELDS = RequestReader(LIMITS).read(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer abcdefgh1\r\n\r\n").fields
HEAD = ResponseHead(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", LIMITS)
CHUNKED = ResponseHead(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", LIMITS)
RUN = Route(Intent.EXECUTE, "agents", "a")
DELIVERY = Delivery("name", "flow", "text", "openai/v1/chat/completions", "gpt", "text", "text", ("NOTICE",))
RENDER = Rendering(AgentProfile("a", "name", "flow", (2, 19, 0), Generation.TEXT))
IMAGE = b'{"input": [{"source": {"data": "' + b"iVBORw0KGgo" + b"QUJD" * 50_000 + b'"}}]}'
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def response(head: ResponseHead = HEAD, *pieces: bytes, limit: int = 1000) -> ResponseCopy:
    copy = ResponseCopy(limit, head, False, b"", False)
    for piece in pieces or (b"{}",):
        copy.add(piece, piece is (pieces or (b"{}",))[-1])
    return copy


def request(*pieces: bytes, limit: int = 1000) -> BodyCopy:
    copy = BodyCopy(limit)
    for piece in pieces:
        copy.add(piece, True)
    return copy


def steps() -> Steps:
    taken = Steps(1.0)
    taken.end("decode", 1.5)
    return taken


def captured(bodies: Bodies | None = None, **more: Any) -> Captured:
    times = {"started": 1.0, "ended": 2.0, "answered_at": 1.5}
    given: dict[str, Any] = {"connection": 3, "client": "127.0.0.1", **times, "status": 200, "head": HEAD, **more}
    return Captured("id", FIELDS, b"POST", b"/a?sig=secret", 1, RUN, bodies=bodies, **given)


def parts_of(body: bytes) -> list[bytes | memoryview]:
    view = memoryview(body)
    return [b'{"parameters": {"question": "', view[40:150_000], view[150_000:150_010], b'"}}']


EXCHANGES: dict[str, Captured] = {
    "run": captured(Bodies(b'{"a": 1}', False, b"POST / HTTP/1.1\r\nHost: y\r\n\r\n", [b"{}"], response())),
    "prepared run": captured(Bodies(b"{}", sent_head=b"a: b\r\n\r\n", sent=[b"{}"], delivery=DELIVERY, render=RENDER)),
    "steps": captured(Bodies(b"{}", response=response(), delivery=DELIVERY, read_at=1.1, sent_at=1.6, steps=steps())),
    "image": captured(Bodies(IMAGE, sent_head=b"a: b\r\n\r\n", sent=parts_of(IMAGE), response=response())),
    "large, sent otherwise": captured(Bodies(IMAGE, sent_head=b"a: b\r\n\r\n", sent=[IMAGE[:-1] + b" "])),
    "response of one piece": captured(Bodies(b"{}", response=b"x" * 20)),
    "large response of one piece": captured(Bodies(b"{}", response=b"x" * 20_000)),
    "large response": captured(Bodies(b"{}", response=response(HEAD, b"x" * 20_000, b"y" * 20_000, limit=30_000))),
    "chunks": captured(
        Bodies(request(b"2\r\n{}\r\n0\r\n\r\n"), True, response=response(CHUNKED, b"2\r\n{}\r\n0\r\n\r\n"))
    ),
    "cut": captured(Bodies(request(b"x" * 20_000, b"y" * 20_000, limit=25_000))),
    "events": captured(Bodies(b"{}", sent=[b"{}"], response=response(CHUNKED, b"a"), relayed=[b"data: 1\n\n"])),
    "guardrails": captured(Bodies(b"{}", guardrails=[{"name": "g", "allowed": True}])),
    "answer": captured(answer=Answer(200, CIMultiDict([("A", "1"), ("A", "2")]), b"{}"), head=None, answered_at=0.0),
    "refusal": captured(Bodies(b"{}"), error=CapturedError(RecordedError("T", "why"), b'{"error": 1}'), head=None),
    "trace": captured(Bodies(b"{}"), trace=TraceContext("a" * 32, "b" * 16, True, "c" * 16, "k=v")),
    "surrogates": captured(Bodies(b"{}", delivery=Delivery("\ud800name")), client="\ud800"),
}


def passed(number: int) -> Passed:
    return FIELDS, b"GET", b"/%d" % number, 1, 1, "127.0.0.1", 1.0, 2.0, 3.0, 200, HEAD if number % 2 else None


def capture(one: Captured | Passed, shared: Shared) -> Captured | Passed:
    """Return an exchange as it captures itself."""
    if isinstance(one, tuple):
        return (shared.fields[one[0]], *one[1:-1], shared.heads[one[-1]])
    bodies = one.bodies
    if bodies is not None:
        delivery, render = shared.planned(bodies.delivery, bodies.render)
        bodies = msgspec.structs.replace(bodies, delivery=delivery, render=render)
    fields, head = shared.fields[one.fields], shared.heads[one.head]
    return msgspec.structs.replace(one, fields=fields, head=head, bodies=bodies)


class Transfer:
    """A gathering, and what reads it in the same process."""

    def __init__(self) -> None:
        self.gathering = Gathering(Numbers())
        self._memory = open_own_memory()
        self.faults: list[Exception] = []
        self._reader = BatchReader(LIMITS, self._memory, self.faults.append)

    def add(self, *exchanges: Captured | Passed) -> list[Exception]:
        return self.gathering.add([capture(one, self.gathering) for one in exchanges])

    def send(self) -> list[Any]:
        """Return what arrives of what was gathered."""
        arrived: list[Waiting] = list(self._reader.read(READ_BATCH(self.gathering.finish())))
        self.gathering.clear()
        return [item for some in arrived for item in some]

    def close(self) -> None:
        os.close(self._memory)


@pytest.fixture
def transfer() -> Iterator[Transfer]:
    made = Transfer()
    yield made
    made.close()


def record_of(one: Captured) -> Any:
    return RecordMaker(Inspector(passthrough="bodies"), 7).make(one, 100.0)


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_same_record_is_made_of_what_arrives(transfer: Transfer, name: str) -> None:
    sent = EXCHANGES[name]
    size = sent.bodies.size if sent.bodies is not None else 0
    for _ in range(2):
        transfer.add(sent)
        [(arrived, arrived_size)] = transfer.send()
        assert arrived_size == size
        expected = record_of(sent)
        if name == "surrogates":
            assert (record_of(arrived).client, record_of(arrived).delivery.agent_name) == ("\ufffd", "\ufffdname")
        else:
            assert record_of(arrived) == expected
            assert arrived.bodies is None or arrived.bodies.size == size


def test_no_large_body_is_copied(transfer: Transfer) -> None:
    transfer.add(EXCHANGES["image"])
    batch = READ_BATCH(transfer.gathering.finish())
    assert sum(size for _, size in [*batch.chunks, batch.tables]) < 0.1 * len(IMAGE)
    assert len(IMAGE) < transfer.gathering.size < 1.1 * len(IMAGE)


def test_a_part_of_the_body_that_is_like_an_earlier_part_arrives(transfer: Transfer) -> None:
    body = b"A" * 40_000 + b"B" * 40_000
    sent = captured(Bodies(body, sent_head=b"a: b\r\n\r\n", sent=[memoryview(body)[1000:60_000]]))
    transfer.add(sent)
    [(arrived, _)] = transfer.send()
    assert b"".join(arrived.bodies.sent) == body[1000:60_000]


LENDER = """
import socket, sys
from gateway.inspector.process.own_memory import address_of, open_own_memory
data = b"lent" * 10_000
channel = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(channel, [address_of(data).to_bytes(8, "big")], [open_own_memory()])
channel.recv(1)
"""


def test_the_memory_of_a_process_that_has_ended_is_gone() -> None:
    channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with channel, other:
        lender = subprocess.Popen([sys.executable, "-c", LENDER, str(other.fileno())], pass_fds=[other.fileno()])
        place, [memory], _, _ = socket.recv_fds(channel, 8, 1)
        address = int.from_bytes(place, "big")
        assert read_memory(memory, address, 40_000) == b"lent" * 10_000
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(memory, b"x", address)
        channel.send(b"x")
        assert lender.wait(PATIENCE) == 0
        with pytest.raises(MemoryGone):
            read_memory(memory, address, 40_000)
        os.close(memory)


def test_memory_that_reads_as_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_read_own_memory()
    monkeypatch.setattr(os, "pread", lambda descriptor, size, place: b"\0" * size)
    assert not can_read_own_memory()


async def test_a_thread_records_where_memory_cannot_be_read(
    start_gateway: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(path)

    async with RecordingUpstream() as upstream:
        monkeypatch.setattr("gateway.inspector.process.own_memory.os.open", refuse)
        assert not can_read_own_memory()
        monkeypatch.undo()
        monkeypatch.setattr("gateway.recording.can_read_own_memory", lambda: False)
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path))
        assert isinstance(gateway._recording.recorder, Recorder)
        await send_request(gateway.data_port, GET)
        await until(lambda: stored(gateway) == 1)


def test_all_exchanges_arrive_in_their_order(transfer: Transfer) -> None:
    order = [0, 0, 1, 0, 1, 1, 0] * 100
    exchanges = [numbered_run(number) if is_run else passed(number) for number, is_run in enumerate(order)]
    for start in range(0, len(order), 32):
        transfer.add(*exchanges[start : start + 32])
    arrived = transfer.send()
    assert [int(item[0].id if len(item) == 2 else item[2][1:]) for item in arrived] == list(range(len(order)))
    lines = [item for item in arrived if len(item) != 2]
    assert {line[-1].raw if line[-1] is not None else None for line in lines} == {HEAD.raw, None}
    assert all(tuple(line[0].lines) == tuple(FIELDS.lines) for line in lines)


def numbered_run(number: int) -> Captured:
    one = captured(Bodies(b"x" * 500))
    one.id = str(number)
    return one


def test_deliveries_stay_the_same_objects(transfer: Transfer) -> None:
    same = Delivery("name")
    found = []
    for delivery in (DELIVERY, same, DELIVERY, Delivery("name")):
        transfer.add(captured(Bodies(b"{}", delivery=delivery)))
        [(arrived, _)] = transfer.send()
        found.append(arrived.bodies.delivery)
    assert found[0] is found[2]
    assert found[1] == found[3]
    assert found[1] is not found[3]


def test_exchanges_that_have_no_form_as_bytes_are_not_added(transfer: Transfer) -> None:
    unknown: Any = object()
    transfer.add(numbered_run(1))
    bad = captured(trace=unknown), captured(Bodies(unknown)), (*passed(5)[:-2], unknown, None)
    faults = transfer.add(passed(2), bad[0], numbered_run(3), bad[1], bad[2], passed(4), numbered_run(5))
    assert [type(fault) for fault in faults] == [TypeError] * 3
    assert transfer.gathering.count == 5
    transfer.add(numbered_run(6), passed(7))
    assert names(transfer.send()) == ["1", b"/2", "3", b"/4", "5", "6", b"/7"]


def names(arrived: list[Any]) -> list[str | bytes]:
    return [item[0].id if len(item) == 2 else item[2] for item in arrived]


def test_exchanges_that_can_not_be_read_are_left_out(transfer: Transfer) -> None:
    wrong: Any = ["a"]
    bad = captured(client=wrong), captured(status=wrong), (*passed(5)[:-2], wrong, None)
    assert transfer.add(numbered_run(1), bad[0], passed(2), bad[2], numbered_run(3), bad[1], passed(4)) == []
    assert names(transfer.send()) == ["1", b"/2", "3", b"/4"]
    assert [type(fault) for fault in transfer.faults] == [msgspec.ValidationError] * 3


def test_a_delivery_that_can_not_be_read_is_refused(transfer: Transfer) -> None:
    unknown: Any = object()
    for delivery in (Delivery(unknown), Delivery(5)):  # type: ignore[arg-type]
        with pytest.raises((TypeError, msgspec.ValidationError)):
            transfer.add(captured(Bodies(b"{}", delivery=delivery)))
    transfer.add(captured(Bodies(b"{}", delivery=DELIVERY)))
    assert [item[0].bodies.delivery for item in transfer.send()] == [DELIVERY]


def test_what_has_no_form_as_bytes_renders_nothing(transfer: Transfer) -> None:
    transfer.add(captured(Bodies(b"{}", delivery=DELIVERY, render=lambda body: "call")))
    [(arrived, _)] = transfer.send()
    assert arrived.bodies.render is None


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"inspector": {"enabled": True, "sqlite": {"directory": str(tmp_path / "store")}, **more}}


def recorder_of(gateway: Gateway) -> ProcessRecorder:
    recorder = gateway._recording.recorder
    assert isinstance(recorder, ProcessRecorder)
    return recorder


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(PATIENCE * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def stored(gateway: Gateway) -> int:
    store = gateway._recording.store
    assert store is not None
    return len(store.rows(Filter()))


async def test_a_recorder_that_is_killed_is_started_again(start_gateway: StartGateway, tmp_path: Path) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path))
        recorder = recorder_of(gateway)
        killed = recorder.pid
        assert killed is not None
        os.kill(killed, signal.SIGSTOP)
        await send_request(gateway.data_port, GET)
        await until(lambda: recorder.waiting == (1, 0))  # it is announced, and the next one is gathered
        await send_request(gateway.data_port, GET)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: stored(gateway) == 1)
        assert recorder.pid not in (None, killed)
        assert gateway.metrics.records_dropped() == {"process": 1}
        assert (await send_request(gateway.data_port, GET)).line == b"HTTP/1.1 200 OK"
        await until(lambda: stored(gateway) == 2)


async def test_a_recorder_that_stalls_costs_forwarding_nothing(start_gateway: StartGateway, tmp_path: Path) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path, queue=3))
        recorder = recorder_of(gateway)
        assert recorder.pid is not None
        os.kill(recorder.pid, signal.SIGSTOP)
        for _ in range(5):
            assert (await send_request(gateway.data_port, GET)).line == b"HTTP/1.1 200 OK"
        assert sum(recorder.waiting) == 3
        assert gateway.metrics.records_dropped() == {"queue": 2}
        os.kill(recorder.pid, signal.SIGCONT)
        await until(lambda: stored(gateway) == 3)


async def test_a_stalled_recorder_does_not_keep_the_gateway_from_stopping(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path))
        recorder = recorder_of(gateway)
        pid = recorder.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await send_request(gateway.data_port, GET)
        await recorder.stop(0.0)
        assert gateway.metrics.records_dropped() == {"stopped": 1}
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_the_recorder_records_what_it_was_sent_when_the_gateway_dies(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path))
        recorder = recorder_of(gateway)
        process = recorder._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        await send_request(gateway.data_port, GET)
        await until(lambda: recorder.waiting == (1, 0))
        assert recorder._task is not None
        recorder._task.cancel()
        await asyncio.wait({recorder._task})
        process._channel.close()
        os.kill(process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(process._process.wait, PATIENCE) == 0
        assert stored(gateway) == 1


async def test_signals_to_all_processes_do_not_end_the_recorder(start_gateway: StartGateway, tmp_path: Path) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path))
        pid = recorder_of(gateway).pid
        assert pid is not None
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, name)
        await send_request(gateway.data_port, GET)
        await until(lambda: stored(gateway) == 1)
        assert recorder_of(gateway).pid == pid


class Ended:
    """An exchange that is over. bodies: None if `captured` raises."""

    def __init__(self, held: int, bodies: Bodies | None) -> None:
        self.held = held
        self._bodies = bodies

    def captured(self, ended: float, shared: Shared) -> Captured | Passed:
        if self._bodies is None:
            raise RuntimeError
        return capture(captured(self._bodies, ended=ended), shared)


async def test_a_fault_in_one_exchange_drops_only_that_one(start_gateway: StartGateway, tmp_path: Path) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path))
        recorder = recorder_of(gateway)
        for bodies in (Bodies(b"{}"), None, Bodies(b"{}")):
            recorder.add(Ended(2, bodies), 2.0)
        await until(lambda: stored(gateway) == 2)
        assert gateway.metrics.records_dropped() == {"fault:RuntimeError": 1}


async def test_a_fault_in_the_last_announcement_does_not_delay_the_stop(
    start_gateway: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Gathering) -> bytes:
        raise RuntimeError

    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path))
        recorder = recorder_of(gateway)
        recorder.add(Ended(2, Bodies(b"{}")), 2.0)
        monkeypatch.setattr(Gathering, "finish", fail)
        async with asyncio.timeout(PATIENCE):
            await recorder.stop(10 * PATIENCE)
        assert gateway.metrics.records_dropped() == {"fault": 1}


async def test_what_is_held_for_others_to_end_is_bounded(start_gateway: StartGateway, tmp_path: Path) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path, queue_bytes=4 * len(IMAGE)))
        recorder = recorder_of(gateway)
        recorder.add(Ended(2, Bodies(b"{}")), 2.0)
        recorder.add(Ended(len(IMAGE), Bodies(IMAGE)), 2.0)
        assert (recorder._gathering.count, len(recorder._ended)) == (0, 2)
        recorder.add(Ended(len(IMAGE), Bodies(IMAGE)), 2.0)  # more than half of what may wait
        assert (recorder._sent_count, recorder._gathering.count, len(recorder._ended)) == (3, 0, 0)
        for _ in range(3):
            recorder.add(Ended(len(IMAGE), Bodies(IMAGE)), 2.0)
        assert (recorder._sent_count, recorder._gathering.count, len(recorder._ended)) == (3, 1, 0)
        assert gateway.metrics.records_dropped() == {"queue": 2}
        await until(lambda: stored(gateway) == 4)


async def test_what_the_process_cannot_do_stops_the_start() -> None:
    settings = settings_for("http://127.0.0.1:9")
    recorder = ProcessRecorder(settings, settings.inspector, structlog.get_logger(), Metrics())
    recorder._plan = recorder._plan._replace(recorded=Inspector(redact_paths=["["]))
    with pytest.raises(StoreError, match="is not a path"):
        await recorder.start()
    assert recorder.pid is None


async def test_large_bodies_are_freed_when_they_are_recorded(start_gateway: StartGateway, tmp_path: Path) -> None:
    head = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(IMAGE)
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), settings(tmp_path))
        recorder = recorder_of(gateway)
        await send_request(gateway.data_port, head + IMAGE)
        await until(lambda: recorder.done == 1)
        for gathering in (recorder._gathering, recorder._announced):
            assert (gathering.size, gathering._lent, gathering._places) == (0, [], [])


KILLED = """
import asyncio, os, signal, sys
from gateway.inspector.process.recorder import ProcessRecorder
from gateway.observe.metrics import Metrics
from tests.conftest import settings_for
from tests.inspector.test_process import IMAGE, Bodies, Ended
import structlog

async def main():
    more = {"inspector": {"enabled": True, "sqlite": {"directory": sys.argv[1]}}}
    settings = settings_for("http://127.0.0.1:9", more)
    recorder = ProcessRecorder(settings, settings.inspector, structlog.get_logger(), Metrics())
    await recorder.start()
    recorder.add(Ended(2, Bodies(b"{}")), 2.0)
    recorder._announce()
    while recorder.done == 0:
        await asyncio.sleep(0.01)
    os.kill(recorder.pid, signal.SIGSTOP)
    recorder.add(Ended(len(IMAGE), Bodies(IMAGE)), 2.0)
    recorder._announce()
    assert recorder.waiting == (1, 0)
    print(recorder.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


KILLED_UNREAD = (
    KILLED[: KILLED.index("    os.kill(recorder.pid")]
    + """
    recorder._loop.remove_reader(recorder._process._channel)
    recorder.add(Ended(2, Bodies(b"{}")), 2.0)
    recorder._announce()
    select.select([recorder._process._channel], [], [])
    print(recorder.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
)


def test_a_recorder_whose_gateway_was_killed_before_it_read_the_report_ends_quietly(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import select{KILLED_UNREAD}", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as gateway:
        assert gateway.stderr is not None
        assert gateway.wait(PATIENCE) == -signal.SIGKILL
        assert gateway.stderr.read() == b""
    store = open_store(Inspector(enabled=True, sqlite=SqliteExchanges(directory=str(tmp_path))))
    assert store is not None
    assert [row.record.status for row in store.rows(Filter())] == [200, 200]


def test_a_recorder_whose_gateway_was_killed_keeps_what_it_had_read(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        assert gateway.stderr is not None
        line = gateway.stdout.readline()
        assert line, gateway.stderr.read()
        assert gateway.wait(PATIENCE) == -signal.SIGKILL
        os.kill(int(line), signal.SIGCONT)
        assert gateway.stderr.read() == b""  # the recorder has it too: it has ended, without a fault
    store = open_store(Inspector(enabled=True, sqlite=SqliteExchanges(directory=str(tmp_path))))
    assert store is not None
    assert [row.record.status for row in store.rows(Filter())] == [200]

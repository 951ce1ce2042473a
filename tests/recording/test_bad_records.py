"""A record that can't be made or stored is lost alone: the others of its batch arrive, and the log says why."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace
from multidict import istr
from structlog.testing import capture_logs

from gateway.config.inspector import AuditFile as AuditSettings
from gateway.config.inspector import Inspector, OpenSearchExchanges, SqliteExchanges, Traces
from gateway.http1.request_heads import HeadLimits, RequestReader
from gateway.observe.logs import configure, describe_fault
from gateway.observe.metrics import Metrics
from gateway.observe.record import Body, ExchangeRecord, HttpMessage, TraceContext
from gateway.proxy.capture import Captured
from gateway.proxy.routes import Intent, Route
from gateway.recording.recorder import Recorder, RecordWriter, Waiting
from gateway.recording.records import RecordMaker
from gateway.recording.sinks.access_log import AccessLog
from gateway.recording.sinks.audit_file import AuditFile
from gateway.recording.sinks.opensearch import OpenSearchSink
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.sinks.traces import TraceSink, make_spans
from gateway.recording.store import Filter, RecordSink, StoreError
from tests.recording.memory_sink import MemorySink
from tests.recording.records import record
from tests.recording.sinks.stream_server import StreamServer
from tests.recording.sinks.test_opensearch import lost
from tests.telemetry.collector import running_collector
from tests.wire import PATIENCE

FIELDS = RequestReader(HeadLimits()).read(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").fields
TRACE = TraceContext("a" * 32, "b" * 16, True)
BAD: dict[str, ExchangeRecord] = {
    "type": record(id="bad", intent=object(), trace=TRACE),
    "number": record(id="bad", status=2**70, trace=TRACE),
    "null": record(id="bad", target=None, trace=TRACE),
    "time": record(id="bad", started=float("inf"), trace=TRACE),
    "header": record(id="bad", request=HttpMessage(((istr("a"), "b"), (3.5 + 1j, "b"))), trace=TRACE),
}
"""Records that some of the sinks can't take."""
CLEAN = [record(id=f"{number:02}", trace=TRACE) for number in range(20)]


def writer_to(*sinks: RecordSink) -> tuple[RecordWriter, dict[str, int]]:
    """Return a writer to sinks, and what it drops."""
    dropped: dict[str, int] = {}

    def drop(reason: str, count: int) -> None:
        dropped[reason] = dropped.get(reason, 0) + count

    writer = RecordWriter(drop, structlog.get_logger())
    writer.use(sinks)
    return writer, dropped


class Choosy(MemorySink):
    """Takes all records of a call, or none. error: of a call with a record that it does not take."""

    def __init__(self, error: Callable[[], Exception] = lambda: KeyError("client's text")) -> None:
        super().__init__()
        self._error = error
        self.calls = 0

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        self.calls += 1
        if any(one.id == "bad" or one.target == "/bad" for one in records):
            raise self._error()
        super().add(records)


def with_bad(*places: int) -> list[ExchangeRecord]:
    records = list(CLEAN)
    for place in places:
        records.insert(place, record(id="bad"))
    return records


@pytest.mark.parametrize("places", [(0,), (7, 8, 19), (20,)])
def test_a_sink_that_can_not_take_one_record_gets_the_others(places: tuple[int, ...]) -> None:
    sink, other = Choosy(), MemorySink()
    writer, dropped = writer_to(sink, other)
    writer.write(with_bad(*places))
    assert sink.records == CLEAN
    assert len(other.records) == len(CLEAN) + len(places)
    assert dropped == {"memory:KeyError": len(places)}
    assert "KeyError" in writer.faults["memory"]
    assert "client's text" not in writer.faults["memory"]


def test_a_fault_of_the_sink_itself_is_not_tried_again() -> None:
    sink = Choosy(lambda: StoreError("the disk is full"))
    writer, dropped = writer_to(sink)
    writer.write(with_bad(3))
    assert (sink.calls, dropped, writer.faults) == (1, {"memory": 21}, {"memory": "the disk is full"})


def run(number: int, method: Any = b"POST", target: bytes = b"/run", started: Any = 1.0) -> Captured:
    route = Route(Intent.EXECUTE, "agents", "a")
    return Captured(f"{number:02}", FIELDS, method, target, 1, route, 1, "c", started, 2.0, 200)


def test_an_exchange_that_can_not_be_recorded_or_stored_is_lost_alone() -> None:
    sink = Choosy()
    writer, dropped = writer_to(sink)
    waiting: Waiting = deque(
        (one, 0) for one in (run(1), run(2, started=None), run(3), run(4, None), run(5, target=b"/bad"), run(6))
    )
    with capture_logs() as logs:
        writer.write_next(RecordMaker(Inspector(), 7), waiting, lambda _: None)
    assert [one.id for one in sink.records] == ["01", "03", "06"]
    assert dropped == {"fault:AttributeError": 1, "fault:TypeError": 1, "memory:KeyError": 1}
    assert [line["event"] for line in logs] == ["internal error"] * 2


def test_one_fault_is_logged_once() -> None:
    writer, dropped = writer_to(MemorySink())
    with capture_logs() as logs:
        writer.write_next(RecordMaker(Inspector(), 7), deque((run(number, None), 0) for number in range(50)), print)
    assert dropped == {"fault:AttributeError": 50}
    assert len(logs) == 1
    assert "AttributeError: " in writer.faults["fault"]


# The sinks


def _audit(folder: Path) -> Iterator[Any]:
    yield AuditFile(AuditSettings(path=str(folder / "audit.jsonl")))
    yield [json.loads(line)["id"] for line in (folder / "audit.jsonl").read_text().splitlines()]


def _sqlite(folder: Path) -> Iterator[Any]:
    store = SqliteStore(SqliteExchanges(str(folder / "sqlite")))
    yield store
    yield [row.record.id for row in reversed(store.rows(Filter()))]
    store.close()


def _access(folder: Path) -> Iterator[Any]:
    yield AccessLog("json", str(folder / "access.log"))
    yield [json.loads(line)["request_id"] for line in (folder / "access.log").read_text().splitlines()]


def _apache(folder: Path) -> Iterator[Any]:
    yield AccessLog("apache", str(folder / "access.log"))
    yield [line.split('"')[-4] for line in (folder / "access.log").read_text().splitlines()]


@pytest.mark.parametrize("open_sink", [_audit, _sqlite, _access, _apache])
@pytest.mark.parametrize("name", BAD)
def test_each_sink_takes_the_records_beside_a_bad_one(name: str, open_sink: Any, tmp_path: Path) -> None:
    steps = open_sink(tmp_path)
    sink = next(steps)
    writer, dropped = writer_to(sink)
    writer.write([*CLEAN[:9], BAD[name], *CLEAN[9:]])
    writer.write([replace(CLEAN[0], id="next")])
    stored = [id for id in next(steps) if id != "bad"]
    assert stored == [*(one.id for one in CLEAN), "next"]
    assert sum(dropped.values()) <= 1
    assert all(reason.startswith(f"{sink.name}:") for reason in dropped)
    assert list(steps) == []


@pytest.mark.parametrize("name", BAD)
def test_traces_are_sent_beside_a_bad_one(name: str) -> None:
    with running_collector() as collector:
        sink = TraceSink(Traces(endpoint=collector.url))
        writer, dropped = writer_to(sink)
        writer.write([*CLEAN[:9], BAD[name], *CLEAN[9:]])
        writer.close()
        assert 0 <= len(collector.wait_for(len(CLEAN))) - len(CLEAN) <= 1
    assert sum(dropped.values()) <= 1


def test_a_span_that_has_no_form_as_bytes_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(record: ExchangeRecord, *rest: Any) -> Any:
        made = make_spans(record, *rest)
        if record.id == "bad":
            made[0]._name = object()  # type: ignore[assignment]
        return made

    monkeypatch.setattr("gateway.recording.sinks.traces.make_spans", make)
    with running_collector() as collector:
        sink = TraceSink(Traces(endpoint=collector.url))
        writer, dropped = writer_to(sink)
        writer.write([*CLEAN, record(id="bad", trace=TRACE)])
        writer.close()
        assert len(collector.spans) == len(CLEAN)
    assert dropped == {"traces": 1}
    assert "TypeError" in writer.faults["traces"]


@pytest.mark.parametrize("name", BAD)
async def test_documents_are_sent_beside_a_bad_one(name: str) -> None:
    async with StreamServer() as server:
        sink = OpenSearchSink(OpenSearchExchanges(url=server.url), configure("error", "json"))
        writer, dropped = writer_to(sink)
        writer.write([*CLEAN[:9], BAD[name], *CLEAN[9:]])
        await server.wait(lambda: {one.id for one in CLEAN} <= set(server.documents))
        writer.close()
    assert sum(dropped.values()) <= 1


async def test_a_document_for_which_the_cluster_refuses_the_request_is_lost_alone() -> None:
    """A document that makes the cluster refuse the whole request, as one with a line end or of too many bytes may."""
    async with StreamServer() as server:
        server.poison = "POISON"
        sink = OpenSearchSink(OpenSearchExchanges(url=server.url), configure("error", "json"))
        bad = record(id="bad", response=HttpMessage(body=Body(6, "POISON")))
        sink.add([*CLEAN[:9], bad, *CLEAN[9:]])
        await server.wait(lambda: len(server.documents) == len(CLEAN))
        error = await lost(server, sink)
        assert error.lost == 1
        assert "400" in str(error)
        await asyncio.to_thread(sink.close)  # the server runs in this thread


async def test_a_document_that_is_too_large_to_wait_is_lost_alone() -> None:
    async with StreamServer() as server:
        sink = OpenSearchSink(OpenSearchExchanges(url=server.url), configure("error", "json"), waiting=100_000)
        large = record(id="bad", response=HttpMessage(body=Body(200_000, "x" * 200_000)))
        with pytest.raises(StoreError) as error:
            sink.add([*CLEAN[:9], large, *CLEAN[9:]])
        assert error.value.lost == 1
        await server.wait(lambda: {one.id for one in CLEAN} <= set(server.documents))
        await asyncio.to_thread(sink.close)  # the server runs in this thread


# Exchanges


class Broken:
    """An exchange that can't say what it was."""

    held = 0

    def captured(self, *_: Any) -> Captured:
        raise RuntimeError("no")


async def test_an_exchange_that_can_not_be_captured_fails_no_request() -> None:
    metrics = Metrics()
    recorder = Recorder(Inspector(), MemorySink(), structlog.get_logger(), metrics)
    await recorder.start()
    with capture_logs() as logs:
        recorder.add(Broken(), 1.0)
        await recorder.stop(PATIENCE)
    assert metrics.records_dropped() == {"fault:RuntimeError": 1}
    assert b'mlc_gateway_records_dropped_total{error="RuntimeError",reason="fault"} 1.0' in metrics.render()
    reasons = [line["reason"] for line in logs if line["event"] == "records dropped"]
    assert len(reasons) == 1
    assert reasons[0].startswith("fault: 1; RuntimeError: no (test_bad_records.py:")


def test_a_fault_is_described_without_what_a_client_sent() -> None:
    def fail(text: str) -> None:
        int(text)

    with pytest.raises(ValueError, match="invalid literal") as error:
        fail("a secret of a client")
    shown = describe_fault(error.value)
    assert shown.startswith("ValueError: invalid literal for int() with base 10: [20 characters, sha256 ")
    assert "(test_bad_records.py:" in shown
    assert describe_fault(StopIteration()) == "StopIteration"
    assert len(describe_fault(ValueError("x" * 10_000))) < 300

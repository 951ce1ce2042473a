"""What the recorder logs of exchanges that were dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.config.inspector import Inspector
from gateway.http1.request_heads import HeadLimits, RequestReader
from gateway.observe.metrics import Metrics
from gateway.proxy.capture import Captured
from gateway.proxy.routes import Intent, Route
from gateway.recording.recorder import Recorder
from gateway.recording.store import StoreError
from tests.recording.memory_sink import MemorySink
from tests.wire import PATIENCE

_FIELDS = RequestReader(HeadLimits()).read(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").fields
_ROUTE = Route(Intent.PASSTHROUGH)
_PASSED = Captured("", _FIELDS, b"GET", b"/", 1, _ROUTE, 1, "127.0.0.1", 1.0, 3.0, 200, 2.0)


class PassedExchange:
    held = 0

    def captured(self, ended: float) -> Captured:
        return _PASSED


FULL = "memory: {0}; the disk is full"


def fail() -> None:
    raise StoreError("the disk is full")


def recorder_to(sink: MemorySink, metrics: Metrics | None = None) -> Recorder:
    return Recorder(Inspector(), sink, structlog.get_logger(), metrics or Metrics(), clock=lambda: 0.0)


async def record(recorder: Recorder, then: Callable[[], object] = lambda: None) -> list[str]:
    """Return the reasons that are logged from the start to the stop."""
    with capture_logs() as logs:
        await recorder.start()
        recorder.add(PassedExchange(), 3.0)
        then()
        await recorder.stop(PATIENCE)
    return [line["reason"] for line in logs if line["event"] == "records dropped"]


async def test_what_is_dropped_is_logged_while_the_queue_is_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = threading.Event()
    log_faults = Recorder._log_faults

    def note(recorder: Recorder, now: bool = False) -> None:
        log_faults(recorder, now)
        logged.set()

    def fail_and_go_on() -> None:
        if not logged.is_set():
            recorder.add(PassedExchange(), 3.0)  # the next one is there before this one is done
        fail()

    monkeypatch.setattr(Recorder, "_log_faults", note)
    recorder = recorder_to(MemorySink(fail_and_go_on))
    reasons = await record(recorder, lambda: logged.wait(PATIENCE))
    assert reasons == [FULL.format(1), FULL.format(1)]


async def test_what_is_dropped_at_the_end_is_logged() -> None:
    class Failing(MemorySink):
        def close(self) -> None:
            raise StoreError("the last lines were not written")

    assert await record(recorder_to(Failing())) == ["memory: the last lines were not written"]


async def test_what_a_stalled_store_did_not_take_is_logged() -> None:
    reached, go_on = threading.Event(), threading.Event()

    def stall() -> None:
        reached.set()
        go_on.wait()

    recorder = recorder_to(MemorySink(stall))
    with capture_logs() as logs:
        await recorder.start()
        recorder.add(PassedExchange(), 3.0)
        assert reached.wait(PATIENCE)
        recorder.add(PassedExchange(), 3.0)
        await recorder.stop(0.0)
    go_on.set()
    assert [line["reason"] for line in logs] == ["stopped: 1"]


async def test_what_an_earlier_recorder_dropped_is_not_logged_again() -> None:
    metrics = Metrics()
    for _ in range(2):
        assert await record(recorder_to(MemorySink(fail), metrics)) == [FULL.format(1)]

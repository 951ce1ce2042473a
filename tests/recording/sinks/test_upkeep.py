"""The thread that indexes and deletes beside a store that records."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.config.inspector import SqliteExchanges
from gateway.recording.sinks import sqlite as module
from gateway.recording.sinks.sqlite import RecordingStore
from gateway.recording.store import Filter, StoreError
from tests.recording.records import record
from tests.recording.sinks.store_conformance import ids, numbered, with_body
from tests.wire import PATIENCE

INTERVAL = 0.01


class Observed(RecordingStore):
    """A store that counts the rounds of its upkeep, and can be made to fail."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.rounds = threading.Semaphore(0)
        self.failure = ""
        settings = {"directory": str(directory), "seconds": 0.0} | settings
        super().__init__(SqliteExchanges(**settings), structlog.get_logger(), INTERVAL)

    def index(self, seconds: float, busy: Any = lambda: False) -> bool:
        self.rounds.release()
        if self.failure:
            raise StoreError(self.failure)
        return super().index(seconds, busy)

    def wait_for_rounds(self, count: int) -> None:
        """Return once `count` rounds have begun and ended after this call."""
        while self.rounds.acquire(blocking=False):
            pass
        for _ in range(count + 1):
            assert self.rounds.acquire(timeout=PATIENCE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Observed]:
    store = Observed(tmp_path / "inspector")
    yield store
    store.close()


def test_text_is_indexed_in_the_background(store: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add([with_body("1", "word")])
    store.wait_for_rounds(2)
    monkeypatch.setattr(Observed, "index", lambda *_: True)  # a search does not index now
    assert ids(store.rows(Filter(text="word"))) == ["1"]


def test_old_exchanges_go_also_when_none_come_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRIM_SECONDS", INTERVAL)
    with_old = Observed(tmp_path / "inspector")
    with_old.add([record(id="old", started=time.time() - 100_000), record(id="new", started=time.time())])
    with_old.close()
    store = Observed(tmp_path / "inspector", seconds=10_000.0)
    store.wait_for_rounds(2)
    assert ids(store.rows(Filter())) == ["new"]
    store.close()


def test_indexing_waits_while_many_come_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUSY", -1)  # every second has more exchanges than this
    looked = threading.Semaphore(0)
    monkeypatch.setattr(Observed, "trim", lambda self: looked.release())
    monkeypatch.setattr(module, "_TRIM_SECONDS", INTERVAL)
    store = Observed(tmp_path / "inspector")
    store.add(numbered(1))
    for _ in range(3):
        assert looked.acquire(timeout=PATIENCE)
    assert not store.rounds.acquire(blocking=False)
    store.close()


def test_a_failure_is_logged_once_until_it_changes(tmp_path: Path) -> None:
    with capture_logs() as logs:
        store = Observed(tmp_path / "inspector")
        for failure in ("disk is full", "disk is gone", "", "disk is gone"):
            store.failure = failure
            store.wait_for_rounds(3)
        store.close()
    assert [line["reason"] for line in logs] == ["disk is full", "disk is gone", "disk is gone"]
    assert {line["event"] for line in logs} == {"upkeep failed"}

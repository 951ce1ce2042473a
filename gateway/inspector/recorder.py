"""The recorder: takes exchanges from the event loop, and gives their records to the sinks, in a thread of its own.

The event loop only appends to a queue, and wakes the thread if it sleeps. When the thread can't keep up, exchanges are
dropped and counted, so that forwarding never waits and memory is bounded.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from gateway.config.inspector import Inspector
from gateway.inspector.lines import Lines
from gateway.inspector.records import ReadUsage, RecordMaker
from gateway.inspector.store import LineSink, RecordSink, StoreError
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.observe.record import ExchangeRecord, Scheme
from gateway.observe.redact import describe_exception
from gateway.proxy.capture import Captured, Passed

GATHER = 0.1
"""Seconds in which exchanges are gathered, unless they are large: the thread wakes ten times a second."""
_BATCH = 256
"""Most records that a sink gets at a time."""
_LINES = 1024
"""Most lines that a sink gets at a time: they are made in about 1 ms."""
_LARGE = 4 * 1024 * 1024
"""Bytes of exchanges whose records a sink gets at a time; one exchange may be larger. No more are gathered."""
_MANY = 2048
"""No more exchanges are gathered."""
_TURN = 0.002
"""Seconds of work after which the thread pauses as long, so that the event loop gets its turn, unless much waits.

Each change of threads costs as much as a record: the other one's data have left the processor's caches.
"""
_LOG_EVERY = 60.0


class Recorder:
    """Implements `gateway.proxy.capture.Capture`.

    open_sinks: called in a thread; the recorder closes the sinks. bodies: of runs, are recorded. traced_only: see
    `Capture`. scheme: of the data port.

    Raises:
        ConfigError: a path or an expression of the settings can't be used.
    """

    def __init__(
        self,
        settings: Inspector,
        open_sinks: Callable[[], Sequence[RecordSink]],
        log: Logger,
        metrics: Metrics,
        read_usage: ReadUsage | None = None,
        clock: Callable[[], float] = time.monotonic,
        bodies: bool = True,
        traced_only: bool = False,
        scheme: Scheme = "http",
    ) -> None:
        self.settings = settings
        self.passthrough = settings.passthrough != "none"
        self.bodies = settings.passthrough == "bodies"
        self.body_limit = settings.body_bytes
        self.traced_only = traced_only
        self._open_sinks = open_sinks
        self._sinks: Sequence[RecordSink] = ()
        self._log = log
        self._metrics = metrics
        self._clock = clock
        keep = self._keep if settings.media == "keep" else None
        self._maker = RecordMaker(settings, os.getpid(), keep, read_usage, bodies, scheme)
        self._queue: deque[tuple[Captured, int] | Passed] = deque()
        self._taken = self._done = 0  # bytes; each is written by one thread only
        self._many, self._large = min(_MANY, settings.queue // 2), min(_LARGE, settings.queue_bytes // 2)
        self._awake = self._stopping = False
        self._wake = threading.Event()
        self._gather = threading.Event()
        self._faults: dict[str, str] = {}
        self._logged = metrics.records_dropped()  # by the recorder before this one
        self._log_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    async def start(self) -> None:
        """Open the sinks, and start the thread.

        Raises:
            StoreError, ConfigError: a sink can't be opened.
        """
        self._sinks = await asyncio.to_thread(self._open_sinks)
        self._thread.start()

    async def stop(self, seconds: float) -> None:
        """Record what waits, and close the sinks. What is not recorded after `seconds` is dropped."""
        if not self._thread.is_alive():
            return
        self._stopping = True
        self._gather.set()
        self._wake.set()
        await asyncio.to_thread(self._thread.join, seconds)
        if self._thread.is_alive():
            self._drop("stopped", len(self._queue))
            self._queue.clear()
            self._log_rest()

    # On the event loop

    def add(self, captured: Captured) -> None:
        """See `Capture`."""
        size = captured.bodies.size if captured.bodies is not None else 0
        queue = self._queue
        waiting = self._taken - self._done + size
        if len(queue) >= self.settings.queue or waiting > self.settings.queue_bytes:
            self._metrics.record_dropped("queue")
            return
        self._taken += size
        queue.append((captured, size))
        if not self._awake:
            self._awake = True
            self._wake.set()
        if (waiting > self._large or len(queue) > self._many) and not self._gather.is_set():
            self._gather.set()

    def add_passed(self, passed: Passed) -> None:
        """See `Capture`."""
        queue = self._queue
        waiting = len(queue)
        if waiting >= self.settings.queue:
            self._metrics.record_dropped("queue")
            return
        queue.append(passed)
        if not self._awake:
            self._awake = True
            self._wake.set()
        if waiting >= self._many and not self._gather.is_set():
            self._gather.set()

    # In the thread

    def _run(self) -> None:
        while not self._stopping or self._queue:
            self._wake.wait()
            self._wake.clear()
            self._gather.wait(GATHER)
            if not self._stopping:
                self._gather.clear()
            while self._queue:
                self._record(*self._next())
                self._log_faults()
            self._awake = False
            if self._queue or self._stopping:  # an exchange that came meanwhile has not set the event
                self._wake.set()
        self._close()
        self._log_rest()

    def _next(self) -> tuple[list[ExchangeRecord], Lines | None]:
        """Make the records and lines of the next exchanges: a few hundred, or one that is large."""
        records: list[ExchangeRecord] = []
        passed: list[tuple[Passed, int]] = []
        total = 0
        turn = time.monotonic()
        offset = time.time() - turn
        while self._queue and len(records) < _BATCH and len(passed) < _LINES and total < _LARGE:
            item = self._queue.popleft()
            if len(item) != 2:
                passed.append((item, len(records) + len(passed)))
                continue
            captured, size = item
            total += size
            try:
                records.append(self._maker.make(captured, offset))
            except Exception:
                self._log.exception("internal error", request_id=captured.id)
                self._drop("fault")
            self._done += size
            if time.monotonic() - turn > _TURN:
                self._pause()
                turn = time.monotonic()
        return records, self._make_lines(passed, offset) if passed else None

    def _pause(self) -> None:
        """Let the event loop have its turn, unless the queue is half full. Python ends a turn after 1 ms anyway."""
        settings, waiting = self.settings, self._taken - self._done
        if len(self._queue) <= settings.queue // 2 and waiting <= settings.queue_bytes // 2:
            time.sleep(0 if self._gather.is_set() else _TURN)

    def _make_lines(self, passed: list[tuple[Passed, int]], offset: float) -> Lines | None:
        try:
            return self._maker.lines.make(passed, offset)
        except Exception:
            self._log.exception("internal error")
            self._drop("fault", len(passed))
            return None

    def _record(self, records: list[ExchangeRecord], lines: Lines | None) -> None:
        count = len(records) + (len(lines.lines) if lines is not None else 0)
        for sink in self._sinks if count else ():
            try:
                if lines is None:
                    sink.add(records)
                elif isinstance(sink, LineSink):
                    sink.add_with_lines(records, lines)
                else:
                    sink.add(lines.among(records))
            except Exception as error:
                self._failed(sink, error, count)

    def _keep(self, sha256: str, media_type: str, data: bytes) -> None:
        for sink in self._sinks:
            try:
                sink.keep_medium(sha256, media_type, data)
            except Exception as error:
                self._failed(sink, error, 0)

    def _close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                self._failed(sink, error, 0)

    def _failed(self, sink: RecordSink, error: Exception, count: int) -> None:
        """Count records that a sink did not take, and note why."""
        known = isinstance(error, StoreError)
        lost = error.lost if isinstance(error, StoreError) else None
        self._drop(sink.name, count if lost is None else lost)
        self._faults[sink.name] = str(error) if known else describe_exception(error, False)

    def _drop(self, reason: str, count: int = 1) -> None:
        self._metrics.record_dropped(reason, count)

    def _log_rest(self) -> None:
        """Log at once why records were dropped, as there will be no other time."""
        self._log_at = float("-inf")
        self._log_faults()

    def _log_faults(self) -> None:
        """Log once a minute why records were dropped."""
        now = self._clock()
        if now < self._log_at:
            return
        dropped = self._metrics.records_dropped()
        news = {name: count - self._logged.get(name, 0) for name, count in dropped.items()}
        parts = [f"{name}: {count}" for name, count in news.items() if count]
        parts += [f"{name}: {fault}" for name, fault in self._faults.items()]
        if parts:
            self._log_at = now + _LOG_EVERY
            self._logged = dropped
            self._faults = {}
            self._log.warning("records dropped", reason="; ".join(parts))

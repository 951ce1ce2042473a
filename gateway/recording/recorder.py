"""The recorder: takes exchanges from the event loop, and gives their records to the sinks, in a thread of its own.

The event loop only appends to a queue, and wakes the thread if it sleeps. When the thread can't keep up, exchanges are
dropped and counted, so that forwarding never waits and memory is bounded.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from gateway.config.inspector import Inspector
from gateway.config.schema import Settings
from gateway.execute.run_events import recorded_usage
from gateway.observe.logs import LONGEST, Logger, describe_fault
from gateway.observe.metrics import Metrics
from gateway.observe.record import ExchangeRecord, Scheme
from gateway.policy.usage import Prices
from gateway.proxy.capture import Capturable, Captured
from gateway.recording.records import ReadUsage, RecordMaker
from gateway.recording.sinks.registry import OpenSinks, open_all_sinks, open_sinks, open_store
from gateway.recording.store import Loss, RecordSink, StoreError, TargetWeight

Waiting = deque[tuple[Captured, int]]
"""Exchanges to be recorded, with the bytes of their bodies."""
BATCH = 256
"""Most records that a sink gets at a time."""
_TRACED = 100
"""Most different faults whose traceback is logged."""
LARGE = 4 * 1024 * 1024
"""Bytes of exchanges whose records a sink gets at a time; one exchange may be larger."""


class RecordWriter:
    """Writes to the sinks, which `close` closes.

    A record that can't be made, or that a sink can't take, is lost alone. drop: called with the reason and the number
    of exchanges that are not recorded. faults: what the sinks last reported, by their names, until that is logged.
    """

    def __init__(self, drop: Callable[[str, int], None], log: Logger) -> None:
        self._drop = drop
        self._log = log
        self._sinks: Sequence[RecordSink] = ()
        self._traced: set[str] = set()
        """Faults whose traceback is in the log: a client could send many records with the same fault."""
        self.faults: dict[str, str] = {}

    def use(self, sinks: Sequence[RecordSink]) -> None:
        """Write to `sinks` from now on."""
        self._sinks = sinks

    def write_next(self, maker: RecordMaker, waiting: Waiting, made: Callable[[int], None]) -> None:
        """Record the next exchanges: a few hundred, or one that is large.

        made: called after each one, with the bytes of its bodies.
        """
        records: list[ExchangeRecord] = []
        total = 0
        offset = time.time() - time.monotonic()
        while waiting and len(records) < BATCH and total < LARGE:
            captured, size = waiting.popleft()
            total += size
            try:
                records.append(maker.make(captured, offset))
            except Exception as error:
                self.note_fault(error, captured.id)
            made(size)
        if records:
            self.write(records)

    def write(self, records: Sequence[ExchangeRecord]) -> None:
        """Give records to each sink."""
        for sink in self._sinks:
            self._give(sink, records)

    def note_fault(self, error: Exception, request_id: str = "") -> None:
        """Count an exchange that can't be recorded, and log why."""
        self._drop(f"fault:{type(error).__name__}", 1)
        self.faults["fault"] = reason = describe_fault(error)
        if reason not in self._traced and len(self._traced) < _TRACED:
            self._traced.add(reason)
            self._log.error("internal error", request_id=request_id, reason=reason, exc_info=error)

    def _give(self, sink: RecordSink, records: Sequence[ExchangeRecord]) -> None:
        """Give records to a sink; if it fails, in ever smaller parts, so that only those that it can't take are lost.

        A `StoreError` is one of the sink, not of a record: another try would fail, too.
        """
        try:
            sink.add(records)
        except StoreError as error:
            self._failed(sink, error, len(records))
        except Exception as error:
            if len(records) > 1:
                half = len(records) // 2
                self._give(sink, records[:half])
                self._give(sink, records[half:])
            else:
                self._failed(sink, error, 1)

    def keep_medium(self, sha256: str, media_type: str, data: bytes) -> None:
        """Give a medium to the sinks."""
        for sink in self._sinks:
            try:
                sink.keep_medium(sha256, media_type, data)
            except Exception as error:
                self._failed(sink, error, 0)

    def note_losses(self, losses: Sequence[Loss]) -> bool:
        """Tell the sinks what was not recorded. Return whether they have noted it."""
        noted = True
        for sink in self._sinks:
            try:
                sink.note_losses(losses)
            except Exception as error:
                self._failed(sink, error, 0)
                noted = False
        return noted

    def close(self) -> None:
        """Close the sinks."""
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                self._failed(sink, error, 0)

    def _failed(self, sink: RecordSink, error: Exception, count: int) -> None:
        """Count records that a sink did not take, and note why."""
        if isinstance(error, StoreError):
            self._drop(sink.name, count if error.lost is None else error.lost)
            self.faults[sink.name] = str(error)
        else:
            self._drop(f"{sink.name}:{type(error).__name__}", count)
            self.faults[sink.name] = describe_fault(error)


_LOG_EVERY = 60.0


class DropLog:
    """Logs once a minute. clock: in seconds."""

    def __init__(self, log: Logger, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._logged = metrics.records_dropped()  # by the recorder before this one
        self._log_at = float("-inf")

    def write(self, faults: Mapping[str, str], now: bool = False) -> bool:
        """Log what was dropped since the last time, a line for each reason. Return True if there is one.

        faults: what sinks reported, by their names. now: even if the last line is less than a minute old.
        """
        if self._clock() < self._log_at and not now:
            return False
        dropped = self._metrics.records_dropped()
        news: Counter[str] = Counter()
        for reason, count in dropped.items():
            news[reason.partition(":")[0]] += count - self._logged.get(reason, 0)
        reasons = {name: f"{name}: {count}" for name, count in news.items() if count}
        for name, fault in faults.items():
            reasons[name] = f"{reasons[name]}; {fault}" if name in reasons else f"{name}: {fault}"
        if not reasons:
            return False
        self._log_at = self._clock() + _LOG_EVERY
        self._logged = dropped
        for reason in reasons.values():  # a line each, because the log does not show long texts
            self._log.warning("records dropped", reason=reason[:LONGEST])
        return True


GATHER = 0.1
"""Seconds in which exchanges are gathered, unless they are large: the thread wakes ten times a second."""
MANY = 2048
"""Exchanges from which no more are gathered."""
_TURN = 0.002
"""Seconds of work after which the thread pauses as long, so that the event loop gets its turn, unless much waits."""


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
        self._metrics = metrics
        self._drops = DropLog(log, metrics, clock)
        self._writer = RecordWriter(metrics.record_dropped, log)
        keep = self._writer.keep_medium if settings.media == "keep" else None
        self._maker = RecordMaker(settings, os.getpid(), keep, read_usage, bodies, scheme)
        self._noted = metrics.records_dropped()  # by the recorder before this one
        self._queue: Waiting = deque()
        self._taken = self._done = 0  # bytes; each is written by one thread only
        self._many, self._large = min(MANY, settings.queue // 2), min(LARGE, settings.queue_bytes // 2)
        self._turn = 0.0
        self._awake = self._stopping = False
        self._wake = threading.Event()
        self._gather = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    async def start(self) -> None:
        """Open the sinks, and start the thread.

        Raises:
            StoreError, ConfigError: a sink can't be opened.
        """
        self._writer.use(await asyncio.to_thread(self._open_sinks))
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
            self._metrics.record_dropped("stopped", len(self._queue))
            self._queue.clear()
            self._log_faults(now=True)

    # On the event loop

    def add(self, exchange: Capturable, ended: float) -> None:
        """See `Capture`."""
        try:
            captured = exchange.captured(ended)
        except Exception as error:
            self._writer.note_fault(error)
            return
        size = 0 if captured.bodies is None else captured.bodies.size
        queue, waiting = self._queue, self._taken - self._done + size
        if len(queue) >= self.settings.queue or (size and waiting > self.settings.queue_bytes):
            self._metrics.record_dropped("queue")
            return
        self._taken += size
        queue.append((captured, size))
        if not self._awake:
            self._awake = True
            self._wake.set()
        if (waiting > self._large or len(queue) > self._many) and not self._gather.is_set():
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
                self._turn = time.monotonic()
                self._writer.write_next(self._maker, self._queue, self._made)
                self._note_losses()
                self._log_faults()
            self._awake = False
            if self._queue or self._stopping:  # an exchange that came meanwhile has not set the event
                self._wake.set()
        self._writer.close()
        self._log_faults(now=True)  # there will be no other time

    def _made(self, size: int) -> None:
        """Count the bytes of an exchange that is done, and pause after some time."""
        self._done += size
        if time.monotonic() - self._turn > _TURN:
            self._pause()
            self._turn = time.monotonic()

    def _pause(self) -> None:
        """Let the event loop have its turn, unless the queue is half full. Python ends a turn after 1 ms anyway."""
        settings, waiting = self.settings, self._taken - self._done
        if len(self._queue) <= settings.queue // 2 and waiting <= settings.queue_bytes // 2:
            time.sleep(0 if self._gather.is_set() else _TURN)

    def _note_losses(self) -> None:
        """Tell the sinks what was dropped since they noted it last."""
        dropped, now = self._metrics.records_dropped(), time.time()
        losses = [
            Loss(reason, self._writer.faults.get(reason.partition(":")[0], ""), count, now)
            for reason, total in dropped.items()
            if (count := total - self._noted.get(reason, 0))
        ]
        if losses and self._writer.note_losses(losses):
            self._noted = dropped

    def _log_faults(self, now: bool = False) -> None:
        if self._drops.write(self._writer.faults, now):
            self._writer.faults.clear()


_GRACE = 5.0
"""Seconds for what is still to be recorded when recording stops."""


class Recording:
    """Records, or does not.

    recorder: None if neither the inspector nor traces nor the access log are on. store: what the page reads, if
    anything. sinks: opens the inspector's; by default, the settings' stores. They are used in a thread.
    """

    def __init__(self, settings: Settings, log: Logger, metrics: Metrics, sinks: OpenSinks | None = None) -> None:
        self._settings = settings
        self._log = log
        self._noting = asyncio.Lock()
        self.recorder: Recorder | None = None
        inspector, traces = settings.inspector, settings.telemetry.traces
        others = inspector.enabled or settings.logs.access != "off"
        if others or traces.endpoint:
            bodies, traced_only = inspector.enabled or traces.messages, not others
            scheme: Scheme = "https" if settings.listen.tls.cert_file else "http"
            self.recorder = Recorder(
                recorded(settings),
                lambda: open_all_sinks(settings, log, sinks or open_sinks),
                log,
                metrics,
                partial(recorded_usage, prices=Prices(settings.policy.prices)),
                bodies=bodies,
                traced_only=traced_only,
                scheme=scheme,
            )
        self.store = open_store(inspector)

    def is_for(self, settings: Settings) -> bool:
        """Return True if the recording need not change for `settings`."""
        return _parts(settings) == _parts(self._settings)

    async def start(self) -> None:
        """Open the sinks.

        Raises:
            StoreError: one can't be opened.
        """
        if self.recorder is not None:
            await self.recorder.start()

    async def note_weights(self, weights: Mapping[str, Sequence[TargetWeight]]) -> None:
        """Note the weights of the routes that are in force now. If the store fails, the log says so."""
        if self.store is None:
            return
        at = time.time()
        async with self._noting:
            try:
                await asyncio.to_thread(self.store.note_weights, at, weights)
            except StoreError as error:
                self._log.warning("weights of routes not recorded", reason=str(error))

    async def stop(self) -> None:
        """Record what is left, and close."""
        try:
            if self.recorder is not None:
                await self.recorder.stop(_GRACE)
        finally:
            if self.store is not None:
                async with self._noting:
                    await asyncio.to_thread(self.store.close)


def recorded(settings: Settings) -> Inspector:
    """Return the inspector's settings as the recorder needs them for all sinks."""
    inspector, has_access_log = settings.inspector, settings.logs.access != "off"
    passthrough = inspector.passthrough if inspector.enabled else "none"
    if has_access_log and passthrough == "none":
        passthrough = "line"
    return replace(inspector, passthrough=passthrough, media=inspector.media if inspector.enabled else "hash")


def _parts(settings: Settings) -> tuple[object, ...]:
    logs = settings.logs
    return settings.inspector, settings.telemetry, settings.policy.prices, logs.access, logs.access_file

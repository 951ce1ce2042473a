"""The recorder for the event loop: gathers exchanges for a process that records them.

That process reads them from this one's memory. While it records those of one gathering, the next exchanges are gathered
in the other. When it can't keep up, exchanges are dropped and counted, so that forwarding never waits and memory is
bounded. When it ends, another one is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from gateway.config.inspector import Inspector
from gateway.config.schema import Settings
from gateway.inspector.drop_log import DropLog
from gateway.inspector.process.gathering import Gathering, Numbers
from gateway.inspector.process.messages import Plan, Report
from gateway.inspector.process.own_memory import open_own_memory
from gateway.inspector.process.recorder_process import RecorderProcess
from gateway.inspector.recorder import GATHER, MANY
from gateway.inspector.records import make_redactor
from gateway.inspector.store import StoreError
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.observe.record import Scheme
from gateway.observe.redact import describe_fault
from gateway.proxy.capture import Capturable, Captured, Passed

_FIRST, _LONGEST_PAUSE = 0.2, 30.0
"""Seconds before the process is started again: the first time, and at most. The pause doubles each time."""
_STEADY = 10.0
"""Seconds after which the pause starts over."""
_LARGE = 8 << 20
"""Bytes that are announced at once, before `GATHER` is over."""
_AT_ONCE = 32
"""Exchanges that are gathered at a time: their code and tables then are in the processor's caches for all but one."""


class ProcessRecorder:
    """Implements `gateway.proxy.capture.Capture`.

    recorded: what is recorded for all sinks. bodies: of runs, are recorded. traced_only: see `Capture`. scheme: of the
    data port. clock: for the log.

    Raises:
        ConfigError: a path or an expression of the settings can't be used.
    """

    def __init__(
        self,
        settings: Settings,
        recorded: Inspector,
        log: Logger,
        metrics: Metrics,
        bodies: bool = True,
        traced_only: bool = False,
        scheme: Scheme = "http",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        make_redactor(recorded)
        self.settings = recorded
        self.passthrough = recorded.passthrough != "none"
        self.bodies = recorded.passthrough == "bodies"
        self.body_limit = recorded.body_bytes
        self.traced_only = traced_only
        fields: Mapping[str, Any] = structlog.get_context(log)
        self._plan = Plan(settings, recorded, bodies, scheme, os.getpid(), fields)
        self._log = log
        self._metrics = metrics
        self._drops = DropLog(log, metrics, clock)
        self._faults: dict[str, str] = {}
        self._many, self._large = min(MANY, recorded.queue // 2), min(_LARGE, recorded.queue_bytes // 2)
        self._at_once = min(_AT_ONCE, self._many)
        self._ended: list[tuple[Capturable, float]] = []
        """Exchanges that are not gathered yet, and when they ended."""
        self._held = 0
        """Bytes of their bodies."""
        self._sent_count = self._sent_size = 0
        self.done = 0
        """Exchanges that the process has recorded or dropped."""
        self._timer: asyncio.TimerHandle | None = None
        """Calls `_announce`, if anything waits to be announced."""
        self._stopping = asyncio.Event()
        self._empty = asyncio.Event()
        """Set when the recorder is stopped and nothing waits any more."""
        self._task: asyncio.Task[None] | None = None
        self._process: RecorderProcess | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def waiting(self) -> tuple[int, int]:
        """Number of exchanges that the process is at, and that are to be announced."""
        return self._sent_count, self._gathering.count + len(self._ended)

    async def start(self) -> None:
        """Start the process, and wait until it has opened the sinks.

        Raises:
            StoreError: a sink can't be opened. OSError, ProcessEnded: the process can't be started.
        """
        self._loop = asyncio.get_running_loop()
        numbers = Numbers()
        self._gathering, self._announced = Gathering(numbers), Gathering(numbers)
        self._memory = open_own_memory()
        try:
            self._process = await self._start_process()
        except BaseException:
            await self._close()
            raise
        self._task = asyncio.create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """Record what waits, and close the sinks. What is not recorded after `seconds` is dropped."""
        task = self._task
        if task is None:
            return
        self._stopping.set()
        self._announce()
        await asyncio.wait({task}, timeout=seconds)
        self._task = None
        task.cancel()
        await asyncio.wait({task})
        dropped = sum(self.waiting)
        if dropped:
            self._metrics.record_dropped("stopped", dropped)
        self._drops.write(self._faults, now=True)
        await self._close()

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            await self._process.kill()
            self._process = None
        os.close(self._memory)

    # On the path of requests

    def add(self, exchange: Capturable, ended: float) -> None:
        """See `Capture`."""
        if self._task is None:
            self._metrics.record_dropped("stopped")
            return
        waiting = self._ended
        waiting.append((exchange, ended))
        self._held += exchange.held
        if len(waiting) >= self._at_once or self._held > self._large:
            self._gather()
            if self._gathering.size > self._large or self._gathering.count > self._many:
                self._announce()
                return
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER, self._announce)

    def _gather(self) -> None:
        """Encode the exchanges that have ended, as far as there is room for them."""
        waiting, self._ended, self._held = self._ended, [], 0
        settings, gathering = self.settings, self._gathering
        room, room_for_bytes = settings.queue - self._sent_count, settings.queue_bytes - self._sent_size
        gathered: list[Captured | Passed] = []
        size = gathering.size
        for exchange, ended in waiting:
            held = exchange.held
            if gathering.count + len(gathered) >= room or size + held > room_for_bytes:
                self._metrics.record_dropped("queue")
                continue
            size += held
            try:
                gathered.append(exchange.captured(ended, gathering))
            except Exception as error:
                self._note_fault(error)
        for fault in gathering.add(gathered):
            self._note_fault(fault)

    def _note_fault(self, error: Exception) -> None:
        """Count an exchange that can't be recorded, and log why."""
        self._metrics.record_dropped(f"fault:{type(error).__name__}")
        reason = describe_fault(error)
        if self._faults.get("fault") != reason:
            self._log.error("internal error", reason=reason, exc_info=error)
        self._faults["fault"] = reason

    def _announce(self) -> None:
        """Let the process record what is gathered, and gather the next exchanges meanwhile.

        If the process is busy, this is done when it has reported.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        process = self._process
        if self._sent_count or process is None or self._empty.is_set():
            return
        self._gather()
        announced = self._gathering
        if not announced.count:
            if self._stopping.is_set():
                self._empty.set()
            return
        self._gathering, self._announced = self._announced, announced
        self._sent_count, self._sent_size = announced.count, announced.size
        try:
            message = announced.finish()
        except Exception as error:
            self._log.exception("internal error", reason=describe_fault(error))
            self._forget("fault")
            self._announce()  # there will be no report that does so
            return
        try:
            process.send(message)
        except OSError as error:
            process.fail(error)

    def _recorded(self, report: Report) -> None:
        """Note that the process is done with what was announced."""
        self._note(report)
        self.done += self._sent_count
        self._forget()
        if self._timer is None or self._stopping.is_set():
            self._announce()

    # In the background

    async def _run(self) -> None:
        """Keep the process running until the recorder is stopped and the sinks are closed."""
        pause = _FIRST
        while True:
            began = time.monotonic()
            try:
                if self._process is None:
                    self._process = await self._start_process()
                self._announce()
                await self._work(self._process)
                return
            except Exception as error:  # of any class: nothing would be recorded any more
                pause = _FIRST if time.monotonic() - began > _STEADY else pause
                await self._process_ended(error, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _work(self, process: RecorderProcess) -> None:
        """Wait until the recorder is stopped and all is recorded; close the sinks.

        Raises:
            ProcessEnded, OSError: the process has ended.
        """
        await process.wait_for(asyncio.ensure_future(self._empty.wait()))
        self._note(await process.close())

    def _forget(self, reason: str = "") -> None:
        """Give up what was announced. reason: why it is not recorded; "" if it is."""
        if reason and self._sent_count:
            self._metrics.record_dropped(reason, self._sent_count)
        self._sent_count = self._sent_size = 0
        self._announced.clear()

    def _note(self, report: Report) -> None:
        for reason, count in report.dropped.items():
            self._metrics.record_dropped(reason, count)
        self._faults |= report.faults
        if self._drops.write(self._faults):
            self._faults = {}

    async def _process_ended(self, error: Exception, pause: float) -> None:
        """Clean up after the process, and count the exchanges that it had."""
        process, self._process = self._process, None
        status = await process.kill() if process is not None else None
        self._forget("process")
        self._log.error("recorder ended", status=status, reason=str(error), again_in=pause)
        self._note(Report())

    async def _start_process(self) -> RecorderProcess:
        """Start the process, and wait until it has opened the sinks.

        Raises:
            StoreError: a sink can't be opened. OSError, ProcessEnded: the process can't be started.
        """
        process = await RecorderProcess.start(self._memory, self._recorded)
        try:
            message = self._announced.finish_plan(self._plan)
            report = await process.ask(message)
            if report.failure:
                raise StoreError(report.failure)
            self._note(report)
        except BaseException:
            await process.kill()
            raise
        finally:
            self._announced.clear()
        return process

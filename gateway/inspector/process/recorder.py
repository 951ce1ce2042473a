"""The recorder for the event loop: copies exchanges to shared memory, for a process that records them.

There are two memories. While the process records what is in one, the next exchanges are gathered in the other. When the
process can't keep up, exchanges are dropped and counted, so that forwarding never waits and memory is bounded. When it
ends, another one is started.
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
from gateway.inspector.process.recorder_process import RecorderProcess
from gateway.inspector.process.shared_memory import SharedMemory
from gateway.inspector.recorder import GATHER, MANY
from gateway.inspector.records import make_redactor
from gateway.inspector.store import StoreError
from gateway.inspector.writer import LARGE
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.observe.record import Scheme
from gateway.proxy.capture import Captured, Passed

_FIRST, _LONGEST_PAUSE = 0.2, 30.0
"""Seconds before the process is started again: the first time, and at most. The pause doubles each time."""
_STEADY = 10.0
"""Seconds after which the pause starts over."""


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
        self._many, self._large = min(MANY, recorded.queue // 2), min(LARGE, recorded.queue_bytes // 2)
        self._sent_count = self._sent_size = 0
        self.done = 0
        """Exchanges that the process has recorded or dropped."""
        self._awake = False
        self._wake, self._full, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._process: RecorderProcess | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def waiting(self) -> tuple[int, int]:
        """Number of exchanges that the process is at, and that are gathered."""
        return self._sent_count, self._gathering.count

    async def start(self) -> None:
        """Start the process, and wait until it has opened the sinks.

        Raises:
            StoreError: a sink can't be opened. OSError, ProcessEnded: the process can't be started.
        """
        self._memories = [SharedMemory.create() for _ in range(2)]
        numbers = Numbers()
        self._gathering, self._announced = (Gathering(at, self._memories[at], numbers) for at in range(2))
        try:
            self._process = await self._start_process()
        except BaseException:
            await self._close()
            raise
        self._task = asyncio.create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """Record what waits, and close the sinks. What is not recorded after `seconds` is dropped."""
        task, self._task = self._task, None
        if task is None:
            return
        for event in (self._stopping, self._wake, self._full):
            event.set()
        await asyncio.wait({task}, timeout=seconds)
        task.cancel()
        await asyncio.wait({task})
        dropped = self._sent_count + self._gathering.count
        if dropped:
            self._metrics.record_dropped("stopped", dropped)
        self._drops.write(self._faults, now=True)
        await self._close()

    async def _close(self) -> None:
        if self._process is not None:
            await self._process.kill()
            self._process = None
        for memory in self._memories:
            memory.close()

    # On the path of requests

    def add(self, captured: Captured) -> None:
        """See `Capture`."""
        size = captured.bodies.size if captured.bodies is not None else 0
        gathering = self._gathering
        count, waiting = gathering.count + self._sent_count, gathering.size + self._sent_size + size
        if count >= self.settings.queue or waiting > self.settings.queue_bytes or self._task is None:
            self._metrics.record_dropped("queue" if self._task is not None else "stopped")
            return
        try:
            gathering.add(captured, size)
        except Exception:
            self._log.exception("internal error", request_id=captured.id)
            self._metrics.record_dropped("fault", gathering.drop_waiting())
            return
        if not self._awake:
            self._awake = True
            self._wake.set()
        if gathering.size > self._large or gathering.count > self._many:
            self._full.set()

    def add_passed(self, passed: Passed) -> None:
        """See `Capture`."""
        gathering = self._gathering
        if gathering.count + self._sent_count >= self.settings.queue or self._task is None:
            self._metrics.record_dropped("queue" if self._task is not None else "stopped")
            return
        gathering.add_passed(passed)
        if not self._awake:
            self._awake = True
            self._wake.set()
        if gathering.count > self._many:
            self._full.set()

    # In the background

    async def _run(self) -> None:
        """Announce exchanges until the recorder is stopped; start the process again when it ends."""
        pause = _FIRST
        while True:
            began = time.monotonic()
            try:
                if self._process is None:
                    self._process = await self._start_process()
                await self._announce_all(self._process)
                return
            except Exception as error:  # of any class: nothing would be recorded any more
                pause = _FIRST if time.monotonic() - began > _STEADY else pause
                await self._ended(error, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _announce_all(self, process: RecorderProcess) -> None:
        """Announce what is gathered, again and again. Return when the recorder is stopped and the sinks are closed."""
        while True:
            if not self._gathering.count:
                if self._stopping.is_set():
                    break
                self._awake = False
                for memory in self._memories:
                    memory.shrink()
                await self._wake.wait()
                self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER):
                    await self._full.wait()
            if not self._stopping.is_set():
                self._full.clear()
            if self._gathering.count:
                await self._announce(process)
        self._note(await process.close())

    async def _announce(self, process: RecorderProcess) -> None:
        """Let the process record what is gathered, and gather in the other memory meanwhile."""
        self._gathering, self._announced = self._announced, self._gathering
        announced = self._announced
        self._sent_count, self._sent_size = announced.count, announced.size
        try:
            message = announced.finish()
        except Exception:
            self._log.exception("internal error")
            self._forget("fault")
        else:
            self._note(await process.ask(message))
            self.done += self._sent_count
            self._forget()

    def _forget(self, reason: str = "") -> None:
        """Empty the memory that was announced. reason: why what was in it is not recorded; "" if it is."""
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

    async def _ended(self, error: Exception, pause: float) -> None:
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
        process = await RecorderProcess.start([memory.descriptor for memory in self._memories])
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

"""``python -m gateway.inspector.process <socket> <memory>``: records what a gateway's process announces.

Arguments are descriptors; <memory>: of that process (`own_memory`). It ends when the gateway's process has closed its
end of the socket, and what was announced by then is recorded. If that process has died, it records what it had read.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
from collections import deque

from gateway.allocation import keep_freed_memory
from gateway.inspector.all_sinks import open_all_sinks
from gateway.inspector.process.arrived import BatchReader
from gateway.inspector.process.messages import ENCODER, LONGEST, READ_BATCH, Batch, Plan, Report
from gateway.inspector.process.own_memory import MemoryGone, read_memory
from gateway.inspector.records import RecordMaker
from gateway.inspector.usage import usage_reader
from gateway.inspector.writer import BATCH, RecordWriter, Waiting
from gateway.observe.logs import configure
from gateway.observe.redact import describe_fault
from gateway.upstream.client import head_limits

_GARBAGE = 20_000
"""New objects between two runs of the garbage collector. Exchanges and records create no cycles."""


class BatchRecorder:
    """Records the batches that a gateway announces. channel: the socket. memory: of the gateway's process."""

    def __init__(self, channel: socket.socket, memory: int) -> None:
        self._channel = channel
        self._memory = memory
        self._dropped: dict[str, int] = {}

    def run(self) -> None:
        """Record until the socket is closed."""
        begin = self._receive()
        if begin is None:
            return
        try:
            plan: Plan = pickle.loads(read_memory(self._memory, *begin.tables))  # the gateway's process wrote it
        except MemoryGone:
            return
        settings = plan.settings
        log = configure(settings.logs.level, settings.logs.format, payloads=settings.logs.payloads).bind(**plan.log)
        self._writer = RecordWriter(self._drop, log)
        keep = self._writer.keep_medium if plan.recorded.media == "keep" else None
        read_usage = usage_reader(settings)
        self._reader = BatchReader(head_limits(settings.limits), self._memory, self._writer.note_fault)
        try:
            self._maker = RecordMaker(plan.recorded, plan.worker, keep, read_usage, plan.bodies, plan.scheme)
            self._writer.use(open_all_sinks(settings, log))
        except Exception as error:
            self._send(Report(failure=str(error) or repr(error)))
            return
        self._report()
        try:
            while (batch := self._receive()) is not None:
                self._record(batch)
                self._report()
        except Exception as error:  # the gateway's process counts the batch, and starts another process
            log.exception("internal error", reason=describe_fault(error))
            return
        self._writer.close()
        self._report()

    def _receive(self) -> Batch | None:
        """Return the next batch; None if there are no more."""
        try:
            message = self._channel.recv(LONGEST)
        except OSError:  # the gateway's process was killed before it had read a report
            return None
        return READ_BATCH(message) if message else None

    def _record(self, batch: Batch) -> None:
        waiting: Waiting = deque()
        with contextlib.suppress(MemoryGone):
            for more in self._reader.read(batch):
                waiting += more
                if len(waiting) >= BATCH:
                    self._write(waiting)
        self._write(waiting)

    def _write(self, waiting: Waiting) -> None:
        while waiting:
            self._writer.write_next(self._maker, waiting, lambda _: None)

    def _drop(self, reason: str, count: int) -> None:
        self._dropped[reason] = self._dropped.get(reason, 0) + count

    def _report(self) -> None:
        """Tell the gateway's process that a batch is done."""
        dropped, self._dropped = self._dropped, {}
        faults, self._writer.faults = self._writer.faults, {}
        self._send(Report(dropped, faults))

    def _send(self, report: Report) -> None:
        try:
            self._channel.send(ENCODER.encode(report))
        except OSError:  # the gateway's process has died
            return


def main() -> None:
    """Record for the gateway that has started this process."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal, and systemd, send them to all processes
        signal.signal(name, signal.SIG_IGN)
    keep_freed_memory()
    gc.freeze()
    gc.set_threshold(_GARBAGE, 20, 20)
    control, memory = map(int, sys.argv[1:])
    with socket.socket(fileno=control) as channel:
        BatchRecorder(channel, memory).run()
    os._exit(0)  # threads of the sinks that did not end in time end here


if __name__ == "__main__":
    main()

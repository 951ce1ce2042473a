"""Makes the records of exchanges, and gives them to the sinks. All calls block."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from gateway.inspector.lines import Lines
from gateway.inspector.records import RecordMaker
from gateway.inspector.store import LineSink, RecordSink, StoreError
from gateway.observe.logs import Logger
from gateway.observe.record import ExchangeRecord
from gateway.observe.redact import describe_exception
from gateway.proxy.capture import Captured, Passed

Waiting = deque[tuple[Captured, int] | Passed]
"""Exchanges to be recorded, with the bytes of their bodies, and requests that passed unchanged."""
BATCH = 256
"""Most records that a sink gets at a time."""
_LINES = 1024
"""Most lines that a sink gets at a time: they are made in about 1 ms."""
LARGE = 4 * 1024 * 1024
"""Bytes of exchanges whose records a sink gets at a time; one exchange may be larger."""


class RecordWriter:
    """Writes to the sinks, which `close` closes.

    drop: called with the reason and the number of exchanges that are not recorded. faults: what the sinks last
    reported, by their names, until that is logged.
    """

    def __init__(self, drop: Callable[[str, int], None], log: Logger) -> None:
        self._drop = drop
        self._log = log
        self._sinks: Sequence[RecordSink] = ()
        self.faults: dict[str, str] = {}

    def use(self, sinks: Sequence[RecordSink]) -> None:
        """Write to `sinks` from now on."""
        self._sinks = sinks

    def write_next(self, maker: RecordMaker, waiting: Waiting, made: Callable[[int], None]) -> None:
        """Record the next exchanges: a few hundred, or one that is large.

        made: called after each one that is no line, with the bytes of its bodies.
        """
        records: list[ExchangeRecord] = []
        passed: list[tuple[Passed, int]] = []
        total = 0
        offset = time.time() - time.monotonic()
        while waiting and len(records) < BATCH and len(passed) < _LINES and total < LARGE:
            item = waiting.popleft()
            if len(item) != 2:
                passed.append((item, len(records) + len(passed)))
                continue
            captured, size = item
            total += size
            try:
                records.append(maker.make(captured, offset))
            except Exception:
                self._log.exception("internal error", request_id=captured.id)
                self._drop("fault", 1)
            made(size)
        self._write(records, self._make_lines(maker, passed, offset) if passed else None)

    def _make_lines(self, maker: RecordMaker, passed: list[tuple[Passed, int]], offset: float) -> Lines | None:
        try:
            return maker.lines.make(passed, offset)
        except Exception:
            self._log.exception("internal error")
            self._drop("fault", len(passed))
            return None

    def _write(self, records: list[ExchangeRecord], lines: Lines | None) -> None:
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

    def keep_medium(self, sha256: str, media_type: str, data: bytes) -> None:
        """Give a medium to the sinks."""
        for sink in self._sinks:
            try:
                sink.keep_medium(sha256, media_type, data)
            except Exception as error:
                self._failed(sink, error, 0)

    def close(self) -> None:
        """Close the sinks."""
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
        self.faults[sink.name] = str(error) if known else describe_exception(error, False)

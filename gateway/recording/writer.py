"""Makes the records of exchanges, and gives them to the sinks. All calls block."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from gateway.observe.logs import Logger
from gateway.observe.record import ExchangeRecord
from gateway.observe.redact import describe_fault
from gateway.proxy.capture import Captured
from gateway.recording.records import RecordMaker
from gateway.recording.store import RecordSink, StoreError

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

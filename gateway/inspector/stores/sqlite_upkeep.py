"""The SQLite store of a process that records: with upkeep in the background.

The text is indexed when few exchanges come in, and old exchanges are deleted even if none come in.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gateway.config.inspector import Inspector, SqliteExchanges
from gateway.inspector.lines import Lines
from gateway.inspector.store import StoreError
from gateway.inspector.stores.sqlite import SqliteStore
from gateway.observe.logs import Logger
from gateway.observe.record import ExchangeRecord

_INTERVAL = 1.0
_TRIM_SECONDS = 60.0
_BUSY = 50
"""With more exchanges a second, indexing waits: it takes more CPU time than everything else about an exchange."""
_STEP_SECONDS = 0.5


def build(settings: Inspector, log: Logger) -> RecordingStore:
    """Return the store of the settings."""
    return RecordingStore(settings.sqlite, log)


class RecordingStore(SqliteStore):
    """A store whose upkeep runs in a thread until it is closed. interval: seconds between two looks at the store."""

    def __init__(self, settings: SqliteExchanges, log: Logger, interval: float = _INTERVAL) -> None:
        super().__init__(settings)
        self._log = log
        self._interval = interval
        self._added = 0
        self._stopped = threading.Event()
        self._reported = ""
        self._thread = threading.Thread(target=self._run, name="inspector-upkeep", daemon=True)
        self._thread.start()

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Store the records in one transaction."""
        self._added += len(records)
        super().add(records)

    def add_with_lines(self, records: Sequence[ExchangeRecord], lines: Lines) -> None:
        """Store records and lines in one transaction. Lines have no text to index."""
        self._added += len(records)
        super().add_with_lines(records, lines)

    def close(self) -> None:
        """End the upkeep after the step that it is in, and close the files."""
        self._stopped.set()
        self._thread.join()
        super().close()

    def _run(self) -> None:
        until_trim = 0.0
        while True:
            added, self._added = self._added, 0
            try:
                if until_trim <= 0:
                    until_trim = _TRIM_SECONDS
                    self.trim()
                if added <= _BUSY * self._interval:
                    self.index(_STEP_SECONDS, self._stopped.is_set)
                self._reported = ""
            except StoreError as error:
                self._report(str(error))
            until_trim -= self._interval
            if self._stopped.wait(self._interval):
                return

    def _report(self, reason: str) -> None:
        """Log a failure once, until there is another one, or none."""
        if reason != self._reported:
            self._reported = reason
            self._log.warning("upkeep failed", reason=reason)

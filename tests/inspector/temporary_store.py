"""A store of exchanges in a temporary directory, whose reads can be made to fail, for tests of what reads one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from gateway.config.inspector import SqliteExchanges
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import StoreError


class TemporaryRecords(SqliteStore):
    """The store in SQLite, without upkeep. fails: the reason with which every read fails, if it is set."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(ignore_cleanup_errors=True)
        super().__init__(SqliteExchanges(self._folder.name, bytes=2**40, seconds=0.0))
        self.fails = ""
        read: Any = self._reader.use

        @contextmanager
        def use() -> Iterator[sqlite3.Connection]:
            if self.fails:
                raise StoreError(self.fails)
            with read() as connection:
                yield connection

        self._reader.use = use  # type: ignore[method-assign]

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

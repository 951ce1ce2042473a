"""Exchanges in SQLite, for the workers of one host and the page.

A directory holds the database, the files of records and the media. Several processes use it at the same time: each
appends to a record file of its own, and positions are given in the transaction that stores the rows, so they grow in
the order in which exchanges become visible. The text is indexed when few exchanges come in, or before a search.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.inspector import SqliteExchanges
from gateway.inspector.lines import Lines
from gateway.inspector.store import Filter, Row, StoreError
from gateway.inspector.stores import sqlite_lines
from gateway.inspector.stores import sqlite_retention as retention
from gateway.inspector.stores import sqlite_views as views
from gateway.inspector.stores import sqlite_words as words
from gateway.inspector.stores.encoding import decode_content, decode_head, join
from gateway.inspector.stores.media_files import MediaFiles
from gateway.inspector.stores.places import sqlite_directory
from gateway.inspector.stores.sqlite_batch import Batch
from gateway.inspector.stores.sqlite_files import RecordFiles, RecordReader
from gateway.inspector.stores.sqlite_filter import condition
from gateway.inspector.stores.sqlite_tables import DATABASE, newest, open_database
from gateway.observe.record import ExchangeRecord
from gateway.storage.paths import UnusableFile
from gateway.storage.sqlite import ForeignFile, error_code, transaction

_FILES = 64
"""The bytes and the age of a record file, and of an index: this part of what the store may have."""
_LARGEST_FILE = 16_777_216
_OLDEST_FILE = 86_400.0
_SEARCH_SECONDS = 5.0
"""How long a search may index what is not indexed yet."""
_MEDIA_SECONDS = 3600.0
"""Media are kept so long before the oldest exchange: they are stored before their exchange, which may take long."""
_POSITIONS = 20_000
"""Most positions of shown rows that are remembered, so that their records are found without a search."""
_NEWEST = 2**62
_OF_A_VALUE = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


class SqliteStore:
    """The store in a directory. clock: the seconds since the epoch."""

    name = "sqlite"

    def __init__(self, settings: SqliteExchanges, clock: Callable[[], float] = time.time) -> None:
        self.directory = sqlite_directory(settings)
        self._settings = settings
        self._clock = clock
        old = min(settings.seconds / _FILES or _OLDEST_FILE, _OLDEST_FILE)
        self._files = RecordFiles(self.directory / "records", min(settings.bytes // _FILES, _LARGEST_FILE), old)
        self._media = MediaFiles(self.directory / "media")
        self._positions: dict[str, int] = {}
        self._writer = _Connection(self.directory)
        self._reader = _Connection(self.directory)

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Store the records in one transaction."""
        self._add(Batch(records, None))

    def add_with_lines(self, records: Sequence[ExchangeRecord], lines: Lines) -> None:
        """Store records and lines in one transaction."""
        self._add(Batch(records, lines))

    def _add(self, batch: Batch) -> None:
        if not batch.data:
            return
        with self._writer.use() as connection:
            try:
                with transaction(connection, "IMMEDIATE"):
                    file, start, is_new = self._files.append(connection, batch.data, self._clock())
                    batch.insert(connection, file, start)
            except BaseException:
                self._files.close()  # the number of a file that was just begun is free again
                raise
            if is_new:
                retention.shrink(connection, self._files, self._settings.bytes)

    def keep_medium(self, sha256: str, media_type: str, data: bytes) -> None:
        """Keep the bytes of a medium in a file."""
        with _file_errors(self.directory):
            self._media.keep(sha256, media_type, data)

    def rows(self, wanted: Filter, before: int | None = None, limit: int = 100) -> list[Row]:
        """Return the newest exchanges, or those before a position, newest first."""
        return self._find(wanted, "<", _NEWEST if before is None else before, "DESC", limit)

    def newer(self, wanted: Filter, after: int, limit: int = 100) -> list[Row]:
        """Return exchanges after a position, oldest first."""
        return self._find(wanted, ">", after, "ASC", limit)

    def newest(self) -> int:
        """Return the last position that was given; 0 for none."""
        with self._reader.use() as connection:
            return newest(connection)

    def _find(self, wanted: Filter, sign: str, position: int, direction: str, limit: int) -> list[Row]:
        where, values, query = condition(wanted)
        newest_first = direction == "DESC"
        position = min(position, _NEWEST)
        if query:
            self._index_for_search()
        reader = RecordReader(self._files)
        with self._reader.use() as connection, transaction(connection, "DEFERRED"), reader:
            found: Iterable[tuple[int, int, int, int]]
            if query:
                found = words.search(connection, query, (sign, position), where, values, newest_first)
            else:
                found = connection.execute(
                    f"SELECT position, file, place, head FROM exchanges WHERE position {sign} ?{where}"
                    f" ORDER BY position {direction}",
                    (position, *values),
                )
            rows = list(islice(_readable(found, reader), limit))
            end = rows[-1].position if rows and len(rows) == limit else _NEWEST if sign == ">" else 0
            after, before = sorted((position, end))
            lines = sqlite_lines.find(connection, reader, wanted, after, before, limit, newest_first)
        rows = sorted((*rows, *lines), key=lambda row: row.position, reverse=newest_first)[:limit]
        if len(self._positions) > _POSITIONS:
            self._positions.clear()
        self._positions.update((row.record.id, row.position) for row in rows)
        return rows

    def _index_for_search(self) -> None:
        """Index what is not indexed yet.

        Raises:
            StoreError: that is too much for one search. Each try indexes a part.
        """
        if not self.index(_SEARCH_SECONDS):
            with self._reader.use() as connection:
                left = words.count_unindexed(connection)
            raise StoreError(f"The text of {left:,} exchanges is not indexed yet. Search again in a few seconds")

    def index(self, seconds: float, busy: Callable[[], bool] = lambda: False) -> bool:
        """Index exchanges until all are, until the time is over, or `busy`. Return whether all are indexed."""
        end = time.monotonic() + seconds
        while True:
            with self._writer.use() as connection:
                if not words.index_step(connection, self._files, self._clock()):
                    return True
            if time.monotonic() >= end or busy():
                return False

    def get(self, id: str) -> ExchangeRecord | None:
        """Return the record with the id, whole; None if there is none."""
        if not id.isascii():
            return None
        found = "SELECT position, file, place, head, size FROM exchanges WHERE id = ?"
        with self._reader.use() as connection, RecordReader(self._files) as reader:
            line = sqlite_lines.get(connection, reader, id)
            if line is not None:
                return line
            row = connection.execute(f"{found} AND position = ?", (id, self._positions.get(id))).fetchone()
            if row is None:
                row = connection.execute(f"{found} ORDER BY position DESC LIMIT 1", (id,)).fetchone()
        if row is None:
            return None
        position, file, place, head, size = row
        with _file_errors(self.directory), RecordReader(self._files) as reader:
            data = reader.read(file, place, size)
        if data is None:
            return None
        return join(_decode(decode_head, data[:head], position), _decode(decode_content, data[head:], position))

    def medium(self, sha256: str) -> tuple[str, bytes] | None:
        """Return media type and bytes; None if they are not kept."""
        with _file_errors(self.directory):
            return self._media.read(sha256)

    def values(self, field: str, limit: int = 100) -> list[str]:
        """Return the different values of a field, the most frequent first.

        Raises:
            InvalidFilter: the field has no values to choose from.
        """
        with self._reader.use() as connection, RecordReader(self._files) as reader:
            return views.values(connection, field, limit, sqlite_lines.count(connection, reader, field))

    def adoption(self, since: float, bucket_seconds: float) -> list[dict[str, Any]]:
        """Return how each agent was run, by time."""
        with self._reader.use() as connection:
            return views.adoption(connection, since, bucket_seconds)

    def legacy_clients(self, since: float) -> list[dict[str, Any]]:
        """Return clients that still send legacy requests."""
        with self._reader.use() as connection:
            return views.legacy_clients(connection, since)

    def refusals(self, since: float) -> list[dict[str, Any]]:
        """Return what was refused, by agent and code."""
        with self._reader.use() as connection:
            return views.refusals(connection, since)

    def clear(self) -> None:
        """Delete all exchanges and media."""
        with self._writer.use() as connection:
            retention.clear(connection, self._files)
            self._media.clear()

    def trim(self) -> None:
        """Delete what is too old or too much, and what killed processes left."""
        now, seconds, before = self._clock(), self._settings.seconds, 0.0
        with self._writer.use() as connection:
            if seconds:
                before = now - seconds
                retention.delete_before(connection, self._files, before, now)
            retention.shrink(connection, self._files, self._settings.bytes)
            retention.tidy(connection, self._files)
            row = connection.execute("SELECT started FROM exchanges ORDER BY position LIMIT 1").fetchone()
            oldest = row[0] if row else now
            kept = max(before, oldest - _MEDIA_SECONDS) if oldest <= now else before  # else the clock was ahead
            self._media.trim(kept, self._settings.media_bytes)

    def close(self) -> None:
        """Close the files."""
        self._writer.close()
        self._reader.close()
        self._files.close()


class _Connection:
    """A connection to the database, opened when it is needed, for one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection. Raises StoreError for all that may happen to files."""
        with self._lock, _file_errors(self._directory):
            try:
                if self._connection is None:
                    self._connection = open_database(self._directory)
                yield self._connection
            except sqlite3.Error as error:
                if error_code(error) != sqlite3.SQLITE_BUSY:
                    self._disconnect()  # the next use opens the file again
                raise

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@contextmanager
def _file_errors(directory: Path) -> Iterator[None]:
    """Raise StoreError for errors of files and of SQLite (https://www.sqlite.org/rescode.html), not for a bad value."""
    try:
        yield
    except (UnusableFile, ForeignFile) as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        where = error.filename or directory
        reason = f"{where} can't be used: {error.strerror or error}. Check the disk and the permissions"
        raise StoreError(reason) from error
    except _OF_A_VALUE:
        raise
    except sqlite3.Error as error:
        path = directory / DATABASE
        match error_code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                reason = f"{path} is locked by another process: {error}. Try again"
            case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
                reason = f"{path} can't be read: {error}. Delete the directory, or name another one"
            case _:
                reason = f"{path} can't be used: {error}. Check the disk and the permissions"
        raise StoreError(reason) from error


def _readable(found: Iterable[tuple[int, int, int, int]], reader: RecordReader) -> Iterator[Row]:
    """Yield the rows whose heads can be read: files are deleted meanwhile, and a loss of power may have cut one."""
    for position, *where in found:
        head = reader.read(*where)
        if head is not None:
            yield Row(position, _decode(decode_head, head, position))


def _decode(decode: Callable[[bytes], Any], data: bytes, position: int) -> Any:
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        reason = f"Exchange {position} can't be read: {error}. Was it written by another version of the gateway?"
        raise StoreError(reason) from error

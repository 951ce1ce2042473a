"""Exchanges in SQLite, for the workers of one host and the page.

A directory holds the database and the media. Several processes use it at the same time. Positions grow in the order in
which exchanges become visible. Their text is indexed when few exchanges come in, or before a search.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.inspector import SqliteExchanges
from gateway.observe.logs import Logger
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks import sqlite_queries as queries
from gateway.recording.sinks import sqlite_routes as routes
from gateway.recording.sinks.encoding import (
    decode_content,
    decode_head,
    encode,
    join,
    without_surrogates,
)
from gateway.recording.sinks.media_files import MediaFiles
from gateway.recording.sinks.sqlite_queries import searched_text
from gateway.recording.store import (
    MOST_NAMED,
    NEWEST_FIRST,
    Beginnings,
    Filter,
    InvalidFilter,
    Loss,
    Mirrored,
    Overview,
    Row,
    Sort,
    StoreError,
    TargetFaults,
    TargetRuns,
    TargetWeight,
    Weights,
    ambiguous,
    sqlite_directory,
)
from gateway.storage.files import UnusableFile
from gateway.storage.sqlite import (
    ForeignFile,
    Format,
    empty_log,
    error_code,
    open_file,
    read_pragma,
    transaction,
)

DATABASE = "records.sqlite3"
APPLICATION_ID = int.from_bytes(b"MLCX", "big")
"""Marks SQLite files of exchanges (`PRAGMA application_id`)."""
STEP, STEP_BYTES = 64, 1_000_000
"""Most records that are indexed or deleted in one transaction, and their bytes; one record may have more.

No other process can write meanwhile: for about 0.1 s.
"""
INSERT = f"INSERT INTO exchanges VALUES (?, ?, ?, 0{f', {chr(39) * 2}' * 12}, ?, ?)"
"""The empty columns are those of version 1 that are in ``facts`` now. To remove them, SQLite would write all again."""


def _fill_facts(connection: sqlite3.Connection) -> None:
    """Write the facts of exchanges that a gateway of version 1 has stored. One that can't be read has none."""
    rows = connection.execute("SELECT position, head FROM exchanges ORDER BY position")
    while batch := rows.fetchmany(STEP):
        values = []
        for position, head in batch:
            with suppress(msgspec.DecodeError):
                values.append(queries.first_facts(position, decode_head(head)))
        connection.executemany(queries.INSERT_FIRST_FACTS, values)


FORMAT = Format(
    APPLICATION_ID,
    "inspector.sqlite.directory",
    (
        (
            # The record: `head` is what a `Row` shows, `content` the rest.
            """CREATE TABLE exchanges (
                position INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL, started REAL NOT NULL, status INTEGER NOT NULL, intent TEXT NOT NULL,
                form TEXT NOT NULL, target TEXT NOT NULL, client TEXT NOT NULL, user_agent TEXT NOT NULL,
                agent_id TEXT NOT NULL, agent_name TEXT NOT NULL, type TEXT NOT NULL, provider TEXT NOT NULL,
                strategy TEXT NOT NULL, notices TEXT NOT NULL, problems TEXT NOT NULL,
                head BLOB NOT NULL, content BLOB NOT NULL)""",
            "CREATE INDEX exchanges_by_id ON exchanges (id)",
            "CREATE VIRTUAL TABLE words USING fts5(text)",
            "CREATE TABLE indexed (last INTEGER NOT NULL)",
            "INSERT INTO indexed VALUES (0)",
        ),
        (
            # What can be filtered by, sorted and summed up, apart from the records: all of it is read in milliseconds.
            f"CREATE TABLE facts ({queries.FACTS})",
            _fill_facts,
            "CREATE INDEX facts_by_time ON facts (started, position)",
            # With what is summed up, so that the sums of all exchanges are read from the index alone.
            f"""CREATE INDEX facts_by_minute ON facts ({queries.MINUTE}, started, seconds, status, intent, input_tokens,
                output_tokens, cost, currency)""",
            "CREATE INDEX facts_by_conversation ON facts (conversation, started) WHERE conversation != ''",
            # Exchanges that were not recorded, by minute. detail: the error.
            """CREATE TABLE losses (minute INTEGER NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL,
                exchanges INTEGER NOT NULL, last REAL NOT NULL, PRIMARY KEY (minute, reason, detail)) WITHOUT ROWID""",
        ),
        (
            # Where routes sent runs, and which runs are mirrors.
            *(f"ALTER TABLE facts ADD COLUMN {column}" for column in queries.ROUTE_FACTS),
            queries.MARK_FAILED,
            "DROP INDEX facts_by_minute",
            # As before, and with what leaves mirrors out.
            f"""CREATE INDEX facts_by_minute ON facts ({queries.MINUTE}, started, seconds, status, intent, input_tokens,
                output_tokens, cost, currency, mirror_of)""",
            "CREATE INDEX facts_by_mirror ON facts (mirror_of) WHERE mirror_of != ''",
            # With what tells where and when a conversation began.
            """CREATE INDEX facts_by_route ON facts (route, conversation, started, agent_id, cluster, intent, mirror_of)
                WHERE route != ''""",
            # With what is summed up of a target's runs, by the time that they took.
            """CREATE INDEX facts_by_target ON facts (route, agent_id, cluster, seconds, started, intent, mirror_of,
                form, failed, input_tokens, output_tokens, agent_name, currency, cost) WHERE route != ''""",
            # When which weights came into force. targets: a JSON list.
            "CREATE TABLE weights (at REAL NOT NULL, route TEXT NOT NULL, targets BLOB NOT NULL)",
        ),
    ),
    # NORMAL: a loss of power may lose the newest exchanges; it never damages the file in WAL mode.
    pragmas=("synchronous = NORMAL", "temp_store = MEMORY", "secure_delete = FAST", "journal_size_limit = 16777216"),
    layout=("auto_vacuum = INCREMENTAL",),
)

_SEARCH_SECONDS = 5.0
"""How long a search may index what is not indexed yet."""
_MEDIA_SECONDS = 3600.0
"""Media are kept so long before the oldest exchange: they are stored before their exchange, which may take long."""
_MERGED = 500
"""Pages of the index that are merged in one transaction."""
_MANY = 5000
"""Exchanges with the words of a search from which the sums are read from an index over all exchanges."""
_FREE = 8
"""The file is made smaller when one of so many pages is unused. As much is deleted at a time when it is full."""
_OF_A_VALUE = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)

_INTERVAL = 1.0
_TRIM_SECONDS = 60.0
_BUSY = 50
"""With more exchanges a second, indexing waits: it takes more CPU time than everything else about an exchange."""
_STEP_SECONDS = 0.5


class SqliteStore:
    """The store in a directory. clock: the seconds since the epoch."""

    name = "sqlite"

    def __init__(self, settings: SqliteExchanges, clock: Callable[[], float] = time.time) -> None:
        self.directory = sqlite_directory(settings)
        self._settings = settings
        self._clock = clock
        self._media = MediaFiles(self.directory / "media")
        self._writer = _Connection(self.directory)
        self._reader = _Connection(self.directory)

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Store the records in one transaction."""
        rows = [_encoded(record) for record in records]
        with self._writer.use() as connection, transaction(connection, "IMMEDIATE"):
            first = _newest(connection) + 1
            connection.executemany(
                INSERT, [(first + n, one.id, one.started, head, content) for n, (one, head, content) in enumerate(rows)]
            )
            connection.executemany(
                queries.INSERT_FACTS, [queries.facts(first + n, one) for n, (one, _, _) in enumerate(rows)]
            )

    def keep_medium(self, sha256: str, media_type: str, data: bytes) -> None:
        """Keep the bytes of a medium in a file."""
        with _file_errors(self.directory):
            self._media.keep(sha256, media_type, data)

    def note_losses(self, losses: Sequence[Loss]) -> None:
        """Add up exchanges that were not recorded, by minute."""
        rows = [(one.last // 60, one.reason, one.detail, one.exchanges, one.last) for one in losses]
        with self._writer.use() as connection, transaction(connection, "IMMEDIATE"):
            connection.executemany(
                """INSERT INTO losses VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
                SET exchanges = exchanges + excluded.exchanges, last = max(last, excluded.last)""",
                rows,
            )

    def losses(self, since: float | None = None, until: float | None = None) -> list[Loss]:
        """Return what was not recorded in a time, by reason and error."""
        sql = """SELECT reason, detail, sum(exchanges) AS lost, max(last) FROM losses
            WHERE last >= ? AND minute * 60 <= ? GROUP BY reason, detail ORDER BY lost DESC, reason, detail"""
        times = (0.0 if since is None else since, queries.LARGEST if until is None else until)
        with self._reader.use() as connection:
            return [Loss(*row) for row in connection.execute(sql, times)]

    def rows(self, wanted: Filter, before: int | None = None, limit: int = 100, sort: Sort = NEWEST_FIRST) -> list[Row]:
        """Return the first exchanges in an order, or those that follow the one at the position `before`.

        Raises:
            InvalidFilter: the filter can't be used, or there is no such position any more.
        """
        condition = _with_words(self._condition(wanted))
        with self._reader.use() as connection, transaction(connection, "DEFERRED"):
            return _read(connection, queries.positions(connection, condition, before, limit, sort))

    def newer(self, wanted: Filter, after: int, limit: int = 100) -> list[Row]:
        """Return exchanges after a position, oldest first. Later calls never return smaller positions."""
        condition = _with_words(self._condition(wanted))
        sql = f"SELECT position FROM facts WHERE position > ?{condition.sql} ORDER BY position LIMIT ?"
        with self._reader.use() as connection, transaction(connection, "DEFERRED"):
            found = connection.execute(sql, (min(after, queries.LARGEST), *condition.values, limit))
            return _read(connection, [position for (position,) in found])

    def overview(self, wanted: Filter, buckets: int = 60) -> Overview:
        """Return the exchanges that match, summed up. buckets: at most so many."""
        condition = self._condition(wanted)
        with self._reader.use() as connection, transaction(connection, "DEFERRED"):
            if condition.words:  # searched once
                connection.execute("CREATE TEMP TABLE IF NOT EXISTS matches (position INTEGER PRIMARY KEY)")
                connection.execute("DELETE FROM matches")
                matches = connection.execute(f"INSERT INTO matches {_SEARCH}", (condition.words,)).rowcount
                by_index = "+" if matches > _MANY else ""  # else they would be sorted to be summed up by minute
                sql = f"{condition.sql} AND {by_index}position IN matches"
                condition = queries.Condition(sql, condition.values)
            return queries.overview(connection, condition, wanted, buckets)

    def _condition(self, wanted: Filter) -> queries.Condition:
        """Return the condition of a filter, and index what it searches."""
        if wanted.agent or wanted.session or wanted.route or wanted.mirror:
            with self._reader.use() as connection:
                wanted = queries.complete(connection, wanted)
        found = queries.condition(wanted)
        if found.words:
            self._index_for_search()
        return found

    def newest(self) -> int:
        """Return the last position that was given, also to an exchange that was deleted; 0 for none."""
        with self._reader.use() as connection:
            return _newest(connection)

    def position(self, id: str) -> int | None:
        """Return the position of the exchange with the id; None if there is none."""
        if not id.isascii():
            return None
        with self._reader.use() as connection:
            [found] = connection.execute("SELECT max(position) FROM exchanges WHERE id = ?", (id,)).fetchone()
        return found if found is None else int(found)

    def whole_id(self, start: str) -> str | None:
        """Return the id that `start` is, or the only one that begins with it; None if there is none.

        Raises:
            InvalidFilter: several begin so.
        """
        if not start or not start.isascii() or self.position(start) is not None:
            return start if start.isascii() and start else None
        sql = "SELECT DISTINCT id FROM exchanges WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        with self._reader.use() as connection:
            found = [id for (id,) in connection.execute(sql, (*queries.span_of(start), MOST_NAMED + 1))]
        if len(found) > 1:
            raise InvalidFilter("id", ambiguous(start, found))
        return str(found[0]) if found else None

    def get(self, id: str) -> ExchangeRecord | None:
        """Return a whole record; None if there is none."""
        if not id.isascii():
            return None
        sql = "SELECT position, head, content FROM exchanges WHERE id = ? ORDER BY position DESC LIMIT 1"
        with self._reader.use() as connection:
            row = connection.execute(sql, (id,)).fetchone()
        if row is None:
            return None
        position, head, content = row
        return join(_decode(decode_head, head, position), _decode(decode_content, content, position))

    def medium(self, sha256: str) -> tuple[str, bytes] | None:
        """Return media type and bytes; None if they are not kept."""
        with _file_errors(self.directory):
            return self._media.read(sha256)

    def values(self, field: str, limit: int = 100) -> list[str]:
        """Return the different values of a field of `Filter`, the most frequent first, for the page's filters.

        Raises:
            InvalidFilter: the field has no values to choose from.
        """
        with self._reader.use() as connection:
            return queries.values(connection, field, limit)

    def adoption(self, since: float, bucket_seconds: float) -> list[dict[str, Any]]:
        """Return rows of the migration view: agent_id, agent_name, bucket (seconds since the epoch), and the number of
        requests of each form: legacy (question), unified (rewritten), native, refused. Without mirrors, as the others.
        """
        with self._reader.use() as connection:
            return queries.adoption(connection, since, bucket_seconds)

    def legacy_clients(self, since: float) -> list[dict[str, Any]]:
        """Return clients that still send legacy requests: user_agent, agent_id, agent_name, requests, last."""
        with self._reader.use() as connection:
            return queries.legacy_clients(connection, since)

    def refusals(self, since: float) -> list[dict[str, Any]]:
        """Return refusals: agent_id, agent_name, code, requests, last."""
        with self._reader.use() as connection:
            return queries.refusals(connection, since)

    def target_runs(self, since: float) -> list[TargetRuns]:
        """Return the clients' runs of each target of each route, summed up."""
        with self._reader.use() as connection, transaction(connection, "DEFERRED"):
            return routes.target_runs(connection, since)

    def target_faults(self, since: float) -> list[TargetFaults]:
        """Return why runs of the targets were refused or failed, the most frequent first."""
        with self._reader.use() as connection:
            return routes.target_faults(connection, since)

    def beginnings(self, since: float, bucket_seconds: float) -> list[Beginnings]:
        """Return how many conversations began at each target, by time. A run without one counts as one of its own."""
        with self._reader.use() as connection:
            return routes.beginnings(connection, since, bucket_seconds)

    def mirrors(self, since: float) -> list[Mirrored]:
        """Return the mirrors of each target, compared with their originals."""
        with self._reader.use() as connection:
            return routes.mirrors(connection, since)

    def copies(self, id: str) -> list[Row]:
        """Return the mirrors of an exchange, the newest first."""
        if not id.isascii():
            return []
        sql = "SELECT position FROM facts WHERE mirror_of != '' AND mirror_of = ? ORDER BY position DESC"
        with self._reader.use() as connection, transaction(connection, "DEFERRED"):
            return _read(connection, [position for (position,) in connection.execute(sql, (id,))])

    def note_weights(self, at: float, weights: Mapping[str, Sequence[TargetWeight]]) -> None:
        """Note the weights of all routes that are in force, as far as they are not those that were noted last."""
        with self._writer.use() as connection, transaction(connection, "IMMEDIATE"):
            routes.note_weights(connection, at, weights)

    def weights(self, since: float) -> list[Weights]:
        """Return the weights that were in force at a time and those that came after it, in their order."""
        with self._reader.use() as connection:
            return routes.weights(connection, since)

    # The index of the text

    def index(self, seconds: float, busy: Callable[[], bool] = lambda: False) -> bool:
        """Index exchanges until all are, until the time is over, or `busy`. Return whether all are indexed."""
        end = time.monotonic() + seconds
        while True:
            with self._writer.use() as connection:
                if not _index_step(connection):
                    return True
            if time.monotonic() >= end or busy():
                return False

    def _index_for_search(self) -> None:
        """Index what is not indexed yet.

        Raises:
            StoreError: that is too much for one search. Each try indexes a part.
        """
        if not self.index(_SEARCH_SECONDS):
            sql = "SELECT count(*) FROM exchanges WHERE position > (SELECT last FROM indexed)"
            with self._reader.use() as connection:
                [rest] = connection.execute(sql).fetchone()
            raise StoreError(f"The text of {rest:,} exchanges is not indexed yet. Search again in a few seconds")

    # What is kept

    def clear(self) -> None:
        """Delete all exchanges and media, but not the weights."""
        with self._writer.use() as connection:
            with transaction(connection, "IMMEDIATE"):
                for table in ("exchanges", "facts", "losses", "words"):
                    connection.execute(f"DELETE FROM {table}")
                connection.execute("INSERT INTO words(words) VALUES('optimize')")  # else deleted words stay in the file
            _give_back(connection, all_pages=True)
            self._media.clear()

    def trim(self) -> None:
        """Delete what is too old or too much.

        Exchanges that started after now, as the clock was ahead, are deleted with those that were stored after them.
        """
        self.shrink()
        now, seconds, before = self._clock(), self._settings.seconds, 0.0
        with self._writer.use() as connection:
            if seconds:
                before = now - seconds
                _delete(connection, _last_before(connection, before, now))
                connection.execute("DELETE FROM losses WHERE last < ?", (before,))
                routes.forget_weights(connection, before)
            row = connection.execute("SELECT started FROM exchanges ORDER BY position LIMIT 1").fetchone()
            oldest = row[0] if row else now
            kept = max(before, oldest - _MEDIA_SECONDS) if oldest <= now else before  # else the clock was ahead
            self._media.trim(kept, self._settings.media_bytes)

    def shrink(self) -> None:
        """Delete the oldest exchanges if all take more than `inspector.sqlite.bytes`, so that an eighth is free."""
        most = self._settings.bytes
        with self._writer.use() as connection:
            used = used_bytes(connection)
            if used > most:
                _delete(connection, _last_beyond(connection, (most - most // _FREE) / used))

    def close(self) -> None:
        """Close the database."""
        self._writer.close()
        self._reader.close()


class RecordingStore(SqliteStore):
    """A store whose upkeep runs in a thread until it is closed. interval: seconds between two looks at the store.

    The text is indexed when few exchanges come in, and old exchanges are deleted even if none come in.
    """

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

    def close(self) -> None:
        """End the upkeep after the step that it is in, and close the database."""
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
                self.shrink()
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
                    self._connection = open_file(self._directory / DATABASE, FORMAT, check_same_thread=False)
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


def _encoded(record: ExchangeRecord) -> tuple[ExchangeRecord, bytes, bytes]:
    """Return a record as it can be stored, with its bytes."""
    try:
        return record, *encode(record)
    except UnicodeEncodeError:
        record = without_surrogates(record)
        return record, *encode(record)


_SEARCH = "SELECT rowid FROM words WHERE words MATCH ?"


def _with_words(condition: queries.Condition) -> queries.Condition:
    """Return the condition with the search of the text as SQL."""
    if not condition.words:
        return condition
    return queries.Condition(f"{condition.sql} AND position IN ({_SEARCH})", (*condition.values, condition.words))


def _newest(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'exchanges'").fetchone()
    return int(row[0]) if row else 0


def _read(connection: sqlite3.Connection, positions: Iterable[int]) -> list[Row]:
    """Return the rows at these positions."""
    sql = "SELECT head FROM exchanges WHERE position = ?"
    heads = ((position, connection.execute(sql, (position,)).fetchone()) for position in positions)
    return [Row(position, _decode(decode_head, head, position)) for position, (head,) in heads]


def _decode(decode: Callable[[bytes], Any], data: bytes, position: int) -> Any:
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        reason = f"Exchange {position} can't be read: {error}. Was it written by another version of the gateway?"
        raise StoreError(reason) from error


def _index_step(connection: sqlite3.Connection) -> bool:
    """Index the next records, see `STEP`. Return False if there was none."""
    sql = "SELECT position, content FROM exchanges WHERE position > (SELECT last FROM indexed) ORDER BY position"
    with transaction(connection, "IMMEDIATE"):
        last = size = 0
        texts: list[tuple[int, str]] = []
        for position, content in connection.execute(f"{sql} LIMIT {STEP}"):
            size += len(content)
            if last and size > STEP_BYTES:
                break
            last = position
            if text := searched_text(content):
                texts.append((position, text))
        connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", texts)
        if last:
            connection.execute("UPDATE indexed SET last = ?", (last,))
    return bool(last)


def _last_before(connection: sqlite3.Connection, started: float, now: float) -> int | None:
    """Return the position of the last exchange that started before a time and comes before all others."""
    sql = "SELECT position FROM facts WHERE started BETWEEN ? AND ? ORDER BY position LIMIT 1"
    first = connection.execute(sql, (started, now)).fetchone()
    sql = "SELECT max(position) FROM facts WHERE position < ? AND started < ?"
    [last] = connection.execute(sql, (first[0] if first else queries.LARGEST, started)).fetchone()
    return None if last is None else int(last)


def _last_beyond(connection: sqlite3.Connection, share: float) -> int | None:
    """Return the position of the newest exchange that must go so that the newer ones have at most a share of all."""
    size = "length(head) + length(content)"
    sql = f"""SELECT position FROM (
        SELECT position, sum({size}) OVER (ORDER BY position DESC) AS bytes FROM exchanges)
        WHERE bytes > ? * (SELECT sum({size}) FROM exchanges) ORDER BY position DESC LIMIT 1"""
    row = connection.execute(sql, (share,)).fetchone()
    return row and int(row[0])


def _delete(connection: sqlite3.Connection, last: int | None) -> None:
    """Delete the exchanges up to a position, in small transactions, and give their space back. None: none."""
    deleted = 0
    while last is not None and (count := _delete_oldest(connection, last)):
        deleted += count
    [rest] = connection.execute("SELECT count(*) FROM exchanges").fetchone()
    if deleted * _FREE > rest:
        _merge(connection)
    _give_back(connection)


def _delete_oldest(connection: sqlite3.Connection, last: int) -> int:
    """Delete some of the oldest exchanges up to a position in one transaction, see `STEP`. Return their number."""
    sql = "SELECT position, length(content) FROM exchanges WHERE position <= ? ORDER BY position LIMIT ?"
    with transaction(connection, "IMMEDIATE"):
        rows: list[int] = []
        size = 0
        for position, length in connection.execute(sql, (last, STEP)):
            rows.append(position)
            size += length
            if size >= STEP_BYTES:
                break
        if rows:
            connection.execute("DELETE FROM exchanges WHERE position <= ?", (rows[-1],))
            connection.execute("DELETE FROM facts WHERE position <= ?", (rows[-1],))
            connection.execute("DELETE FROM words WHERE rowid <= ?", (rows[-1],))
    return len(rows)


def _merge(connection: sqlite3.Connection) -> None:
    """Remove deleted words from the index, in small transactions (https://www.sqlite.org/fts5.html#the_merge_command).

    FTS5 itself only does so as others are added.
    """
    pages = -_MERGED
    while True:
        before = connection.total_changes
        connection.execute("INSERT INTO words(words, rank) VALUES('merge', ?)", (pages,))
        if connection.total_changes - before < 2:
            return
        pages = _MERGED


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return the bytes of all exchanges and of the index, without the unused pages of the database."""
    pages = read_pragma(connection, "page_count") - read_pragma(connection, "freelist_count")
    return pages * read_pragma(connection, "page_size")


def _give_back(connection: sqlite3.Connection, all_pages: bool = False) -> None:
    """Make the database smaller by its unused pages, if they are many."""
    free = read_pragma(connection, "freelist_count")
    if free and (all_pages or free * _FREE > read_pragma(connection, "page_count")):
        connection.executescript("PRAGMA incremental_vacuum")  # `execute` would end it after one page
        empty_log(connection)

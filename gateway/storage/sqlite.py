"""SQLite files of the gateway: opened in WAL mode, with their tables brought up to date."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway.storage.files import make_file

_T = TypeVar("_T")

BUSY_SECONDS = 5.0
"""How long a process waits for others that write."""
_PAUSE = 0.01


class ForeignFile(Exception):
    """The file was made by another program, or by a newer gateway. The message says what to do."""


Statement = str | Callable[[sqlite3.Connection], None]


class Format(msgspec.Struct, frozen=True):
    """What a file holds.

    application_id: marks the file (`PRAGMA application_id`). setting: names its path. migrations: the statements of
    each version of the tables, oldest first; `PRAGMA user_version` counts those that were run. What was released does
    not change; a change of the tables is another entry. A statement is SQL, or a function that is called with the
    connection, within the transaction of all migrations. layout: pragmas of a new file, such as its page size.
    pragmas: of each connection.
    """

    application_id: int
    setting: str
    migrations: Sequence[Sequence[Statement]]
    pragmas: Sequence[str]
    layout: Sequence[str] = ()


def open_file(path: Path, form: Format, check_same_thread: bool = True) -> sqlite3.Connection:
    """Open the file, or make it, and run the migrations that it lacks.

    Raises:
        UnusableFile: the file can't be made or opened.
        ForeignFile: it was made by another program, or by a newer gateway.
        sqlite3.Error: SQLite reported an error.
    """
    make_file(path)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=check_same_thread)
    try:
        _check_origin(connection, path, form)
        if not read_pragma(connection, "page_count"):
            for pragma in form.layout:
                connection.execute(f"PRAGMA {pragma}").fetchall()
        _use_wal(connection)
        for pragma in form.pragmas:
            connection.execute(f"PRAGMA {pragma}").fetchall()
        if read_pragma(connection, "user_version") < len(form.migrations):
            _migrate(connection, path, form)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode. SQLite itself does not wait here for another process that opens the file too."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _migrate(connection: sqlite3.Connection, path: Path, form: Format) -> None:
    """Run the missing migrations, all or none. Another process may have done so since the version was read."""
    with transaction(connection, "IMMEDIATE"):
        _check_origin(connection, path, form)
        for statements in form.migrations[read_pragma(connection, "user_version") :]:
            for statement in statements:
                if isinstance(statement, str):
                    connection.execute(statement)
                else:
                    statement(connection)
        connection.execute(f"PRAGMA application_id = {form.application_id}")
        connection.execute(f"PRAGMA user_version = {len(form.migrations)}")


def _check_origin(connection: sqlite3.Connection, path: Path, form: Format) -> None:
    """Raise ForeignFile unless the file is empty, or was made by a gateway that is not newer than this one."""
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and read_pragma(connection, "application_id") != form.application_id:
        raise ForeignFile(f"{path} was made by another program. Name another path in `{form.setting}`")
    version, known = read_pragma(connection, "user_version"), len(form.migrations)
    if version > known:
        raise ForeignFile(
            f"{path} was made by a newer gateway: its tables are of version {version}, and this gateway knows versions "
            f"up to {known}. Run the newer gateway, or name another path in `{form.setting}`"
        )


def read_pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return the value of a pragma that is a number."""
    [value] = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    """Run the block in a transaction. kind: DEFERRED for a consistent view, IMMEDIATE to write."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def empty_log(connection: sqlite3.Connection) -> None:
    """Move what is in the log to the file, and empty the log. Waits 0.1 s for others that read, then leaves it."""
    connection.execute("PRAGMA busy_timeout = 100")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")


def error_code(error: sqlite3.Error) -> int:
    """Return the primary result code (https://www.sqlite.org/rescode.html), 0 if the error is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class SqliteThread:
    """A file that a thread of its own uses, as SQLite blocks. It is opened on first use."""

    def __init__(self, path: Path, form: Format, name: str) -> None:
        self._path = path
        self._form = form
        self._thread = ThreadPoolExecutor(1, name)
        self._connection: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` on the thread. It is skipped if the caller is cancelled while it waits.

        After most errors of SQLite, the next `run` opens the file again.

        Raises:
            UnusableFile, ForeignFile, sqlite3.Error: as `open_file`, and as `work`.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work)

    def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._connection is None:
            self._connection = open_file(self._path, self._form)
        try:
            return work(self._connection)
        except sqlite3.Error as error:
            if error_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_TOOBIG):
                self._disconnect()
            raise

    async def close(self) -> None:
        """Close the file when what was begun is finished."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        finally:
            self._thread.shutdown(wait=False)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

"""Opens the SQLite file of sessions, and brings its tables up to date.

Tables: ``sessions``; ``turns``, for the ids of turns that are stored; ``messages``, each with its content as JSON;
``media``, each large text once, by its SHA-256; ``media_uses``, where in which message a medium belongs.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.memory.store import UnreadableSession
from gateway.memory.stores.paths import make_file

APPLICATION_ID = int.from_bytes(b"MLCG", "big")
"""Marks SQLite files of the gateway (`PRAGMA application_id`)."""
BUSY_SECONDS = 5.0
"""How long a process waits for others that write."""
_PAUSE = 0.01

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE sessions (
            number INTEGER PRIMARY KEY,
            agent_id TEXT NOT NULL, tenant TEXT NOT NULL, caller TEXT NOT NULL, id TEXT NOT NULL,
            turns INTEGER NOT NULL, messages INTEGER NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
            system TEXT NOT NULL, pinned INTEGER NOT NULL,
            UNIQUE (agent_id, tenant, caller, id))""",
        "CREATE INDEX sessions_of_owner_by_update ON sessions (agent_id, tenant, caller, updated)",
        "CREATE INDEX sessions_by_update ON sessions (updated)",
        """CREATE TABLE turns (
            session INTEGER NOT NULL, turn INTEGER NOT NULL, id TEXT NOT NULL,
            PRIMARY KEY (session, turn), UNIQUE (session, id)) WITHOUT ROWID""",
        """CREATE TABLE messages (
            session INTEGER NOT NULL, seq INTEGER NOT NULL, turn INTEGER NOT NULL, role TEXT NOT NULL,
            content BLOB NOT NULL, metadata BLOB NOT NULL,
            PRIMARY KEY (session, seq))""",
        "CREATE TABLE media (number INTEGER PRIMARY KEY, sha256 BLOB NOT NULL UNIQUE, data BLOB NOT NULL)",
        """CREATE TABLE media_uses (
            session INTEGER NOT NULL, seq INTEGER NOT NULL, place TEXT NOT NULL, medium INTEGER NOT NULL,
            PRIMARY KEY (session, seq, place)) WITHOUT ROWID""",
        "CREATE INDEX media_uses_by_medium ON media_uses (medium)",
    ),
)
"""The statements of each version of the tables, oldest first. `PRAGMA user_version` counts those that were run. What
was released does not change; a change of the tables is another entry."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open the file, or make it, and run the migrations that it lacks.

    ``synchronous=FULL``: a turn is on the disk before the client has its answer, so that a loss of power loses none.
    That is one fsync a turn, which is little beside an LLM's answer. ``secure_delete``: what is deleted is overwritten.

    Raises:
        StoreUnavailable: the file can't be made or opened.
        UnreadableSession: it was made by another program, or by a newer gateway.
        sqlite3.Error: SQLite reported an error.
    """
    make_file(path)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        _check_origin(connection, path)
        use_wal(connection)
        for pragma in ("synchronous = FULL", "secure_delete = ON", "journal_size_limit = 67108864"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        if _pragma(connection, "user_version") < len(MIGRATIONS):
            _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def use_wal(connection: sqlite3.Connection) -> None:
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


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the missing migrations, all or none. Another process may have done so since the version was read."""
    with transaction(connection, "IMMEDIATE"):
        _check_origin(connection, path)
        for statements in MIGRATIONS[_pragma(connection, "user_version") :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _check_origin(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UnreadableSession unless the file is empty, or was made by a gateway that is not newer than this one."""
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and _pragma(connection, "application_id") != APPLICATION_ID:
        raise UnreadableSession(f"{path} was made by another program. Name another path in `memory.sqlite.path`")
    version = _pragma(connection, "user_version")
    if version > len(MIGRATIONS):
        raise UnreadableSession(
            f"{path} was made by a newer gateway: its tables are of version {version}, and this gateway knows versions "
            f"up to {len(MIGRATIONS)}. Run the newer gateway, or name another path in `memory.sqlite.path`"
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
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

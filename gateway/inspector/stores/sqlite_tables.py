"""The tables of the SQLite store.

``exchanges`` has what can be filtered by, and where the record is: ``file``, ``place``, the bytes of its head and of
all. A search by id or by a filter reads the table from its newest row on: with rows this small that takes less than
50 ms for 100,000. An index of ids, which are random, would cost `add` more than all the rest: nearly a page for a row.
``files`` has the files of records, with the position of the last one in each. ``words`` has the full-text indexes, one
for a range of positions; ``words_1`` and so on are the indexes themselves. ``lines`` says where many requests that
passed are together, from the position ``first`` to ``last``; id: of the first; started: of the latest. Both tables take
their positions from the sequence of ``exchanges``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from gateway.observe.record import Delivery, ExchangeRecord
from gateway.storage.sqlite import Format, open_file

DATABASE = "exchanges.sqlite3"
APPLICATION_ID = int.from_bytes(b"MLCX", "big")
"""Marks SQLite files of exchanges (`PRAGMA application_id`)."""
RUNS = ("execute", "execute_stream")
"""The intents that run an agent (`gateway.proxy.routes.RUNS`)."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE exchanges (
            position INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL, started REAL NOT NULL, status INTEGER NOT NULL, intent TEXT NOT NULL, form TEXT NOT NULL,
            target TEXT NOT NULL, client TEXT NOT NULL, user_agent TEXT NOT NULL,
            agent_id TEXT NOT NULL, agent_name TEXT NOT NULL, type TEXT NOT NULL, provider TEXT NOT NULL,
            strategy TEXT NOT NULL, notices TEXT NOT NULL, problems TEXT NOT NULL,
            file INTEGER NOT NULL, place INTEGER NOT NULL, head INTEGER NOT NULL, size INTEGER NOT NULL)""",
        """CREATE TABLE files (
            number INTEGER PRIMARY KEY AUTOINCREMENT, begun REAL NOT NULL, bytes INTEGER NOT NULL, last INTEGER NOT NULL
            )""",
        """CREATE TABLE words (
            number INTEGER PRIMARY KEY AUTOINCREMENT, begun REAL NOT NULL, bytes INTEGER NOT NULL, last INTEGER NOT NULL
            )""",
    ),
    (
        """CREATE TABLE lines (
            last INTEGER PRIMARY KEY, first INTEGER NOT NULL, id INTEGER NOT NULL, started REAL NOT NULL,
            file INTEGER NOT NULL, place INTEGER NOT NULL, size INTEGER NOT NULL)""",
        """INSERT INTO sqlite_sequence SELECT 'exchanges', 0
            WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'exchanges')""",
    ),
)
"""See `Format`. form: of the migration view, see `form_of`. notices, problems: codes, each between two spaces."""

_FORMAT = Format(
    APPLICATION_ID,
    "inspector.sqlite.directory",
    MIGRATIONS,
    # NORMAL: a loss of power may lose the newest exchanges; it never damages the file in WAL mode.
    pragmas=("synchronous = NORMAL", "secure_delete = FAST", "journal_size_limit = 16777216"),
    layout=("auto_vacuum = INCREMENTAL",),
)
_NO_DELIVERY = Delivery()

_ROWS = 50
"""Rows of one INSERT. SQLite before 3.32 takes 999 values (https://www.sqlite.org/limits.html)."""
_VALUES = f"(?{', ?' * 19})"
INSERT = f"INSERT INTO exchanges VALUES {_VALUES}"
_INSERT_MANY = f"INSERT INTO exchanges VALUES {', '.join([_VALUES] * _ROWS)}"


def open_database(directory: Path) -> sqlite3.Connection:
    """Open the file of a directory, or make it, for use by several threads. Errors as `open_file`."""
    return open_file(directory / DATABASE, _FORMAT, check_same_thread=False)


def insert(connection: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows of ``exchanges``.

    Most rows are inserted by statements of `_ROWS` rows, because Python changes threads around each statement.
    """
    whole = len(rows) - len(rows) % _ROWS
    for start in range(0, whole, _ROWS):
        connection.execute(_INSERT_MANY, list(chain.from_iterable(rows[start : start + _ROWS])))
    connection.executemany(INSERT, rows[whole:])


def newest(connection: sqlite3.Connection) -> int:
    """Return the last position that was given; 0 for none."""
    return int(connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'exchanges'").fetchone()[0])


def set_newest(connection: sqlite3.Connection, position: int) -> None:
    """Note the last position that was given, within the transaction that uses it."""
    connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'exchanges'", (position,))


def columns(record: ExchangeRecord) -> tuple[object, ...]:
    """Return the values of a row of ``exchanges``, from ``id`` to ``problems``."""
    delivery = record.delivery or _NO_DELIVERY
    return (
        record.id,
        record.started,
        record.status,
        record.intent,
        form_of(record),
        record.target,
        record.client,
        record.user_agent,
        record.agent_id,
        delivery.agent_name,
        delivery.type,
        delivery.provider,
        delivery.strategy,
        _joined(delivery.notices),
        _joined(_problems(record)),
    )


def form_of(record: ExchangeRecord) -> str:
    """Return how an agent was run: legacy, unified (rewritten), native, or refused by the gateway; "" for the rest."""
    if record.intent not in RUNS:
        return ""
    if record.error is not None and 400 <= record.status < 500:
        return "refused"
    delivery = record.delivery or _NO_DELIVERY
    if delivery.input_type == "question":
        return "legacy"
    return delivery.strategy and ("native" if delivery.strategy == "native" else "unified")


def _problems(record: ExchangeRecord) -> Iterable[str]:
    """Return the codes of the problems, or the error's type."""
    if record.error is None:
        return ()
    return [problem.code for problem in record.error.problems] or [record.error.type]


def _joined(codes: Iterable[str]) -> str:
    return f" {' '.join(dict.fromkeys(codes))} " if codes else ""

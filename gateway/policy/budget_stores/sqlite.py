"""What was spent, in a SQLite file beside that of `memory.sqlite`, for the workers of one host."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from gateway.config.memory import Memory
from gateway.policy.budgets import Account, BudgetStoreError
from gateway.storage.files import UnusableFile, expand, state_directory
from gateway.storage.sqlite import ForeignFile, Format, SqliteThread, transaction

_T = TypeVar("_T")

FILE = "budgets.sqlite3"
_TABLE = """CREATE TABLE spent (
    key TEXT NOT NULL, start INTEGER NOT NULL, until INTEGER NOT NULL, amount REAL NOT NULL,
    PRIMARY KEY (key, start)) WITHOUT ROWID"""
_FORMAT = Format(int.from_bytes(b"MLCB", "big"), "memory.sqlite.path", [[_TABLE]], ["synchronous = NORMAL"])
_ADD = """INSERT INTO spent (key, start, until, amount) VALUES (?, ?, ?, ?)
    ON CONFLICT (key, start) DO UPDATE SET amount = amount + excluded.amount"""


def file_of(settings: Memory) -> Path:
    """Return the path of the file."""
    sessions = settings.sqlite.path
    return (expand(Path(sessions)).parent if sessions else state_directory()) / FILE


class SqliteBudgetStore:
    """See `BudgetStore`. clock: the seconds since the epoch.

    ``synchronous = NORMAL``: a loss of power may lose the last amounts, the end of a process loses none.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._file = SqliteThread(path, _FORMAT, "budgets-sqlite")
        self._cleaned = 0.0

    async def read(self, accounts: Sequence[Account]) -> Mapping[Account, float]:
        """See `BudgetStore`."""
        return await self._run(lambda connection: _read(connection, accounts))

    async def add(self, amounts: Mapping[Account, float]) -> None:
        """See `BudgetStore`."""
        await self._run(lambda connection: self._add(connection, amounts))

    async def close(self) -> None:
        """See `BudgetStore`."""
        await self._file.close()

    async def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return await self._file.run(work)
        except (sqlite3.Error, UnusableFile, ForeignFile) as error:
            reason = f"{self._path} can't be used: {error}. Check the file, its directory and the free space"
            raise BudgetStoreError(reason) from None

    def _add(self, connection: sqlite3.Connection, amounts: Mapping[Account, float]) -> None:
        rows = [(account.key, account.start, account.end, amount) for account, amount in amounts.items()]
        now = self._clock()
        with transaction(connection, "IMMEDIATE"):
            connection.executemany(_ADD, rows)
            if now > self._cleaned + 3600:
                connection.execute("DELETE FROM spent WHERE until < ?", (int(now),))
                self._cleaned = now


def _read(connection: sqlite3.Connection, accounts: Sequence[Account]) -> dict[Account, float]:
    found = {}
    for account in accounts:
        query = "SELECT amount FROM spent WHERE key = ? AND start = ?"
        row = connection.execute(query, (account.key, account.start)).fetchone()
        if row is not None:
            found[account] = float(row[0])
    return found

"""What was spent: in a SQLite file, for the workers of one host, or in an index of a cluster, for many gateways.

The file is beside that of `memory.sqlite`. The index, ``<prefix>-budgets`` on the cluster of `memory.opensearch`, has
one document for each account: ``amount``, which a script increases, and ``until``, the end of its window.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gateway.config.memory import Memory
from gateway.config.memory import OpenSearchStore as Settings
from gateway.memory.store import StoreError
from gateway.memory.stores.opensearch.cluster import Cluster
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


_MAPPINGS = {
    "dynamic": False,
    "properties": {"amount": {"type": "double"}, "until": {"type": "date", "format": "epoch_second"}},
}
_SCRIPT = "ctx._source.amount += params.amount"
_MISSING = 404
_RETRIES = 10
"""How often an increase that conflicts with another is repeated, by the cluster and again by the gateway."""
_CLEAN_SECONDS = 3600.0


class OpenSearchBudgetStore:
    """See `BudgetStore`. url: the cluster's, if the settings have none. clock: the seconds since the epoch."""

    def __init__(self, settings: Settings, url: str, clock: Callable[[], float] = time.time) -> None:
        self._cluster = Cluster(settings.url or url, settings)
        self._index = f"{settings.prefix}-budgets"
        self._clock = clock
        self._made = False
        self._cleaned = clock()
        self._cleaning: asyncio.Task[None] | None = None

    async def read(self, accounts: Sequence[Account]) -> Mapping[Account, float]:
        """See `BudgetStore`."""
        try:
            await self._make_index()
            found = await self._cluster.get(self._index, [_id(account) for account in accounts])
        except StoreError as error:
            raise self._failed(error) from None
        return {account: float(found[_id(account)]["amount"]) for account in accounts if _id(account) in found}

    async def add(self, amounts: Mapping[Account, float]) -> None:
        """See `BudgetStore`."""
        left = dict(amounts)
        try:
            await self._make_index()
            for _ in range(_RETRIES):
                statuses = await self._cluster.write([self._increase(*item) for item in left.items()])
                if _MISSING in statuses:
                    self._made = False
                    await self._make_index()
                left = {one: left[one] for one, status in zip(left, statuses, strict=True) if status >= 400}
                if not left:
                    self._clean()
                    return
        except StoreError as error:
            raise self._failed(error) from None
        raise BudgetStoreError(f"{self._cluster.url}: too many gateways write {self._index} at the same time")

    async def close(self) -> None:
        """See `BudgetStore`."""
        if self._cleaning is not None:
            self._cleaning.cancel()
            await asyncio.wait((self._cleaning,))
        await self._cluster.close()

    def _increase(self, account: Account, amount: float) -> tuple[dict[str, Any], dict[str, Any]]:
        action = {"update": {"_index": self._index, "_id": _id(account), "retry_on_conflict": _RETRIES}}
        script = {"lang": "painless", "source": _SCRIPT, "params": {"amount": amount}}
        return action, {"script": script, "upsert": {"amount": amount, "until": account.end}}

    async def _make_index(self) -> None:
        if not self._made:
            await self._cluster.make(f"/{self._index}", {"mappings": _MAPPINGS})
            self._made = True

    def _clean(self) -> None:
        """Begin to delete what was spent in past windows, once an hour."""
        now = self._clock()
        if now >= self._cleaned + _CLEAN_SECONDS:
            self._cleaned = now
            self._cleaning = asyncio.create_task(self._delete_until(int(now)))

    async def _delete_until(self, now: int) -> None:
        """Delete what was spent in windows that ended before `now`. If that fails, the next hour's deletion does it."""
        query = {"query": {"range": {"until": {"lt": now}}}}
        with contextlib.suppress(StoreError):
            await self._cluster.call("POST", f"/{self._index}/_delete_by_query", query, conflicts="proceed")

    def _failed(self, error: StoreError) -> BudgetStoreError:
        self._made = False
        return BudgetStoreError(str(error))


def _id(account: Account) -> str:
    return f"{account.key}-{account.start}"

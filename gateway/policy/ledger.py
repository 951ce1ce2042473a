"""What was spent: read and written for many requests at once.

While one write is under way, the amounts of other requests are added up, and the next write stores them all. Reads are
grouped in the same way. A process therefore has at most one read and one write under way, and processes rarely change
the same document at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from gateway.policy.budget_stores.store import Account, BudgetStore, BudgetStoreError


class _Reads:
    """Accounts that are read together. task: reads them."""

    def __init__(self) -> None:
        self.accounts: set[Account] = set()
        self.task: asyncio.Task[Mapping[Account, float]]


class Ledger:
    """Reads and writes the store in groups. What could not be written is kept, and written with the next amounts."""

    def __init__(self, store: BudgetStore) -> None:
        self.store = store
        self._reads: _Reads | None = None
        self._reading = asyncio.Lock()
        self._waiting: dict[Account, float] = {}
        self._failed: dict[Account, float] = {}
        self._write: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def read(self, accounts: Iterable[Account]) -> list[float]:
        """Return what was spent of each account, as of now or later, with what is not stored yet.

        Raises:
            BudgetStoreError: the store can't be read.
        """
        wanted = list(accounts)
        reads = self._reads
        if reads is None:
            reads = self._reads = _Reads()
            reads.task = asyncio.create_task(self._read(reads))
            reads.task.add_done_callback(_retrieve)
        reads.accounts.update(wanted)
        found = await asyncio.shield(reads.task)
        late = self._failed if self._writing.locked() else {}  # else they are among those that wait
        return [sum(amounts.get(account, 0.0) for amounts in (found, self._waiting, late)) for account in wanted]

    async def _read(self, reads: _Reads) -> Mapping[Account, float]:
        async with self._reading:
            self._reads = None  # later requests form another group
            return await self.store.read(list(reads.accounts))

    async def add(self, amounts: Mapping[Account, float]) -> None:
        """Add the amounts, and return once they are stored. It continues if the caller is cancelled.

        Raises:
            BudgetStoreError: they can't be stored now.
        """
        for account, amount in amounts.items():
            self._put(account, amount)
        if self._write is None:
            self._write = asyncio.create_task(self._write_waiting())
            self._write.add_done_callback(_retrieve)
        await asyncio.shield(self._write)

    async def _write_waiting(self) -> None:
        async with self._writing:
            self._write = None  # later amounts form another group
            waiting, self._waiting = self._waiting, {}
            try:
                if waiting:
                    await self.store.add(waiting)
                self._failed = {}
            except BaseException:
                self._failed = waiting
                for account, amount in waiting.items():
                    self._put(account, amount)
                raise

    def _put(self, account: Account, amount: float) -> None:
        self._waiting[account] = self._waiting.get(account, 0.0) + amount

    async def close(self) -> None:
        """Write what is left, if that is possible, and close the store."""
        try:
            await self.add({})
        except BudgetStoreError:
            pass
        finally:
            await self.store.close()


def _retrieve(task: asyncio.Task[object]) -> None:
    """Take note of a task's error, so that asyncio does not warn if all callers were cancelled."""
    if not task.cancelled():
        task.exception()

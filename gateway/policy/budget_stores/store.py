"""The stores of what was spent: their interface, a row for each, and the one in the memory of a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class Account(Struct, frozen=True):
    """The account of one agent or caller for one window of a budget.

    key: 32 hexadecimal digits, the same in all gateways with the same budget. start, end: of the window, seconds since
    the epoch.
    """

    key: str
    start: int
    end: int


class BudgetStoreError(Exception):
    """The store can't be read or written. The message says why and what to do."""


class BudgetStore(Protocol):
    """Adds up amounts by account. `read` and `add` raise `BudgetStoreError`."""

    async def read(self, accounts: Sequence[Account]) -> Mapping[Account, float]:
        """Return what was added to each account; an account that nothing was added to may be missing."""

    async def add(self, amounts: Mapping[Account, float]) -> None:
        """Add the amounts, each atomically, however many processes do so."""

    async def close(self) -> None:
        """Release all resources."""


_CLEAN_AT = 1_000
"""Number of accounts at which those of past windows are dropped; afterwards, at least twice the number that is left."""


class MemoryBudgetStore:
    """See `BudgetStore`. clock: the seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._spent: dict[Account, float] = {}
        self._clean_at = _CLEAN_AT

    async def read(self, accounts: Sequence[Account]) -> Mapping[Account, float]:
        """See `BudgetStore`."""
        return {account: self._spent[account] for account in accounts if account in self._spent}

    async def add(self, amounts: Mapping[Account, float]) -> None:
        """See `BudgetStore`."""
        self.add_now(amounts)

    def add_now(self, amounts: Mapping[Account, float]) -> None:
        """Add the amounts without waiting."""
        for account, amount in amounts.items():
            self._spent[account] = self._spent.get(account, 0.0) + amount
        if len(self._spent) >= self._clean_at:
            now = self._clock()
            self._spent = {account: spent for account, spent in self._spent.items() if account.end > now}
            self._clean_at = max(_CLEAN_AT, 2 * len(self._spent))

    async def close(self) -> None:
        """See `BudgetStore`."""

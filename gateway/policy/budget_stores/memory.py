"""What was spent, in the memory of one process. It starts at zero when the process does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from gateway.config.memory import Memory
from gateway.policy.budget_stores.store import Account

_CLEAN_AT = 1_000
"""Number of accounts at which those of past windows are dropped; afterwards, at least twice the number that is left."""


def build(settings: Memory, upstream_url: str) -> MemoryBudgetStore:
    """Return the store."""
    return MemoryBudgetStore()


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

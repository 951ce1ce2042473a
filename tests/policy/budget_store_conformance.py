"""The tests that every store of what was spent passes.

A test class inherits from `BudgetStoreConformance` and defines the fixture ``make``: each call of what it returns opens
the same store again, as another gateway would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.policy.budgets import Account, BudgetStore, MemoryBudgetStore

T = 4_000_000_000
"""The start of a window in the future, as stores drop past ones."""
ONE, OTHER, NEXT = Account("a" * 32, T, T + 60), Account("b" * 32, T, T + 60), Account("a" * 32, T + 60, T + 120)
Make = Callable[[], BudgetStore]


class BudgetStoreConformance:
    """All tests of a store. `gateway.policy.budgets.BudgetStore` states what they test."""

    async def test_amounts_are_added_by_account_and_window(self, make: Make) -> None:
        store = make()
        assert await store.read([ONE, OTHER]) == {}
        await store.add({ONE: 1.5, OTHER: 2.0})
        await store.add({ONE: 1.0, NEXT: 4.0})
        assert await store.read([ONE, OTHER, NEXT]) == {ONE: 2.5, OTHER: 2.0, NEXT: 4.0}
        assert await store.read([NEXT]) == {NEXT: 4.0}

    async def test_many_at_a_time_lose_nothing(self, make: Make) -> None:
        store = make()
        stores = [store, store if isinstance(store, MemoryBudgetStore) else make()]
        await asyncio.gather(*(stores[number % 2].add({ONE: 1.0, OTHER: 2.0}) for number in range(40)))
        assert await stores[0].read([ONE, OTHER]) == {ONE: 40.0, OTHER: 80.0}

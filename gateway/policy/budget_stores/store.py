"""The interface of the stores of what was spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Protocol

from msgspec import Struct

from gateway.config.memory import Memory


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


STORES = {
    "memory": "gateway.policy.budget_stores.memory",
    "sqlite": "gateway.policy.budget_stores.sqlite",
    "opensearch": "gateway.policy.budget_stores.opensearch",
}
"""Every store, and its module."""


def build_store(name: str, settings: Memory, upstream_url: str) -> BudgetStore:
    """Return the store, which opens its place on first use. upstream_url: the cluster's first address."""
    build: Callable[[Memory, str], BudgetStore] = import_module(STORES[name]).build
    return build(settings, upstream_url)

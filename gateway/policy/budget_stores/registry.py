"""The stores by name: one row each. A store's module is imported when the store is built.

A module has ``build(settings: Memory, upstream_url: str) -> BudgetStore``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from gateway.config.memory import Memory
from gateway.policy.budget_stores.store import BudgetStore

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

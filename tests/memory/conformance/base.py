"""What the tests of every store share: its fixtures, and what a store can't do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import ClassVar

import pytest

from gateway.memory.model import Message, Owner
from gateway.memory.store import Store

NewStore = Callable[[], Store]
OpenStore = Callable[[], Awaitable[Store]]

OWNERS = [
    Owner("agent"),
    Owner("agent", tenant="t"),
    Owner("agent", caller="t"),
    Owner("agent", tenant="t", caller="t"),
    Owner("agent", tenant="T"),
    Owner("agent", tenant="t/t"),
    Owner("agent", tenant="..", caller="../.."),
    Owner("agent/t"),
    Owner("Agent"),
    Owner("agent", caller="ü 🙂 %2F \x1f"),
    Owner("agent", caller="x" * 300),
    Owner("other"),
]
"""Owners that a careless store could take for one another."""


class StoreTests:
    """Tests of one store. Subclasses define the fixture ``new_store``, and what the store can't do."""

    unstorable: ClassVar[frozenset[str]] = frozenset()
    """Names in `MESSAGES` of contents that the store refuses with `Unstorable`."""
    media_size: ClassVar[int] = 300_000
    """Characters of base64 of a medium that the store can keep."""

    limits_bytes: ClassVar[bool] = True
    """The store can limit the bytes of a page."""

    def as_stored(self, message: Message) -> Message:
        """Return what the store gives back for `message`: the same, but for losses that its documentation states."""
        return message

    async def tick(self) -> None:
        """Wait until the store's clock shows another time."""
        then = time.time()
        while time.time() - then < 0.002:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    @pytest.fixture
    def new_store(self) -> NewStore:
        """A function that returns a store that is not started. All stores of one test have the same data."""
        raise NotImplementedError

    @pytest.fixture
    async def open_store(self, new_store: NewStore) -> AsyncIterator[OpenStore]:
        """A function that starts another store with the same data, as another process would."""
        stores: list[Store] = []

        async def open_store() -> Store:
            store = new_store()
            stores.append(store)
            await store.start()
            return store

        yield open_store
        for store in stores:
            await store.close()

    @pytest.fixture
    async def store(self, open_store: OpenStore) -> Store:
        return await open_store()

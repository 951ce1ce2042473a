"""The store of sessions, opened when it is used first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.memory.store import Store, StoreUnavailable


class StoreOpener:
    """Opens a store on first use, and again on the next use if that failed. make: builds the store, not opened."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._store: Store | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def store(self) -> Store:
        """Return the store, open.

        Raises:
            StoreError: it can't be opened.
        """
        if self._store is not None:
            return self._store
        async with self._lock:
            if self._closed:
                raise StoreUnavailable("the gateway is about to stop")
            if self._store is None:
                opened = self._make()
                try:
                    await opened.start()
                except BaseException:
                    await opened.close()
                    raise
                self._store = opened
            return self._store

    async def close(self) -> None:
        """Close the store. It is not opened again."""
        async with self._lock:
            self._closed = True
            if self._store is not None:
                await self._store.close()
                self._store = None

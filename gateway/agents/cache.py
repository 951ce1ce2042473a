"""A cache whose concurrent misses share one load."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedCache(Generic[K, V]):
    """Values by key, each for `ttl` seconds, at most `max_entries` of them (the least recently used goes first).

    A value that is too old is freed with the next load, whether or not anyone asks for it again.

    A load is shared by all who ask for its key while it runs; one that gives up does not stop it for the others.
    A failed load reaches all who waited for it and is not kept. For use on one event loop.
    """

    def __init__(self, ttl: float, max_entries: int, clock: Callable[[], float]) -> None:
        self._ttl = ttl
        self._max_entries = max_entries
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._shared_tasks: dict[K, asyncio.Task[V]] = {}
        self._running: set[asyncio.Task[V]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        """The value kept for `key`, or what `load` returns; raises what `load` raises."""
        entry = self._entries.get(key)
        if entry is not None and self._clock() < entry[0]:
            self._entries.move_to_end(key)
            return entry[1]
        flight = self._shared_tasks.get(key)
        if flight is None:
            flight = asyncio.create_task(self._load(key, load))
            self._shared_tasks[key] = flight
            self._running.add(flight)
            flight.add_done_callback(self._landed)
        return await asyncio.shield(flight)

    def peek(self, key: K) -> V | None:
        """The value kept for `key`, if there is one."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and self._clock() < entry[0] else None

    def drop(self, matches: Callable[[K, V | None], bool]) -> None:
        """Forget every value for which `matches(key, value)`; a load still under way is asked about with None.

        Such a load may have read what has just been overwritten: whoever waits for it still gets its value, but it
        is not kept, and the next to ask starts a new one.
        """
        for key in [key for key, (_, value) in self._entries.items() if matches(key, value)]:
            del self._entries[key]
        for key in [key for key in self._shared_tasks if matches(key, None)]:
            del self._shared_tasks[key]

    async def close(self) -> None:
        """Stop the loads still under way."""
        for flight in self._running:
            flight.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _load(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        flight = asyncio.current_task()
        try:
            value = await load()
            if self._shared_tasks.get(key) is flight:
                self._keep(key, value)
            return value
        finally:
            if self._shared_tasks.get(key) is flight:
                del self._shared_tasks[key]

    def _keep(self, key: K, value: V) -> None:
        now = self._clock()
        for old in [old for old, (expires, _) in self._entries.items() if expires <= now]:
            del self._entries[old]
        self._entries[key] = (now + self._ttl, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def _landed(self, flight: asyncio.Task[V]) -> None:
        self._running.discard(flight)
        if not flight.cancelled():
            flight.exception()  # all who waited may have gone; an exception nobody took is not worth a warning

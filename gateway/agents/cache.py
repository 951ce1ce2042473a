"""A cache whose concurrent misses share one load, and that reads again in time what is in use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from gateway.errors import GatewayError, release_frames
from gateway.observe.metrics import Lookups

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Load = Callable[["V | None"], Awaitable[V]]
"""Loads a value, given the previous one."""


class _Entry(msgspec.Struct, Generic[V]):
    value: V
    expires: float


class SharedCache(Generic[K, V]):
    """Values by key, each for `ttl` seconds, at most `max_entries` of them (the least recently used is dropped first).

    A value that is used in the second half of its time is loaded again in the background, so that callers do not wait
    for a value that is in use. A load gets the key's previous value, which is at most `keep` seconds too old.

    All callers that ask for a key while it loads share that load; it continues if one of them is cancelled. A failed
    load raises for all of them and is not cached. For use on one event loop. counts: of values that were found in the
    cache, and of loads.
    """

    def __init__(
        self,
        ttl: float,
        max_entries: int,
        clock: Callable[[], float],
        keep: float = 0.0,
        counts: Lookups | None = None,
    ) -> None:
        self._ttl = ttl
        self._half_ttl = ttl / 2
        self._keep = keep
        self._max_entries = max_entries
        self._clock = clock
        self._counts = counts or Lookups()
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._shared_tasks: dict[K, asyncio.Task[V]] = {}
        self._running: set[asyncio.Task[V]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: K, load: Load[V]) -> V:
        """Return the cached value of `key`, or the result of `load`; raise what `load` raises."""
        entry = self._entries.get(key)
        left = entry.expires - self._clock() if entry is not None else 0.0
        if entry is None or left <= 0:
            return await asyncio.shield(self._start(key, load))
        if left <= self._half_ttl:
            self._start(key, load)
        self._entries.move_to_end(key)
        self._counts.cached += 1
        return entry.value

    def peek(self, key: K) -> V | None:
        """Return the cached value of `key`; None if there is none. It does not count as a use."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and self._clock() < entry.expires else None

    def drop(self, matches: Callable[[K, V | None], bool]) -> None:
        """Drop every value for which `matches(key, value)` is true; for a running load, `value` is None.

        A running load may have read what was just overwritten. Its current callers still get its value, but the value
        is not cached, and the next caller starts a new load.
        """
        for key in [key for key, entry in self._entries.items() if matches(key, entry.value)]:
            del self._entries[key]
        for key in [key for key in self._shared_tasks if matches(key, None)]:
            del self._shared_tasks[key]

    async def close(self) -> None:
        """Cancel the running loads."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, key: K, load: Load[V]) -> asyncio.Task[V]:
        task = self._shared_tasks.get(key)
        if task is None:
            task = self._shared_tasks[key] = asyncio.create_task(self._load(key, load))
            self._running.add(task)
            task.add_done_callback(self._finished)
        return task

    async def _load(self, key: K, load: Load[V]) -> V:
        task = asyncio.current_task()
        previous = self._entries.get(key)
        try:
            value = await load(previous.value if previous is not None else None)
            self._counts.read += 1
            if self._shared_tasks.get(key) is task:
                self._store(key, value)
            return value
        except Exception as error:
            self._counts.failed += 1
            if isinstance(error, GatewayError):
                release_frames(error)  # which hold the documents that were read
            raise
        finally:
            if self._shared_tasks.get(key) is task:
                del self._shared_tasks[key]
            del task  # it refers to an error, whose traceback refers to this frame

    def _store(self, key: K, value: V) -> None:
        """Store a value, and drop the least recently used ones that are too many or too old."""
        now, entries = self._clock(), self._entries
        while entries and next(iter(entries.values())).expires + self._keep <= now:
            entries.popitem(last=False)
        entries[key] = _Entry(value, now + self._ttl)
        entries.move_to_end(key)
        if len(entries) > self._max_entries:
            entries.popitem(last=False)

    def _finished(self, task: asyncio.Task[V]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here, so that asyncio does not warn if all callers were cancelled

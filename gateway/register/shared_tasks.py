"""Tasks that continue when their client disconnects, and that equal requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class SharedTasks:
    """Running tasks, for use on one event loop."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task. Shield it when you await it."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    async def share(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the running task for `key`; start one if there is none."""
        task = self._shared.get(key)
        if task is None:
            task = self._shared[key] = self.start(begin())
            task.add_done_callback(lambda _: self._shared.pop(key, None))
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it if nobody is waiting

    async def ended(self) -> None:
        """Wait until no task is running. If this is cancelled, so are the tasks."""
        try:
            while self._running:
                await asyncio.wait(self._running)
        except asyncio.CancelledError:
            late = list(self._running)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            raise

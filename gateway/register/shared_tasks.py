"""Work that goes on when the client that asked for it has gone, and that equal requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class SharedTasks:
    """Tasks under way. For use on one event loop."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin; whoever awaits the task shields it."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._landed)
        return task

    async def share(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what the work under way for `key` comes to, begun here if there is none."""
        task = self._shared.get(key)
        if task is None:
            task = self._shared[key] = self.start(begin())
            task.add_done_callback(lambda _: self._shared.pop(key, None))
        return await asyncio.shield(task)

    def _landed(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody may have

    async def ended(self) -> None:
        """Wait until nothing is under way; if this is cancelled, so is what is."""
        try:
            while self._running:
                await asyncio.wait(self._running)
        except asyncio.CancelledError:
            late = list(self._running)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            raise

"""One thread for work that would block the event loop, and tasks that no request waits for.

It is a single thread and not a pool, because Python runs one thread at a time anyway: the loop competes with at most
one other thread, and at most one large body is processed at a time. A single call of C code must not take more than a
few milliseconds, because that blocks the loop too.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from itertools import count
from typing import Any, Generic, ParamSpec, TypeVar, cast

from gateway.errors import GatewayError, release_frames

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Task(Generic[_T]):
    """A function to run, and then what came of it.

    The thread still holds the task for a while after it has woken the loop. So the task drops the function before that,
    and the outcome once the loop takes it: how long either is kept does not depend on the thread.
    """

    def __init__(self, work: Callable[[], _T]) -> None:
        self.ended: Future[None] = Future()
        self._held: list[Any] = [work]
        self._failed = False

    def run(self) -> None:
        """Run the function, unless nobody waits for it any more."""
        if self.ended.set_running_or_notify_cancel():
            self._held.append(self._outcome())
            self.ended.set_result(None)

    def _outcome(self) -> Any:
        try:
            return self._held.pop()()
        except BaseException as error:
            if isinstance(error, GatewayError):
                release_frames(error)
            self._failed = True
            return error

    def take(self) -> _T:
        """Return what the function returned, or raise its error."""
        if not self._failed:
            return cast(_T, self._held.pop())
        raise self._held.pop()


class Worker:
    """A thread that runs functions one after the other. It starts on first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.PriorityQueue[tuple[int, int, _Task[Any]]] = queue.PriorityQueue()
        self._numbers = count()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `function` on the thread. It is skipped if the caller is cancelled while it waits."""
        return await self._run(1, lambda: function(*args, **kwargs))

    async def run_next(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `function` before everything queued by `run`. For work that frees memory."""
        return await self._run(0, lambda: function(*args, **kwargs))

    async def _run(self, rank: int, work: Callable[[], _T]) -> _T:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        task = _Task(work)
        del work  # the task alone holds it
        self._waiting.put((rank, next(self._numbers), task))
        await asyncio.wrap_future(task.ended)
        return task.take()

    def _serve(self) -> None:
        while True:
            self._waiting.get()[2].run()  # no reference to the task remains afterwards


READING = Worker("reading")
"""Processes large bodies: decompression, JSON, validation of `input`, the rewrite."""


async def run_here_if(small: bool, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call `function` directly if the work is `small`, otherwise on the reading thread."""
    if small:
        return function(*args, **kwargs)
    return await READING.run_next(function, *args, **kwargs)


class Background:
    """Tasks that run to their end, whatever happens to the request that began them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin `work`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def ended(self) -> None:
        """Wait until no task runs any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)  # which, if cancelled, does not cancel them

    async def close(self, seconds: float = 0.0) -> None:
        """Wait so long for the tasks, then cancel them."""
        if self._tasks and seconds:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

"""One thread for work that would keep the event loop from its other clients.

One, and not a pool: Python runs one thread at a time anyway, so the loop competes with at most one other, and only
one large body is being read at a time, whatever number of them has come. The work given to it must not stay in one
call of C code for more than a few milliseconds, as that keeps the loop from running, too.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, ParamSpec, TypeVar

from gateway.errors import GatewayError, release_frames

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Work = Callable[[], Any]


class Worker:
    """A thread that does one thing after the other; it starts when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.PriorityQueue[tuple[int, int, Future[Any], _Work]] = queue.PriorityQueue()
        self._numbers = count()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `function` on the thread. It is skipped if the caller is cancelled while it waits."""
        return await self._run(1, lambda: function(*args, **kwargs))

    async def run_next(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """As `run`, but before all work that waits in `run`: for what frees memory by being done."""
        return await self._run(0, lambda: function(*args, **kwargs))

    async def _run(self, rank: int, work: Callable[[], _T]) -> _T:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        future: Future[_T] = Future()
        self._waiting.put((rank, next(self._numbers), future, work))
        del work
        try:
            return await asyncio.wrap_future(future)
        finally:
            # An error's traceback refers to this frame: were it to refer back, both would stay, with the body, until
            # the next garbage collection.
            del future

    def _serve(self) -> None:
        while True:
            _do(*self._waiting.get()[2:])  # nothing here refers to the work once it is done


def _do(future: Future[Any], work: _Work) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except GatewayError as error:
        release_frames(error)
        future.set_exception(error)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


READING = Worker("reading")
"""Reads large bodies and plans what is sent for them: decompression, JSON, the check of `input`, the rewrite."""


async def run_here_if(small: bool, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call `function`: at once if the work is `small`, on the reading thread if it is not."""
    if small:
        return function(*args, **kwargs)
    return await READING.run_next(function, *args, **kwargs)

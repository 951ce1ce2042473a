"""One thread for work that would block the event loop.

It is a single thread and not a pool, because Python runs one thread at a time anyway: the loop competes with at most
one other thread, and at most one large body is processed at a time. A single call of C code must not take more than a
few milliseconds, because that blocks the loop too.
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
    """A thread that runs functions one after the other. It starts on first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.PriorityQueue[tuple[int, int, Future[Any], _Work]] = queue.PriorityQueue()
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
        future: Future[_T] = Future()
        self._waiting.put((rank, next(self._numbers), future, work))
        del work
        try:
            return await asyncio.wrap_future(future)
        finally:
            # An error's traceback refers to this frame. A reference back would make a cycle, which would keep the body
            # in memory until the next garbage collection.
            del future

    def _serve(self) -> None:
        while True:
            _do(*self._waiting.get()[2:])  # no reference to the work remains afterwards


def _do(future: Future[Any], work: _Work) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except GatewayError as error:
        release_frames(error)
        future.set_exception(error)
    except StopIteration as error:  # no future of asyncio takes it, so the caller would wait for ever
        future.set_exception(RuntimeError("StopIteration").with_traceback(error.__traceback__))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


READING = Worker("reading")
"""Processes large bodies: decompression, JSON, validation of `input`, the rewrite."""


async def run_here_if(small: bool, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call `function` directly if the work is `small`, otherwise on the reading thread."""
    if small:
        return function(*args, **kwargs)
    return await READING.run_next(function, *args, **kwargs)

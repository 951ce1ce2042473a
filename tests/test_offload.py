"""The thread for large bodies: one function at a time, in order, and none for a disconnected client."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.errors import GatewayError, InvalidInput
from gateway.offload import Worker, run_here_if


@pytest.fixture
def worker() -> Worker:
    return Worker("test")


def holds(worker: Worker) -> tuple[asyncio.Task[None], Callable[[], None]]:
    """Work that keeps the thread busy until it is released."""
    gate = threading.Event()
    return asyncio.create_task(worker.run(lambda: gate.wait(60) and None)), gate.set


async def test_results_and_errors_come_back(worker: Worker) -> None:
    assert await worker.run(int, "7") == 7
    assert await worker.run_next(sorted, [1, 2], reverse=True) == [2, 1]
    with pytest.raises(ValueError, match="invalid literal"):
        await worker.run(int, "x")
    assert await worker.run(threading.get_ident) == await worker.run_next(threading.get_ident) != threading.get_ident()


@pytest.mark.parametrize("small", [True, False])
async def test_an_iterator_that_ends_too_soon_is_an_error(small: bool) -> None:
    with pytest.raises(RuntimeError):
        await run_here_if(small, lambda: next(iter(())))


async def test_one_thing_at_a_time_and_what_is_urgent_first(worker: Worker) -> None:
    order: list[str] = []
    first, go = holds(worker)
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(worker.run(order.append, name)) for name in "ab"]
    waiting += [asyncio.create_task(worker.run_next(order.append, name)) for name in "cd"]
    await asyncio.sleep(0)
    assert not order
    go()
    await asyncio.gather(first, *waiting)
    assert "".join(order) == "cdab"


async def test_work_nobody_waits_for_is_skipped(worker: Worker) -> None:
    order: list[str] = []
    first, go = holds(worker)
    await asyncio.sleep(0)
    gone, stays = (asyncio.create_task(worker.run(order.append, name)) for name in ("gone", "stays"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    go()
    await asyncio.gather(first, stays)
    assert order == ["stays"]


class Body:
    def __init__(self, made_of: Body | None = None) -> None:
        self.made_of = made_of


@contextlib.contextmanager
def slow_to_return(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop every thread that calls the loop right after it did, until the end of the block."""
    loop, ended = asyncio.get_running_loop(), threading.Event()
    tell = loop.call_soon_threadsafe

    def tell_and_wait(*args: Any, **kwargs: Any) -> None:
        tell(*args, **kwargs)
        ended.wait(60)

    monkeypatch.setattr(loop, "call_soon_threadsafe", tell_and_wait)
    try:
        yield
    finally:
        ended.set()


@pytest.mark.parametrize("fails", [True, False])
async def test_nothing_holds_the_body_once_it_was_read(
    worker: Worker, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(body: Body) -> Body:
        if fails:
            try:
                raise KeyError(body)
            except KeyError:
                raise InvalidInput("wrong") from None
        return Body(body)

    async def handle() -> weakref.ref[Body]:
        body = Body()
        with contextlib.suppress(GatewayError):
            assert (await worker.run(read, body)).made_of is body
        return weakref.ref(body)

    gc.disable()
    try:
        with slow_to_return(monkeypatch):
            assert (await handle())() is None
    finally:
        gc.enable()

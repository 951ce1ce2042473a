import asyncio
import gc

import pytest

from gateway.agents.cache import SharedCache

from .conftest import Clock


async def test_a_failure_nobody_waits_for_any_more_is_no_unhandled_exception(clock: Clock) -> None:
    cache: SharedCache[str, int] = SharedCache(10, 10, clock)
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    go = asyncio.Event()

    async def fail() -> int:
        await go.wait()
        raise OSError("down")

    waiter = asyncio.create_task(cache.get("k", fail))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    go.set()
    await asyncio.wait(cache._running)
    await asyncio.sleep(0)
    gc.collect()  # a task reports the exception nobody took when it is collected
    assert not cache._running
    assert reports == []
    assert len(cache) == 0


async def test_close_stops_what_is_under_way(clock: Clock) -> None:
    cache: SharedCache[str, int] = SharedCache(10, 10, clock)

    async def never() -> int:
        await asyncio.Event().wait()
        return 1

    waiter = asyncio.create_task(cache.get("k", never))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert not cache._running


async def test_a_load_dropped_on_the_way_leaves_its_successor_alone(clock: Clock) -> None:
    cache: SharedCache[str, str] = SharedCache(10, 10, clock)
    gates = {"old": asyncio.Event(), "new": asyncio.Event()}

    async def load(name: str) -> str:
        await gates[name].wait()
        return name

    old = asyncio.create_task(cache.get("k", lambda: load("old")))
    await asyncio.sleep(0)
    cache.drop(lambda key, value: key == "k" and value is None)
    new = asyncio.create_task(cache.get("k", lambda: load("new")))
    await asyncio.sleep(0)
    gates["old"].set()
    assert await old == "old"
    joined = asyncio.create_task(cache.get("k", lambda: load("never")))
    await asyncio.sleep(0)
    gates["new"].set()
    assert (await new, await joined) == ("new", "new")
    assert await cache.get("k", lambda: load("never")) == "new"

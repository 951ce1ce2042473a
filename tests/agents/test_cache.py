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

    async def fail(_: int | None) -> int:
        await go.wait()
        raise OSError("down")

    waiter = asyncio.create_task(cache.get("k", fail))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    go.set()
    await _loads_end()
    gc.collect()  # a task reports the exception nobody took when it is collected
    assert reports == []
    assert len(cache) == 0


async def test_close_stops_what_is_under_way(clock: Clock) -> None:
    cache: SharedCache[str, int] = SharedCache(10, 10, clock)

    under_way = []

    async def never(_: int | None) -> int:
        under_way.append("k")
        try:
            return await asyncio.Event().wait()
        finally:
            under_way.remove("k")

    waiter = asyncio.create_task(cache.get("k", never))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert under_way == ["k"]
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert under_way == []


async def test_a_load_dropped_on_the_way_leaves_its_successor_alone(clock: Clock) -> None:
    cache: SharedCache[str, str] = SharedCache(10, 10, clock)
    gates = {"old": asyncio.Event(), "new": asyncio.Event()}

    async def load(name: str) -> str:
        await gates[name].wait()
        return name

    old = asyncio.create_task(cache.get("k", lambda _: load("old")))
    await asyncio.sleep(0)
    cache.drop(lambda key, value: key == "k" and value is None)
    new = asyncio.create_task(cache.get("k", lambda _: load("new")))
    await asyncio.sleep(0)
    gates["old"].set()
    assert await old == "old"
    joined = asyncio.create_task(cache.get("k", lambda _: load("never")))
    await asyncio.sleep(0)
    gates["new"].set()
    assert (await new, await joined) == ("new", "new")
    assert await cache.get("k", lambda _: load("never")) == "new"


async def test_a_value_in_use_is_loaded_again_while_callers_go_on_with_it(clock: Clock) -> None:
    cache: SharedCache[str, int] = SharedCache(10, 10, clock)
    loaded = asyncio.Event()

    async def load(previous: int | None) -> int:
        await loaded.wait()
        return (previous or 0) + 1

    loaded.set()
    assert await cache.get("k", load) == 1
    clock.now += 4.9
    loaded.clear()
    assert (await cache.get("k", load), cache.peek("k")) == (1, 1)
    loaded.set()
    await _loads_end()
    assert cache.peek("k") == 1
    loaded.clear()
    clock.now += 0.1
    assert await cache.get("k", load) == 1
    assert cache.peek("k") == 1
    assert await cache.get("k", load) == 1
    loaded.set()
    await _loads_end()
    assert await cache.get("k", load) == cache.peek("k") == 2
    clock.now += 10
    assert cache.peek("k") is None
    assert await cache.get("k", load) == 3


async def test_the_least_recently_used_value_is_dropped(clock: Clock) -> None:
    cache: SharedCache[int, int] = SharedCache(10, 3, clock)

    async def load(_: int | None) -> int:
        return 1

    for key in (1, 2, 3, 1, 4):
        await cache.get(key, load)
    assert [cache.peek(key) is not None for key in (1, 2, 3, 4)] == [True, False, True, True]


async def test_a_load_in_the_background_that_fails_leaves_the_value_its_time(clock: Clock) -> None:
    cache: SharedCache[str, int] = SharedCache(10, 10, clock)

    async def load(_: int | None) -> int:
        return 1

    async def fail(_: int | None) -> int:
        raise OSError("down")

    await cache.get("k", load)
    clock.now += 6
    assert await cache.get("k", fail) == 1
    await _loads_end()
    assert await cache.get("k", fail) == 1
    clock.now += 4
    with pytest.raises(OSError, match="down"):
        await cache.get("k", fail)


async def test_a_value_that_is_too_old_is_given_to_the_load_for_a_while(clock: Clock) -> None:
    cache: SharedCache[str, int] = SharedCache(10, 10, clock, keep=60)

    async def load(previous: int | None) -> int:
        return (previous or 0) + 1

    await cache.get("k", load)
    clock.now += 69
    assert await cache.get("k", load) == 2
    clock.now += 71
    await cache.get("other", load)
    assert await cache.get("k", load) == 1


async def _loads_end() -> None:
    """Let the loads run that need nothing more."""
    for _ in range(10):
        await asyncio.sleep(0)

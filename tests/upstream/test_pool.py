"""Places in a pool: each belongs to one owner, and one that becomes free goes to the next request that waits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from gateway.config.schema import Upstream as Settings
from gateway.http1.response_heads import ResponseReader
from gateway.http1.rules import HeadLimits
from gateway.upstream.client import Upstream, WholeResponse
from gateway.upstream.connection import Connection
from gateway.upstream.nodes import NodeSet
from gateway.upstream.outbound import OutboundRequest, ResponseTimeouts
from gateway.upstream.pool import Pool
from tests.conftest import settings_for
from tests.wire import PATIENCE, RecordingUpstream

NO_WAIT = float("inf")


@contextlib.asynccontextmanager
async def _pool(limit: int, keepalive: float = 15.0) -> AsyncIterator[Pool]:
    """A pool in front of an upstream, which is empty again at the end."""
    async with RecordingUpstream() as upstream:
        [node] = NodeSet(Settings(url=upstream.url)).nodes
        every: set[Connection] = set()
        pool = Pool(node, None, limit, keepalive, 30.0, ResponseReader(HeadLimits()), every, lambda *_: False)
        yield pool
        await pool.close()
        while pool.connections:  # noqa: ASYNC110  # until the loop has reported the last
            await asyncio.sleep(0)
        assert (pool.used_slots, every) == (0, set())


async def _waiting(pool: Pool, count: int) -> list[asyncio.Task[Connection]]:
    tasks = [asyncio.create_task(pool.acquire()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_request_cancelled_at_any_moment_takes_no_place() -> None:
    """uvloop connects and cancels in either order: the connection belongs to the pool, not to the request."""
    async with _pool(2) as pool:
        for turns in [*range(12)] * 4:
            task = asyncio.create_task(pool.acquire())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                pool.give_back(await task)
            if turns % 3 == 0:  # the next one must connect again
                for connection in list(pool.connections):
                    connection.transport.abort()
        held = [await pool.acquire(), await pool.acquire()]
        assert pool.connections == set(held)
        assert pool.used_slots == 2
        for connection in held:
            pool.give_back(connection)


async def test_a_place_whose_owner_is_lost_goes_to_the_next_request() -> None:
    async with _pool(1) as pool:
        first = await pool.acquire()
        cancelled, other = await _waiting(pool, 2)
        first.transport.abort()
        cancelled.cancel()
        second = await other
        assert second is not first
        assert pool.connections == {second}


async def test_a_connection_given_to_a_cancelled_request_goes_to_the_next() -> None:
    async with _pool(1) as pool:
        first = await pool.acquire()
        cancelled, other = await _waiting(pool, 2)
        pool.give_back(first)
        cancelled.cancel()
        assert await other is first
        assert cancelled.cancelled()


async def test_a_request_sent_again_gets_a_connection_that_nobody_used() -> None:
    async with _pool(2) as pool:
        first = await pool.acquire()
        again, other = asyncio.create_task(pool.acquire(fresh=True)), asyncio.create_task(pool.acquire())
        await asyncio.sleep(0)
        first.reused = True
        pool.give_back(first)
        assert await other is first  # the attempt for the other request is under way
        second = await again
        assert not second.reused
        second.reused = True
        last, after = asyncio.create_task(pool.acquire(fresh=True)), asyncio.create_task(pool.acquire())
        await asyncio.sleep(0)
        pool.give_back(first)  # its slot is the only one for a fresh connection
        third = await last
        assert not third.reused
        assert not after.done()
        pool.give_back(second)
        assert await after is second


async def test_a_failed_attempt_is_told_to_one_request_only() -> None:
    async with RecordingUpstream() as upstream:
        [node] = NodeSet(Settings(url=upstream.url)).nodes
    pool = Pool(node, None, 1, 15.0, 30.0, ResponseReader(HeadLimits()), set(), lambda *_: False)
    for task in await _waiting(pool, 3):
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await task
    assert pool.used_slots == 0
    assert pool.waiting_since == NO_WAIT  # so the pool is not taken for stuck once the node is back


def _upload() -> OutboundRequest:
    outbound = _request()
    outbound.complete = False
    return outbound


async def test_bodies_on_their_way_take_half_of_the_connections_at_most() -> None:
    async with _pool(4) as pool:
        first, second, third, fourth = (_upload() for _ in range(4))
        await pool.admit_upload(first)
        assert pool.try_upload(second)
        assert not pool.try_upload(third)
        waiting, cancelled = (asyncio.create_task(pool.admit_upload(one)) for one in (third, fourth))
        await asyncio.sleep(0)
        assert not waiting.done()
        pool.end_upload(first)
        await waiting
        pool.end_upload(third)
        cancelled.cancel()  # woken just before: the next is woken in its place
        fifth = asyncio.create_task(pool.admit_upload(_upload()))
        await fifth


async def test_a_body_that_has_come_whole_waits_no_longer() -> None:
    async with _pool(2) as pool:
        assert pool.try_upload(_upload())
        outbound = _upload()
        waiting = asyncio.create_task(pool.admit_upload(outbound))
        await asyncio.sleep(0)
        outbound.complete = True
        assert outbound.upload_waiter is not None
        outbound.upload_waiter.set_result(None)
        await waiting


async def test_a_place_that_a_whole_body_no_longer_needs_goes_to_the_next() -> None:
    async with _pool(2) as pool:
        first, second = _upload(), _upload()
        assert pool.try_upload(first)
        waiting = [asyncio.create_task(pool.admit_upload(one)) for one in (second, _upload())]
        await asyncio.sleep(0)
        pool.end_upload(first)
        second.complete = True
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)


async def test_idle_connections_stay_open_where_their_timeout_is_off() -> None:
    async with _pool(1, keepalive=0.0) as pool:
        connection = await pool.acquire()
        pool.give_back(connection)
        assert connection.deadline > time.monotonic() + 86_400
        assert pool.take() is connection


async def test_a_pool_whose_waiters_left_is_not_stuck() -> None:
    async with _pool(1) as pool:
        first = await pool.acquire()
        [waiter] = await _waiting(pool, 1)
        assert pool.waiting_since < NO_WAIT
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        pool.give_back(first)
        assert pool.waiting_since == NO_WAIT


async def test_a_pool_that_gives_nobody_a_connection_is_rebuilt() -> None:
    async with RecordingUpstream() as recording:
        settings = settings_for(recording.url, {"upstream": {"url": recording.url, "connections": 1}})
        upstream = Upstream(settings.upstream, settings.limits)
        await upstream.start()
        try:
            [pool] = upstream._pools.values()
            lost = await pool.acquire()  # a place whose owner never gives it back
            [waiting] = await _waiting(pool, 1)
            await upstream.rebuild_stuck(pool, pool.waiting_since + 29)
            assert pool.connections == {lost}
            await upstream.rebuild_stuck(pool, pool.waiting_since + 31)
            connection = await waiting
            assert pool.connections == {connection}
            [state] = upstream.nodes.states()
            assert state.rebuilds == 1

            connection.start(_request(), b"\r\n", ())  # busy with a request: waiting is right
            [waiting] = await _waiting(pool, 1)
            await upstream.rebuild_stuck(pool, pool.waiting_since + 31)
            assert pool.connections == {connection}
            assert not waiting.done()
            waiting.cancel()
        finally:
            await upstream.close()


def _request() -> OutboundRequest:
    return WholeResponse(b"POST", b"/", [], (), ResponseTimeouts(0, 0), 1000).outbound

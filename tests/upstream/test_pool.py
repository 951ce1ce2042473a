"""Places in a pool: each that becomes free goes to somebody who waits, whoever gives up meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.config.schema import Upstream as Settings
from gateway.upstream.answers import Heads
from gateway.upstream.connection import Connection
from gateway.upstream.grammar import HeadLimits
from gateway.upstream.nodes import NodeSet
from gateway.upstream.pool import Pool
from tests.wire import RecordingUpstream


def _pool(url: str) -> Pool:
    [node] = NodeSet(Settings(url=url)).nodes
    return Pool(node, None, 1, 15.0, Heads(HeadLimits()), set(), lambda *_: False)


async def _waiting(pool: Pool, count: int) -> list[asyncio.Task[Connection]]:
    tasks = [asyncio.create_task(pool.open()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_place_whose_taker_gives_up_goes_to_the_next() -> None:
    async with RecordingUpstream() as upstream:
        pool = _pool(upstream.url)
        first = await pool.open()
        taker, other = await _waiting(pool, 2)
        lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        discard = pool.discard

        def lose(connection: Connection) -> None:
            discard(connection)
            taker.cancel()  # after it was told, before it knows
            lost.set_result(None)

        pool.discard = lose  # type: ignore[method-assign]
        first.transport.abort()
        await lost
        pool.discard = discard  # type: ignore[method-assign]
        second = await asyncio.wait_for(other, 5)
        assert taker.cancelled()
        second.transport.abort()


async def test_a_connection_whose_taker_gives_up_goes_to_the_next() -> None:
    async with RecordingUpstream() as upstream:
        pool = _pool(upstream.url)
        first = await pool.open()
        taker, other = await _waiting(pool, 2)
        pool.give_back(first)
        taker.cancel()
        assert await asyncio.wait_for(other, 5) is first
        assert taker.cancelled()
        first.transport.abort()

"""Requests of all kinds with 5 % faults: no wrong answer, nothing sent twice that must not be, nothing left over."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.conftest import share
from tests.faults.deployment import LONG, resident, running_gateway, sockets
from tests.faults.mix import Mix
from tests.faults.upstream import WHOLE, FaultyUpstream, settled

MB = 1024 * 1024
LIMITS = {"connect": 60, "header": 5, "idle": 5, "execute": 5}
"""Seconds: short, as each fault that lasts takes as long, but not so short that a busy machine makes faults itself."""

PARTS = 5

POOLED = 2 * 48
"""Both ends of the connections that the pool keeps: one a client, and half as many again, as some clients leave and
come back while what they asked for is still on its way."""


async def _run(requests: int, lasting: float) -> Mix:
    """The mix in parts, with memory and sockets taken after each: what grows does so from part to part."""
    upstream = FaultyUpstream()
    async with running_gateway(upstream, timeouts=LIMITS if lasting else LONG) as gateway:
        tasks, before, levels = asyncio.all_tasks(), sockets(), []
        mix = Mix(gateway.data_port, upstream, lasting=lasting)
        for _ in range(PARTS):
            upstream.over.clear()
            await mix.run(requests // PARTS)
            upstream.over.set()  # connections that it stopped reading from are read to their end now
            assert await settled(lambda: asyncio.all_tasks() <= tasks), asyncio.all_tasks() - tasks
            assert await settled(lambda: len(sockets() - before) <= POOLED), sockets() - before
            assert mix.repeated() == []
            assert mix.wrong == []
            gc.collect()
            levels.append((resident() / MB, len(sockets() - before)))
        print(
            f"\n{requests} requests: {dict(mix.verdicts)}, {mix.gone} clients gone, {mix.spared} POSTs on a dying"
            f" connection; MB and sockets: {[f'{memory:.1f} {count}' for memory, count in levels]}"
        )
        assert mix.spared < requests / 200
        assert levels[-1][0] - levels[1][0] < 4
    return mix


async def test_a_thousand() -> None:
    mix = await _run(1_000, lasting=0)
    assert mix.verdicts[WHOLE] > 900


@pytest.mark.slow(40)
async def test_a_hundred_thousand() -> None:
    requests = share(100_000)
    mix = await _run(requests, lasting=0.1)
    assert mix.verdicts[WHOLE] > 0.94 * requests

"""Gateways that share a budget, and more requests than it allows."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.execute.stub_cluster import V2
from tests.policy.conftest import TOTAL, Place, Start

UNIFIED: dict[str, Any] = {"input": "hi"}


async def run_against(places: list[Place], total: int, at_a_time: int) -> list[int]:
    """Send `total` requests, `at_a_time` at a time, to the gateways in turn. Return the statuses."""
    left = iter(range(total))
    statuses: list[int] = []

    async def client() -> None:
        for number in left:
            statuses.append((await places[number % len(places)].execute(V2, UNIFIED)).status)

    await asyncio.gather(*(client() for _ in range(at_a_time)))
    return statuses


async def overspend(start: Start, store: str, memory: dict[str, Any], total: int, at_a_time: int) -> int:
    """Send `total` requests to two gateways whose budget is enough for a third of them. Return how many ran.

    store, memory: where the gateways keep what was spent. Asserts that the budget is overspent by no more requests than
    run at the same time.
    """
    allowed = total // 3
    policy = {"budgets": [{"tokens": TOTAL["totalTokens"] * allowed, "seconds": 31_536_000}], "budget_store": store}
    places = [await start(policy, memory=memory) for _ in range(2)]
    statuses = await run_against(places, total, at_a_time)
    assert set(statuses) == {200, 429}, set(statuses)
    ran = statuses.count(200)
    assert len(places[0].cluster.bodies) == ran
    assert allowed <= ran <= allowed + at_a_time
    return ran

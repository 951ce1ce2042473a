"""What runs of agents with gateway memory leave in the cluster's own memory is deleted, as the settings say."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.sessions.conftest import Cluster, StartCluster

AGENT = "conv-b"


async def three_turns(cluster: Cluster) -> str:
    memory_id = ""
    for text in ("One.", "Two.", "Three."):
        answered = await cluster.ask(AGENT, {"input": text}, memory_id)
        assert answered.status == 200, answered.body
        memory_id = answered.memory_id
    return memory_id


async def delete(cluster: Cluster, memory_id: str) -> int:
    url = f"http://127.0.0.1:{cluster.gateways[-1].data_port}/_plugins/_ml/memory/{memory_id}"
    async with aiohttp.ClientSession() as client, client.delete(url) as response:
        return response.status


async def copies(cluster: Cluster) -> int:
    """Stop the gateway, which waits for its deletions. Return how many conversations the cluster has."""
    await cluster.gateways[-1].stop()
    return len(cluster.simulator.core.memory.memories)


@pytest.mark.parametrize(("when", "left"), [("after_turn", 0), ("with_session", 3), ("keep", 3)])
async def test_after_three_turns(start_cluster: StartCluster, when: str, left: int) -> None:
    cluster = await start_cluster("2.19.0", {"cluster_copies": when})
    await three_turns(cluster)
    assert await copies(cluster) == left


@pytest.mark.parametrize(("when", "left"), [("with_session", 0), ("keep", 3)])
async def test_after_the_session_was_deleted(start_cluster: StartCluster, when: str, left: int) -> None:
    cluster = await start_cluster("2.19.0", {"cluster_copies": when})
    memory_id = await three_turns(cluster)
    assert len(cluster.simulator.core.memory.memories) == 3
    assert await delete(cluster, memory_id) == 200
    assert await delete(cluster, memory_id) == 404
    assert await copies(cluster) == left


async def test_what_is_left_after_a_turn_is_deleted_with_the_session(start_cluster: StartCluster) -> None:
    cluster = await start_cluster("2.19.0", {"cluster_copies": "with_session"})
    memory_id = await three_turns(cluster)
    await cluster.start({"memory": {**cluster.settings["memory"], "cluster_copies": "after_turn"}})
    assert await delete(cluster, memory_id) == 200
    assert await copies(cluster) == 0


async def test_with_a_session_that_expires(start_cluster: StartCluster) -> None:
    cluster = await start_cluster("2.19.0", {"cluster_copies": "with_session"})
    await three_turns(cluster)
    await cluster.gateways[-1].stop()
    retention = {"seconds": 0.001, "check_seconds": 0.01}
    gateway = await cluster.start({"memory": {**cluster.settings["memory"], "retention": retention}})
    while 'mlc_gateway_cluster_copies_total{outcome="deleted"} 3' not in await metrics(gateway):
        pass
    assert await copies(cluster) == 0


async def metrics(gateway: Any) -> str:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{gateway.admin_port}/metrics") as got:
        return await got.text()

"""A workload of bulks, queries and single writes, eight at a time, through the gateway to a real OpenSearch.

Not one may fail; and every exchange that passed the gateway's front passed its back, byte for byte.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from opensearchpy import AsyncOpenSearch

from tests.exactness.compare import exact
from tests.exactness.conftest import Deployment, Ledger
from tests.exactness.scenario import MAPPING, book

pytestmark = [pytest.mark.real_cluster, pytest.mark.asyncio(loop_factories=["asyncio"])]

OPERATIONS = 5_000
CONCURRENCY = 8
INDEX = "exact-load"


async def one(client: Any, number: int, dice: random.Random) -> None:
    """One operation of the mix; the client raises for any answer of 400 or more."""
    id = str(dice.randrange(2_000))
    match dice.randrange(10):
        case 0:
            lines = [line for n in range(20) for line in ({"index": {"_index": INDEX}}, book(number + n))]
            answer = await client.bulk(body=lines)
            assert not answer["errors"]
        case 1 | 2:
            await client.index(index=INDEX, id=id, body=book(number))
        case 3:
            await client.exists(index=INDEX, id=id)
        case 4:
            await client.update(
                index=INDEX, id=id, body={"doc": {"n": number}, "doc_as_upsert": True}, retry_on_conflict=8
            )
        case 5:
            await client.msearch(body=[{"index": INDEX}, {"size": 1}, {"index": INDEX}, {"size": 0}])
        case 6:
            await client.count(index=INDEX)
        case _:
            query = {"query": {"match": {"title": "Bücher"}}, "size": dice.choice([0, 10, 100])}
            answer = await client.search(index=INDEX, body=query)
            assert not answer["timed_out"]


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
async def test_mixed_workload_runs_without_an_error(compress: bool, deployment: Deployment, ledger: Ledger) -> None:
    for recorder in (deployment.client_side, deployment.cluster_side):
        recorder.forget()
    numbers = iter(range(OPERATIONS))
    options: dict[str, Any] = {"http_compress": compress, "max_retries": 0, "timeout": 60}
    async with AsyncOpenSearch(deployment.client_side.url, maxsize=CONCURRENCY, **options) as client:
        await client.indices.delete(index=INDEX, ignore_unavailable=True)
        await client.indices.create(index=INDEX, body=MAPPING)

        async def worker(seed: int) -> None:
            dice = random.Random(seed)
            for number in numbers:
                await one(client, number, dice)

        async with asyncio.TaskGroup() as workers:
            for seed in range(CONCURRENCY):
                workers.create_task(worker(seed))
        await client.indices.delete(index=INDEX)
    before, behind = (
        Counter(map(exact, recorder.exchanges())) for recorder in (deployment.client_side, deployment.cluster_side)
    )
    assert before.total() >= OPERATIONS
    assert before == behind
    ledger.add("workload", before.total())

"""What was spent, in an index of a real cluster: the tests of every store, and two gateways that share a budget."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.config.memory import Memory, OpenSearchStore
from gateway.policy.budget_stores import OpenSearchBudgetStore
from gateway.policy.budgets import Account, BudgetStoreError
from tests.policy.budget_store_conformance import NEXT, ONE, BudgetStoreConformance, Make, T
from tests.policy.conftest import Start, start
from tests.policy.overspending import overspend

from .agents import Api

__all__ = ["start"]
pytestmark = pytest.mark.real_cluster
PREFIX = "real-budgets"
INDEX = f"{PREFIX}-budgets"


@pytest.fixture
def memory(api: Api) -> Iterator[Memory]:
    yield Memory(opensearch=OpenSearchStore(url=api.url, prefix=PREFIX))
    api.must("DELETE", f"/{INDEX}")


class TestIndex(BudgetStoreConformance):
    @pytest.fixture
    async def make(self, memory: Memory) -> AsyncIterator[Make]:
        made: list[OpenSearchBudgetStore] = []

        def make() -> OpenSearchBudgetStore:
            made.append(OpenSearchBudgetStore(memory.opensearch, ""))
            return made[-1]

        yield make
        for store in made:
            await store.close()


async def test_the_index_is_made_again_and_cleaned(api: Api, memory: Memory) -> None:
    now = [float(T)]
    store = OpenSearchBudgetStore(memory.opensearch, "", lambda: now[0])
    await store.add({ONE: 1.0})
    mapping = api.must("GET", f"/{INDEX}/_mapping")[INDEX]["mappings"]
    assert mapping["properties"]["until"] == {"type": "date", "format": "epoch_second"}
    api.must("POST", f"/{INDEX}/_refresh")
    now[0] = T + 4000.0
    later = Account("c" * 32, T + 3960, T + 4020)
    await store.add({later: 1.0})
    assert store._cleaning is not None
    await store._cleaning
    assert await store.read([ONE, later]) == {later: 1.0}
    api.must("DELETE", f"/{INDEX}")
    with pytest.raises(BudgetStoreError, match="no such index"):
        await store.read([ONE])
    await store.add({NEXT: 2.0})
    api.must("DELETE", f"/{INDEX}")
    await store.add({NEXT: 3.0})
    assert await store.read([NEXT]) == {NEXT: 3.0}
    await store.close()


async def test_two_gateways_overspend_by_the_requests_in_flight_only(start: Start, memory: Memory) -> None:
    place = {"opensearch": {"url": memory.opensearch.url, "prefix": PREFIX}}
    ran = await overspend(start, "opensearch", place, 1000, 50)
    print(f"two gateways, 1,000 requests, 50 at a time: {ran} ran, 333 were allowed")

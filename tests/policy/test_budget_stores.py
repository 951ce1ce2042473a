"""What every store of what was spent does, and the ledger in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path

import pytest

from gateway.config.memory import Memory, OpenSearchStore, SqliteStore
from gateway.policy.budget_stores import FILE, OpenSearchBudgetStore, SqliteBudgetStore
from gateway.policy.budgets import (
    _CLEAN_AT,
    Account,
    BudgetStore,
    BudgetStoreError,
    Ledger,
    MemoryBudgetStore,
)
from gateway.policy.policies import build_store
from tests.memory.opensearch_server import OpenSearchServer
from tests.policy.budget_store_conformance import NEXT, ONE, OTHER, BudgetStoreConformance, Make, T

NOW = Account("c" * 32, T + 3960, T + 4020)
"""An account of a window an hour later."""


class TestEveryStore(BudgetStoreConformance):
    @pytest.fixture(params=["memory", "opensearch", "sqlite"])
    async def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
        async with OpenSearchServer() as server:
            memory = Memory(
                sqlite=SqliteStore(path=str(tmp_path / "memory.sqlite3")), opensearch=OpenSearchStore(url=server.url)
            )
            made: list[BudgetStore] = []

            def make() -> BudgetStore:
                made.append(build_store(request.param, memory, ""))
                return made[-1]

            yield make
            for store in made:
                await store.close()


async def test_the_memory_store_drops_past_windows() -> None:
    now = [float(T)]
    store = MemoryBudgetStore(lambda: now[0])
    past = [Account(f"{number:032}", T, T + 60) for number in range(_CLEAN_AT - 1)]
    await store.add(dict.fromkeys(past, 1.0))
    now[0] = T + 61.0
    await store.add({NEXT: 1.0})
    assert await store.read([*past, NEXT]) == {NEXT: 1.0}


async def test_the_file_drops_past_windows_and_is_private(tmp_path: Path) -> None:
    now = [float(T)]
    store = SqliteBudgetStore(tmp_path / FILE, lambda: now[0])
    await store.add({ONE: 1.0})
    now[0] = T + 4000.0
    await store.add({NOW: 1.0})
    assert await store.read([ONE]) == {}
    await store.close()
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


async def test_a_file_that_cannot_be_used_is_reported_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "no").write_text("")
    store = SqliteBudgetStore(tmp_path / "no" / FILE)
    with pytest.raises(BudgetStoreError, match="not a directory"):
        await store.read([ONE])
    (tmp_path / "no").unlink()
    await store.add({ONE: 1.0})
    assert await store.read([ONE]) == {ONE: 1.0}
    await store.close()


async def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    store = SqliteBudgetStore(tmp_path / FILE)
    with pytest.raises(BudgetStoreError, match="not a database"):
        await store.add({ONE: 1.0})
    await store.close()


_ADD = """
import asyncio, sys
from pathlib import Path
from gateway.policy.budget_stores import SqliteBudgetStore
from gateway.policy.budgets import Account

async def main():
    store = SqliteBudgetStore(Path(sys.argv[1]))
    for _ in range(50):
        await store.add({Account("a" * 32, 4_000_000_000, 4_000_000_060): 1.0})
    await store.close()

asyncio.run(main())
"""


async def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / FILE
    running = [await asyncio.create_subprocess_exec(sys.executable, "-c", _ADD, str(path)) for _ in range(2)]
    assert [await one.wait() for one in running] == [0, 0]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT amount FROM spent").fetchall() == [(100.0,)]


async def test_the_index_is_made_again_and_cleaned() -> None:
    now = [float(T)]
    async with OpenSearchServer() as server:
        memory = Memory(opensearch=OpenSearchStore(url=server.url))
        store = build_store("opensearch", memory, "")
        assert isinstance(store, OpenSearchBudgetStore)
        store._clock = lambda: now[0]
        store._cleaned = float(T)
        await store.add({ONE: 1.0})
        assert list(server.indices) == ["mlc-gateway-budgets"]
        index = server.indices["mlc-gateway-budgets"]
        assert [document.source for document in index.documents.values()] == [{"amount": 1.0, "until": T + 60}]
        index.refresh()
        now[0] = T + 4000.0
        await store.add({NOW: 1.0})
        assert store._cleaning is not None
        await store._cleaning
        assert await store.read([ONE]) == {}
        del server.indices["mlc-gateway-budgets"]
        with pytest.raises(BudgetStoreError, match="no such index"):
            await store.read([ONE])
        assert await store.read([ONE]) == {}
        await store.close()


async def test_a_deletion_that_fails_does_not_count_amounts_twice() -> None:
    async with OpenSearchServer() as server:
        store = build_store("opensearch", Memory(opensearch=OpenSearchStore(url=server.url)), "")
        assert isinstance(store, OpenSearchBudgetStore)
        store._clock = lambda: T + 4000.0
        store._cleaned = float(T)
        server.faults = {2: "forbidden"}
        ledger = Ledger(store)
        await ledger.add({NOW: 1.0})
        assert store._cleaning is not None
        await store._cleaning
        assert server.requests[-1][1] == "/mlc-gateway-budgets/_delete_by_query"
        await ledger.add({NOW: 1.0})
        assert await ledger.read([NOW]) == [2.0]
        await ledger.close()


async def test_a_read_waits_for_the_index_that_another_gateway_makes() -> None:
    async with OpenSearchServer() as server:
        store = build_store("opensearch", Memory(opensearch=OpenSearchStore(url=server.url)), "")
        server.faults = {1: "no shard"}
        assert await store.read([ONE]) == {}
        assert [path for _, path in server.requests] == ["/mlc-gateway-budgets", *["/mlc-gateway-budgets/_mget"] * 2]
        await store.close()


async def test_a_cluster_that_is_down_is_reported() -> None:
    async with OpenSearchServer() as server:
        store = build_store("opensearch", Memory(opensearch=OpenSearchStore(url=server.url)), "")
        server.faults = {0: "forbidden", 1: "text"}
        with pytest.raises(BudgetStoreError, match="no permissions"):
            await store.read([ONE])
        with pytest.raises(BudgetStoreError, match="did not answer with JSON"):
            await store.add({ONE: 1.0})
        await store.add({ONE: 1.0})
        assert await store.read([ONE]) == {ONE: 1.0}
        await store.close()


class SlowStore:
    """Waits for `gate` in each operation. calls: what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.gate = asyncio.Event()
        self.fails = False
        self.spent: dict[Account, float] = {}

    async def read(self, accounts: Sequence[Account]) -> Mapping[Account, float]:
        self.calls.append(set(accounts))
        await self.gate.wait()
        return self._checked(dict(self.spent))

    async def add(self, amounts: Mapping[Account, float]) -> None:
        self.calls.append(dict(amounts))
        await self.gate.wait()
        self._checked({})
        self.spent.update({account: self.spent.get(account, 0.0) + more for account, more in amounts.items()})

    def _checked(self, value: dict[Account, float]) -> dict[Account, float]:
        if self.fails:
            raise BudgetStoreError("down")
        return value

    async def close(self) -> None:
        self.calls.append("closed")


async def begin(*work: Awaitable[object]) -> list[asyncio.Future[object]]:
    """Begin, and let everything go as far as it can without the gate."""
    tasks = [asyncio.ensure_future(one) for one in work]
    for _ in range(10):
        await asyncio.sleep(0)
    return tasks


async def test_while_one_write_runs_the_others_are_added_up() -> None:
    store = SlowStore()
    ledger = Ledger(store)
    tasks = await begin(ledger.add({ONE: 1.0}))
    tasks += await begin(*(ledger.add({ONE: 1.0, OTHER: 1.0}) for _ in range(20)))
    assert store.calls == [{ONE: 1.0}]
    store.gate.set()
    await asyncio.gather(*tasks)
    assert store.calls == [{ONE: 1.0}, {ONE: 20.0, OTHER: 20.0}]


async def test_a_read_never_returns_what_was_read_before_it_was_asked_for() -> None:
    store = SlowStore()
    ledger = Ledger(store)
    tasks = await begin(ledger.read([ONE]))
    tasks += await begin(ledger.read([OTHER]), ledger.read([ONE, OTHER]))
    assert store.calls == [{ONE}]
    store.gate.set()
    await asyncio.gather(*tasks)
    assert store.calls == [{ONE}, {ONE, OTHER}]


async def test_a_cancelled_caller_disturbs_no_other() -> None:
    store = SlowStore()
    ledger = Ledger(store)
    first, second, third = await begin(ledger.read([ONE]), ledger.read([OTHER]), ledger.add({ONE: 1.0}))
    first.cancel()
    third.cancel()
    store.gate.set()
    assert await second == [0.0]
    await ledger.add({ONE: 1.0})
    assert store.spent == {ONE: 2.0}


async def test_what_cannot_be_stored_is_kept_and_stored_later() -> None:
    store = SlowStore()
    store.gate.set()
    ledger = Ledger(store)
    store.fails = True
    with pytest.raises(BudgetStoreError):
        await ledger.add({ONE: 1.0})
    with pytest.raises(BudgetStoreError):
        await ledger.read([ONE])
    store.fails = False
    assert await ledger.read([ONE]) == [1.0]
    await ledger.add({ONE: 1.0})
    assert store.spent == {ONE: 2.0}
    assert await ledger.read([ONE]) == [2.0]
    store.fails = True
    with pytest.raises(BudgetStoreError):
        await ledger.add({ONE: 3.0})
    store.fails = False
    await ledger.close()
    assert store.spent == {ONE: 5.0}
    assert store.calls[-1] == "closed"


async def test_a_read_counts_what_could_not_be_stored_while_that_is_written_again() -> None:
    class Full(SlowStore):
        async def read(self, accounts: Sequence[Account]) -> Mapping[Account, float]:
            return dict(self.spent)

    store = Full()
    store.gate.set()
    ledger = Ledger(store)
    store.fails = True
    for amount in (1.0, 2.0):
        with pytest.raises(BudgetStoreError):
            await ledger.add({ONE: amount})
    store.gate.clear()
    [writing] = await begin(ledger.add({ONE: 4.0}))
    assert await ledger.read([ONE]) == [3.0]
    store.gate.set()
    with pytest.raises(BudgetStoreError):
        await writing
    assert await ledger.read([ONE]) == [7.0]
    store.fails = False
    await ledger.add({ONE: 8.0})
    store.gate.clear()
    await begin(ledger.add({OTHER: 1.0}))
    assert await ledger.read([ONE]) == [15.0]
    store.gate.set()
    await ledger.close()

"""Retention: which sessions are deleted by age and number."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest

from gateway.config.memory import Retention
from gateway.memory.model import Owner, Session, SessionKey, SessionPage
from gateway.memory.sessions import BusySessions, delete_expired, run_retention
from gateway.memory.store import StoreUnavailable
from gateway.memory.stores.sqlite import SqliteStore
from gateway.observe.logs import configure
from tests.memory.conversations import key, turn


class Clock:
    """Shows `now`; each sleep moves it. The sleep after `rounds` of them is cancelled."""

    def __init__(self, rounds: int = 1) -> None:
        self.now = 1000.0
        self.rounds = rounds

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.rounds -= 1
        if not self.rounds:
            raise asyncio.CancelledError
        self.now += seconds


class Store(SqliteStore):
    """A store with `clock`, which has sessions made one second after the other."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, clock)
        self.time = clock

    async def make(self, *keys: SessionKey) -> None:
        for made in keys:
            await self.append(made, turn(), 0)
            self.time.now += 1

    async def names(self) -> list[str]:
        """Return agent and id of all sessions, the oldest first."""
        page = await self.sessions()
        return [f"{one.key.owner.agent_id} {one.key.id[4:]}" for one in reversed(page.sessions)]


@pytest.fixture
async def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    store = Store(tmp_path / "memory.sqlite3", Clock())
    await store.start()
    yield store
    await store.close()


async def test_sessions_that_were_not_used_are_deleted(store: Store) -> None:
    await store.make(key("a"), key("b"), key("c"), key("d"))
    await store.append(key("a"), turn(), 1)
    await store.pin(key("b"), True)
    assert await delete_expired(store, Retention(seconds=1.5), store.time.now, BusySessions()) == 1
    assert await store.names() == ["agent b", "agent d", "agent a"]


async def test_a_session_that_a_request_uses_is_kept(store: Store) -> None:
    await store.make(key("a"), key("b"))
    busy = BusySessions()
    await busy.enter(key("a"), 0.0)
    assert await delete_expired(store, Retention(seconds=0.5), store.time.now, busy) == 1
    assert await store.names() == ["agent a"]
    busy.release(key("a"))
    assert await delete_expired(store, Retention(seconds=0.5), store.time.now, busy) == 1
    assert len(busy) == 0


async def test_a_request_waits_while_its_session_is_deleted(store: Store) -> None:
    await store.make(key("a"))
    busy, entered = BusySessions(), asyncio.Event()
    delete = store.delete

    async def delete_slowly(session_key: SessionKey) -> bool:
        request = asyncio.create_task(busy.enter(session_key, 60.0))
        request.add_done_callback(lambda _: entered.set())
        await asyncio.sleep(0)
        assert not request.done()
        return await delete(session_key)

    store.delete = delete_slowly  # type: ignore[method-assign]
    assert await delete_expired(store, Retention(seconds=0.5), store.time.now, busy) == 1
    await entered.wait()


async def test_of_each_owner_the_newest_sessions_are_kept(store: Store) -> None:
    other = "other"
    await store.make(key("a"), key("x", other), key("b"), key("c"), key("y", other), key("d"), key("e"))
    await store.pin(key("a"), True)
    await store.pin(key("e"), True)
    assert await delete_expired(store, Retention(sessions=2), store.time.now, BusySessions()) == 1
    assert await store.names() == ["agent a", "other x", "agent c", "other y", "agent d", "agent e"]


async def test_both_limits(store: Store) -> None:
    await store.make(*(key(name) for name in "abcdef"))
    assert await delete_expired(store, Retention(seconds=3.5, sessions=2), store.time.now, BusySessions()) == 4
    assert await store.names() == ["agent e", "agent f"]


async def test_all_pages_are_read(store: Store) -> None:
    await store.make(*(key(f"{number}") for number in range(230)))
    assert await delete_expired(store, Retention(sessions=5), store.time.now, BusySessions()) == 225
    assert await store.names() == [f"agent {number}" for number in range(225, 230)]


@pytest.mark.parametrize("change", ["used", "pinned", "deleted"])
async def test_session_that_is_used_meanwhile_is_kept(
    store: Store, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.make(key("a"), key("b"))
    sessions = store.sessions

    async def list_and_change(owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        page = await sessions(owner, after, limit)
        match change:
            case "used":
                await store.append(key("a"), turn(), 1)
            case "pinned":
                await store.pin(key("a"), True)
            case _:
                await store.delete(key("a"))
        return page

    monkeypatch.setattr(store, "sessions", list_and_change)
    assert await delete_expired(store, Retention(sessions=1), store.time.now, BusySessions()) == 0
    assert (await store.session(key("a")) is not None) == (change != "deleted")


async def test_it_runs_again_and_again(store: Store) -> None:
    store.time.rounds = 3
    await store.make(key("a"), key("b"), key("c"))
    log = io.StringIO()
    limits = Retention(seconds=10, check_seconds=9)
    with pytest.raises(asyncio.CancelledError):
        await run_retention(store, limits, configure("info", "json", log), BusySessions(), store.time, store.time.sleep)
    assert await store.names() == []
    assert [json.loads(line)["sessions"] for line in log.getvalue().splitlines()] == [2, 1]


async def test_without_limits_it_ends(store: Store) -> None:
    await store.make(key("a"))
    await run_retention(store, Retention(), configure("info", "json"), BusySessions(), store.time, store.time.sleep)
    assert await store.names() == ["agent a"]


@pytest.mark.parametrize("failure", [StoreUnavailable("the disk is full"), KeyError("hits")])
async def test_store_that_fails_is_tried_again(
    store: Store, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.make(key("a"))
    store.time.rounds = 3
    failures = [failure]

    async def session(wanted: SessionKey) -> Session | None:
        if failures:
            raise failures.pop()
        return await SqliteStore.session(store, wanted)

    monkeypatch.setattr(store, "session", session)
    log = io.StringIO()
    with pytest.raises(asyncio.CancelledError):
        await run_retention(
            store, Retention(seconds=0.5), configure("info", "json", log), BusySessions(), store.time, store.time.sleep
        )
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["event"], line.get("sessions")) for line in lines] == [
        ("sessions not deleted" if isinstance(failure, StoreUnavailable) else "internal error", None),
        ("sessions deleted", 1),
    ]

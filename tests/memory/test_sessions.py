"""Sessions in use: opened, waited for, and what becomes of a turn when the store fails or another process was first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.app.wiring import Runtime, build_use_case
from gateway.config.load import ConfigError
from gateway.config.memory import AgentCoreStore, Memory, OpenSearchStore, Retention, Window
from gateway.config.types import Secret
from gateway.errors import MemoryUnavailable, SessionBusy, SessionNotFound
from gateway.memory.model import Metadata, Owner, Session, SessionKey, Turn
from gateway.memory.sessions import BusySessions, Sessions
from gateway.memory.store import NEWEST, StoreUnavailable, TooLargeForStore, UnreadableSession
from gateway.memory.stores.registry import STORES, LazyStore, Shared, SharedResources, share_store
from gateway.memory.stores.sqlite import SqliteStore
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from tests.conftest import settings_for
from tests.memory.conversations import assistant, texts, turn, user
from tests.memory.in_memory_store import InMemoryStore
from tests.memory.sqlite_query import query

OWNER = Owner("agent")
LOG = configure("error", "json")


class FaultyStore(InMemoryStore):
    """error: raised by every method. loads: the `before` of every `load`. gate, probe_gate: `append`, `probe` wait.

    lost: how many times the connection is lost after `append`. full: no turn can be written. probes: their sizes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.loads: list[int] = []
        self.gate: asyncio.Event | None = None
        self.lost = 0
        self.full = False
        self.probes: list[int] = []
        self.probe_gate: asyncio.Event | None = None

    async def start(self) -> None:
        self._fail()
        await super().start()

    async def probe(self, size: int) -> None:
        self.probes.append(size)
        is_full = self.full
        if self.probe_gate is not None:
            await self.probe_gate.wait()
        if is_full:
            raise StoreUnavailable("the disk is full")

    async def session(self, key: SessionKey) -> Session | None:
        self._fail()
        return await super().session(key)

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100, most_bytes: int = 0) -> Any:
        self._fail()
        self.loads.append(before)
        return await super().load(key, before, limit, most_bytes)

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        if self.gate is not None:
            await self.gate.wait()
        self._fail()
        if self.full:
            raise StoreUnavailable("the disk is full")
        session = await super().append(key, turn, turns)
        if self.lost:
            self.lost -= 1
            raise StoreUnavailable("the connection was lost")
        return session

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


def sessions(store: InMemoryStore, **settings: Any) -> Sessions:
    return Sessions(store, Memory(**settings), LOG, BusySessions())


async def begun(used: Sessions, *turns: Turn) -> str:
    """Begin a session with `turns`, and return its id."""
    id_ = ""
    for one in turns or (turn(),):
        opened = await used.open(OWNER, id_)
        assert await opened.commit(one) == ()
        id_ = opened.id
    return id_


async def test_a_session_has_its_turns_in_order() -> None:
    used = sessions(InMemoryStore())
    id_ = await begun(used, turn(user("1"), assistant("2"), system="Be brief."), turn(user("3"), assistant("4")))
    opened = await used.open(OWNER, id_)
    assert (opened.turns, opened.system, texts(opened.recent)) == (2, "Be brief.", ["1", "2", "3", "4"])
    opened.release()
    assert not len(used.busy)


@pytest.mark.parametrize("id_", ["gws-unknown", "cluster-id"])
async def test_an_unknown_session(id_: str) -> None:
    used = sessions(InMemoryStore())
    with pytest.raises(SessionNotFound):
        await used.open(OWNER, id_)
    assert not len(used.busy)


async def test_only_pages_that_may_fit_are_loaded() -> None:
    store = FaultyStore()
    used = sessions(store, window=Window(turns=30))
    id_ = await begun(used, *(turn() for _ in range(100)))
    store.loads.clear()
    opened = await used.open(OWNER, id_)
    assert (len(opened.recent), opened.more) == (80, True)
    assert len(store.loads) == 2


async def test_what_does_not_fit_is_known() -> None:
    used = sessions(InMemoryStore(), window=Window(bytes=100))
    id_ = await begun(used, turn(user("1" * 100), assistant("2")))
    opened = await used.open(OWNER, id_)
    assert texts(opened.recent) == ["1" * 100, "2"]


async def test_failed_turns_are_counted_but_not_sent() -> None:
    used = sessions(InMemoryStore())
    failed = user("lost", metadata=Metadata(failed=True))
    id_ = await begun(used, turn(user("1"), assistant("2")), turn(failed))
    opened = await used.open(OWNER, id_)
    assert (opened.turns, texts(opened.recent)) == (2, ["1", "2"])


@pytest.mark.parametrize(("count", "history", "loads"), [(99, ["1", "2"], 3), (1000, [], 3)])
async def test_a_session_of_many_failed_turns_is_not_read_whole(
    count: int, history: list[str], loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.memory.reading._MOST_UNSENT", 100)
    store = FaultyStore()
    used = sessions(store)
    id_ = await begun(used, turn(user("1"), assistant("2")))
    for number in range(count):
        await store.append(SessionKey(OWNER, id_), turn(user("lost", metadata=Metadata(failed=True))), number + 1)
    opened = await used.open(OWNER, id_)
    assert (opened.turns, texts(opened.recent), len(store.loads)) == (count + 1, history, loads)


async def test_requests_enter_in_order_and_one_may_give_up() -> None:
    used = sessions(InMemoryStore())
    id_ = await begun(used)
    first = await used.open(OWNER, id_)
    order: list[int] = []

    async def enter(number: int) -> None:
        opened = await used.open(OWNER, id_)
        order.append(number)
        opened.release()

    waiting = [asyncio.create_task(enter(number)) for number in range(4)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    first.release()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == [0, 2, 3]
    assert not len(used.busy)


async def test_a_wait_ends() -> None:
    used = sessions(InMemoryStore(), wait_seconds=0.01)
    id_ = await begun(used)
    opened = await used.open(OWNER, id_)
    with pytest.raises(SessionBusy):
        await used.open(OWNER, id_)
    opened.release()
    (await used.open(OWNER, id_)).release()


async def test_a_turn_that_is_late_comes_after_the_others() -> None:
    store = InMemoryStore()
    used, other_process = sessions(store), sessions(store)
    id_ = await begun(used)
    late = await used.open(OWNER, id_)
    await (await other_process.open(OWNER, id_)).commit(turn(user("first"), assistant("1")))
    (notice,) = await late.commit(turn(user("second"), assistant("2")))
    assert notice.code == "MEMORY_CONCURRENT"
    opened = await used.open(OWNER, id_)
    assert texts(opened.recent)[2:] == ["first", "1", "second", "2"]


async def test_a_deleted_session_does_not_come_back() -> None:
    store = InMemoryStore()
    used = sessions(store)
    id_ = await begun(used)
    opened = await used.open(OWNER, id_)
    await store.delete(SessionKey(OWNER, id_))
    (notice,) = await opened.commit(turn())
    assert notice.code == "MEMORY_NOT_STORED"
    assert await store.session(SessionKey(OWNER, id_)) is None


async def test_a_turn_is_stored_although_the_request_is_cancelled() -> None:
    store = FaultyStore()
    store.gate = asyncio.Event()
    used = sessions(store)
    opened = await used.open(OWNER, "")
    request = asyncio.create_task(opened.commit(turn()))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    store.gate.set()
    await used.ended()
    assert await store.session(SessionKey(OWNER, opened.id)) is not None
    assert not len(used.busy)


async def test_turns_that_requests_have_just_left_are_stored_before_the_store_is_closed() -> None:
    store = FaultyStore()
    store.gate = asyncio.Event()
    used = Sessions(store, Memory(), LOG, close=store.close)
    await store.start()
    first = await used.open(OWNER, "")
    store.gate.set()
    await first.commit(turn())
    store.gate.clear()
    opened = await used.open(OWNER, first.id)
    opened.fail_later(turn(user("lost")))
    deadline = asyncio.create_task(used.ended())
    await asyncio.sleep(0)
    deadline.cancel()
    await asyncio.wait((deadline,))
    closing = asyncio.create_task(used.close())
    await asyncio.sleep(0)
    assert store.open
    store.gate.set()
    await closing
    assert not store.open
    session = await store.session(SessionKey(OWNER, opened.id))
    assert session is not None
    assert session.turns == 2


@pytest.mark.parametrize("given", ["", "known"])
async def test_a_store_that_is_down_refuses_or_is_done_without(given: str) -> None:
    store = FaultyStore()
    id_ = await begun(sessions(store)) if given else ""
    store.error = StoreUnavailable("down")
    strict, lenient = sessions(store), sessions(store, on_failure="answer")
    with pytest.raises(MemoryUnavailable):
        await strict.open(OWNER, id_)
    opened = await lenient.open(OWNER, id_)
    assert (opened.id, opened.recent) == (id_, ())
    assert [notice.code for notice in opened.notices] == ["MEMORY_UNAVAILABLE"]
    assert await opened.commit(turn()) == ()
    assert not len(strict.busy)
    assert not len(lenient.busy)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("down"), "MEMORY_UNAVAILABLE"),
        (TooLargeForStore("too large"), "MEMORY_NOT_STORED"),
        (RuntimeError("fault"), "MEMORY_UNAVAILABLE"),
    ],
)
async def test_an_answer_is_given_although_its_turn_is_not_stored(error: Exception, code: str) -> None:
    store = FaultyStore()
    used = sessions(store)
    opened = await used.open(OWNER, "")
    store.error = error
    (notice,) = await opened.commit(turn())
    assert notice.code == code
    assert not len(used.busy)


@pytest.mark.parametrize("given", ["", "known"])
async def test_a_store_that_takes_no_writes_refuses_before_the_agent_runs(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.memory.sessions._REFUSAL_SECONDS", 0.0)
    store = FaultyStore()
    id_ = await begun(sessions(store)) if given else ""
    store.full = True
    used = sessions(store)
    for _ in range(2):
        with pytest.raises(MemoryUnavailable, match="takes no writes"):
            await used.open(OWNER, id_)
    assert not len(used.busy)
    store.full = False
    assert await (await used.open(OWNER, id_)).commit(turn(user("3"), assistant("4"))) == ()


async def test_a_refusal_is_shared_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyStore()
    store.full = True
    used = sessions(store)
    for _ in range(3):
        with pytest.raises(MemoryUnavailable, match="takes no writes"):
            await used.open(OWNER, "")
    assert len(store.probes) == 1
    monkeypatch.setattr("gateway.memory.sessions._REFUSAL_SECONDS", 0.0)
    used = sessions(store)
    for _ in range(3):
        with pytest.raises(MemoryUnavailable):
            await used.open(OWNER, "")
    assert len(store.probes) == 4
    assert not len(used.busy)


async def test_no_probe_outlives_the_request_that_began_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a request to a store that works again would be refused for what an earlier probe found."""
    monkeypatch.setattr("gateway.memory.sessions._REFUSAL_SECONDS", 0.0)
    store = FaultyStore()
    id_ = await begun(sessions(store))
    used = sessions(store)
    store.full, store.error, store.probe_gate = True, StoreUnavailable("a disk I/O error"), asyncio.Event()
    refused = asyncio.create_task(used.open(OWNER, id_))
    for _ in range(20):
        await asyncio.sleep(0)  # the session could not be read by now
    assert not refused.done()
    store.full, store.error = False, None
    store.probe_gate.set()
    with pytest.raises(MemoryUnavailable):
        await refused
    (await used.open(OWNER, id_)).release()


async def test_a_store_that_may_be_done_without_is_not_probed() -> None:
    store = FaultyStore()
    store.full = True
    used = sessions(store, on_failure="answer")
    opened = await used.open(OWNER, "")
    assert [notice.code for notice in await opened.commit(turn())] == ["MEMORY_UNAVAILABLE"]
    assert (opened.id, store.probes) == ("", [])


async def test_only_a_turn_that_is_stored_makes_the_id_of_a_session_known() -> None:
    store = FaultyStore()
    used = sessions(store)
    opened = await used.open(OWNER, "")
    store.full = True
    assert [notice.code for notice in await opened.commit(turn())] == ["MEMORY_UNAVAILABLE"]
    assert opened.id == ""
    store.full = False
    id_ = await begun(used)
    later = await used.open(OWNER, id_)
    store.full = True
    await later.commit(turn())
    assert later.id == id_  # which has its first turn


async def test_requests_share_a_probe_and_trust_a_write_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyStore()
    used = sessions(store)
    opened = await asyncio.gather(*(used.open(OWNER, "") for _ in range(20)))
    assert len(store.probes) == 1
    assert [one.release() for one in opened] == [None] * 20
    id_ = await begun(used)
    (await used.open(OWNER, id_)).release()
    assert len(store.probes) == 1
    monkeypatch.setattr("gateway.memory.sessions._PROBE_SECONDS", 0.0)
    await begun(used)
    (await used.open(OWNER, id_)).release()
    assert len(store.probes) == 2


async def test_after_a_turn_that_did_not_fit_the_probe_is_as_large_as_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.memory.sessions._REFUSAL_SECONDS", 0.0)
    store = FaultyStore()
    used = sessions(store)
    large, small = await used.open(OWNER, ""), await used.open(OWNER, "")
    store.full = True
    await large.commit(turn(user("x" * 200_000)))
    store.full = False
    await small.commit(turn())  # a disk that is almost full takes it
    store.full = True
    with pytest.raises(MemoryUnavailable):
        await used.open(OWNER, "")
    assert store.probes[0] == 65_536
    assert 200_000 <= store.probes[1] < 201_000
    store.full = False
    (await used.open(OWNER, "")).release()
    (await used.open(OWNER, "")).release()
    assert len(store.probes) == 3


@pytest.mark.parametrize(("lost", "codes"), [(1, []), (2, ["MEMORY_UNAVAILABLE"])])
async def test_a_turn_is_sent_once_more_if_the_connection_is_lost(lost: int, codes: list[str]) -> None:
    store = FaultyStore()
    used = sessions(store)
    id_ = await begun(used)
    opened = await used.open(OWNER, id_)
    store.lost = lost
    assert [notice.code for notice in await opened.commit(turn(user("3"), assistant("4")))] == codes
    assert texts((await used.open(OWNER, id_)).recent)[2:] == ["3", "4"]


async def test_a_store_has_the_time_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.memory.sessions._STORE_SECONDS", 0.0)
    store = FaultyStore()
    store.gate = asyncio.Event()
    settings = Memory(store="agentcore", agentcore=AgentCoreStore(seconds=60.0))
    opened = await Sessions(store, settings, LOG).open(OWNER, "")
    committed = asyncio.ensure_future(opened.commit(turn()))
    await asyncio.sleep(0.01)
    store.gate.set()
    assert await committed == ()


async def test_a_damaged_session_is_reported_as_such() -> None:
    store = FaultyStore()
    used = sessions(store)
    id_ = await begun(used)
    store.error = UnreadableSession("message 1 is missing")
    with pytest.raises(MemoryUnavailable, match="begin a new session"):
        await used.open(OWNER, id_)


@pytest.mark.parametrize("given", ["", "gws-one"])
async def test_a_store_of_another_program_is_not_reported_as_a_damaged_session(given: str, tmp_path: Path) -> None:
    foreign = tmp_path / "notes.sqlite3"
    query(foreign, "CREATE TABLE notes (id)")
    lazy = LazyStore(lambda: SqliteStore(foreign))
    with pytest.raises(MemoryUnavailable, match="store of sessions is not available"):
        await Sessions(lazy, Memory(), LOG).open(OWNER, given)
    await lazy.close()


async def test_a_lazy_store_is_opened_once_and_again_after_a_failure() -> None:
    made: list[FaultyStore] = []

    def make() -> FaultyStore:
        made.append(FaultyStore())
        made[-1].error = StoreUnavailable("down") if len(made) == 1 else None
        return made[-1]

    lazy = LazyStore(make)
    with pytest.raises(StoreUnavailable):
        await lazy.sessions()
    await asyncio.gather(*(lazy.sessions() for _ in range(3)))
    assert len(made) == 2
    await lazy.close()
    assert not made[1].open
    with pytest.raises(StoreUnavailable):
        await lazy.start()


async def test_requests_share_an_attempt_to_open_a_store_and_its_failure() -> None:
    opened, made = asyncio.Event(), []

    class StalledStore(InMemoryStore):
        async def start(self) -> None:
            made.append(self)
            await opened.wait()
            raise StoreUnavailable("too slow")

    lazy = LazyStore(StalledStore)
    requests = [asyncio.create_task(lazy.sessions()) for _ in range(4)]
    await asyncio.sleep(0)
    requests[0].cancel()
    opened.set()
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, *[StoreUnavailable] * 3]
    assert len(made) == 1


async def test_a_store_that_is_being_opened_is_closed() -> None:
    stores = []

    class StalledStore(InMemoryStore):
        async def start(self) -> None:
            await super().start()
            stores.append(self)
            await asyncio.Event().wait()

    lazy = LazyStore(StalledStore)
    request = asyncio.create_task(lazy.start())
    while not stores:  # noqa: ASYNC110  # the store has no event
        await asyncio.sleep(0)
    await lazy.close()
    assert not stores[0].open
    with pytest.raises(StoreUnavailable):
        await request


async def test_a_reload_keeps_the_store_unless_it_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[InMemoryStore] = []

    def build(*_: object) -> InMemoryStore:
        made.append(InMemoryStore())
        return made[-1]

    monkeypatch.setitem(STORES, "sqlite", replace(STORES["sqlite"], build=build, check=lambda _: iter(())))
    stores: SharedResources[LazyStore] = SharedResources()
    one = share_store(stores, settings_for("http://a", {"memory": {"wait_seconds": 1}}))
    same = share_store(stores, settings_for("http://a", {"memory": {"wait_seconds": 2}}))
    other = share_store(stores, settings_for("http://a", {"memory": {"sqlite": {"path": "/other"}}}))
    await asyncio.gather(*(shared.resource.start() for shared in (one, same, other)))
    assert same is one
    assert len(made) == 2
    assert share_store(stores, settings_for("http://a")) is one
    for _ in range(2):
        await one.release()
    assert made[0].open
    await same.release()
    await other.release()
    assert not made[0].open
    assert not made[1].open


@pytest.mark.parametrize(
    "wrong",
    [
        {"agents": {"rules": [{"agent": "a", "provider": "unknown"}]}},
        {"policy": {"guardrails": [{"name": "a", "entry_point": "unknown"}]}},
    ],
    ids=["provider", "guardrail"],
)
async def test_settings_that_are_refused_do_not_use_the_store(tmp_path: Path, wrong: dict[str, Any]) -> None:
    memory = {"memory": {"sqlite": {"path": str(tmp_path / "memory.sqlite3")}}}
    use_case = build_use_case()
    runtime = Runtime(settings_for("http://a", memory), use_case, LOG, Metrics())
    with pytest.raises(ConfigError):
        Runtime(settings_for("http://a", {**memory, **wrong}), use_case, LOG, Metrics())
    assert runtime.store is not None
    await runtime.store.start()
    await runtime.close()
    with pytest.raises(StoreUnavailable):
        await runtime.store.start()


def test_a_store_is_the_same_if_its_secrets_are() -> None:
    stores: SharedResources[LazyStore] = SharedResources()

    def use(password: str) -> Shared[LazyStore]:
        settings = settings_for("http://a")
        account = OpenSearchStore(username="gateway", password=Secret(password))
        memory = Memory(store="opensearch", opensearch=account)
        return share_store(stores, msgspec.structs.replace(settings, memory=memory))

    assert use("one") is use("one")
    assert use("one") is not use("other")


async def test_requests_under_other_settings_wait_for_each_other_too() -> None:
    store, busy = InMemoryStore(), BusySessions()
    before, after = (Sessions(store, Memory(concurrent="refuse"), LOG, busy) for _ in range(2))
    running = await before.open(OWNER, "")
    await running.commit(turn())
    running = await before.open(OWNER, running.id)
    with pytest.raises(SessionBusy):
        await after.open(OWNER, running.id)
    running.release()
    (await after.open(OWNER, running.id)).release()


async def test_settings_that_are_replaced_delete_no_sessions() -> None:
    store = InMemoryStore()
    used = Sessions(store, Memory(retention=Retention(seconds=1.0)), LOG, clock=lambda: 2e9)
    id_ = await begun(used)
    used.start()
    used.stop()
    await used.close()
    assert await store.session(SessionKey(OWNER, id_)) is not None


async def test_expired_sessions_are_deleted_in_the_background() -> None:
    store = InMemoryStore()
    used = Sessions(store, Memory(retention=Retention(seconds=1.0)), LOG, clock=lambda: 2e9)
    id_ = await begun(used)
    used.start()
    while await store.session(SessionKey(OWNER, id_)) is not None:  # noqa: ASYNC110  # the store has no event
        await asyncio.sleep(0)
    await used.close()


async def test_a_session_is_released_although_its_turn_can_not_be_counted() -> None:
    def fail(_: str) -> None:
        raise RuntimeError("count")

    used = Sessions(InMemoryStore(), Memory(), LOG, BusySessions(), count=fail)
    opened = await used.open(OWNER, "")
    assert used.in_use == 1
    with pytest.raises(RuntimeError):
        await opened.commit(turn(user("one"), assistant("two")))
    assert used.in_use == 0

"""The store in SQLite: the tests of every store, and its retention, files and index."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config.inspector import SqliteExchanges
from gateway.observe.record import Body, Delivery, ExchangeRecord, HttpMessage, Usage
from gateway.recording.sinks import sqlite as module
from gateway.recording.sinks import sqlite_queries as queries
from gateway.recording.sinks.encoding import encode
from gateway.recording.sinks.sqlite import DATABASE, SqliteStore, used_bytes
from gateway.recording.store import Filter, Loss, Spent, StoreError, TargetWeight
from gateway.storage.sqlite import empty_log
from tests.recording.records import record
from tests.recording.sinks.store_conformance import NewStore, StoreConformance, ids, numbered, with_body

MIB = 2**20


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        return lambda: SqliteStore(SqliteExchanges(str(tmp_path / "inspector")))


class Clock:
    """A clock that is set by hand."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., SqliteStore]]:
    opened: list[SqliteStore] = []

    def open_(**settings: Any) -> SqliteStore:
        opened.append(SqliteStore(SqliteExchanges(str(tmp_path / "inspector"), **settings), clock))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


def random_text(size: int) -> str:
    return os.urandom(size // 2).hex()


def large(id: str, size: int, started: float = 0.0) -> ExchangeRecord:
    text = random_text(size)
    return record(id=id, started=started, request=HttpMessage((), Body(size, text)), response=None)


def size_of(store: SqliteStore) -> int:
    """Return the bytes of all files but the log."""
    paths = [path for path in store.directory.rglob("*") if path.is_file() and path.suffix == ".sqlite3"]
    return sum(path.stat().st_size for path in paths)


# Files


def test_files_are_of_their_owner_only(tmp_path: Path, open_store: Callable[..., SqliteStore]) -> None:
    store = open_store()
    store.add(numbered(1))
    store.keep_medium("a" * 64, "image/png", b"x")
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    folders = {"inspector", "inspector/media", "inspector/media/aa"}
    assert {name for name, mode in modes.items() if mode == 0o700} == folders
    assert {mode for name, mode in modes.items() if name not in folders} == {0o600}


def test_a_file_of_another_program_is_not_touched(tmp_path: Path, open_store: Callable[..., SqliteStore]) -> None:
    (tmp_path / "inspector").mkdir()
    path = tmp_path / "inspector" / DATABASE
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE x (y)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"another program. Name another path in `inspector\.sqlite\.directory`"):
        open_store().add(numbered(1))
    assert path.read_bytes() == before


def test_a_damaged_file_is_reported_until_it_is_gone(tmp_path: Path, open_store: Callable[..., SqliteStore]) -> None:
    store = open_store()
    (tmp_path / "inspector").mkdir()
    path = tmp_path / "inspector" / DATABASE
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"not a database\. Delete the directory, or name another one"):
        store.add(numbered(1))
    path.unlink()
    store.add(numbered(1))
    assert ids(store.rows(Filter())) == ["1"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = SqliteStore(SqliteExchanges(str(tmp_path / "file" / "inspector")))
    with pytest.raises(StoreError, match=f"{tmp_path}/file is not a directory"):
        store.add(numbered(1))


def test_a_record_that_cannot_be_read_says_so(open_store: Callable[..., SqliteStore]) -> None:
    store = open_store()
    store.add(numbered(1))
    with closing(sqlite3.connect(store.directory / DATABASE, isolation_level=None)) as connection:
        connection.execute("UPDATE exchanges SET head = x'c1', content = x'c1'")
    with pytest.raises(StoreError, match="Exchange 1 can't be read"):
        store.rows(Filter())
    assert store.index(10.0)


def test_what_an_older_gateway_stored_is_read(tmp_path: Path, open_store: Callable[..., SqliteStore]) -> None:
    """A file of version 1: its tables, and records without what came later."""
    (tmp_path / "inspector").mkdir()
    known = record(
        id="old", conversation="c1", usage=Usage(3, 4, 0.5, "USD"), delivery=Delivery("guide"), agent_id="a2"
    )
    head, content = encode(known)
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(head)[:21])
    with closing(sqlite3.connect(tmp_path / "inspector" / DATABASE, isolation_level=None)) as file:
        for statement in module.FORMAT.migrations[0]:
            assert isinstance(statement, str)
            file.execute(statement)
        file.execute(f"PRAGMA application_id = {module.APPLICATION_ID}")
        file.execute("PRAGMA user_version = 1")
        columns = ("old", known.started, 200, "execute", "", known.target, *[""] * 9)
        insert = f"INSERT INTO exchanges VALUES (NULL{', ?' * 17})"
        file.executemany(insert, [(*columns, older, content), ("bad", 1.0, *columns[2:], b"\xc1", b"\xc1")])
    store = open_store(seconds=0.0)
    assert store.get("old") == known
    assert ids(store.rows(Filter(session="c1", cost=">0.4", took="0.5", agent="guide"))) == ["old"]
    assert store.overview(Filter()).spent == (Spent("USD", 0.5, 1),)
    store.add(numbered(1))
    assert ids(store.rows(Filter(text="hello"))) == ["old", "1"]


def test_a_file_from_before_routes_is_read(tmp_path: Path, open_store: Callable[..., SqliteStore]) -> None:
    """A file of version 2: mirrors and routes are unknown in it, and failures are those that the status shows."""
    (tmp_path / "inspector").mkdir()
    known = [record(id="ok", conversation="c1"), record(id="cut", status=0), record(id="404", status=404)]
    with closing(sqlite3.connect(tmp_path / "inspector" / DATABASE, isolation_level=None)) as file:
        for statement in (*module.FORMAT.migrations[0], *module.FORMAT.migrations[1]):
            file.execute(statement) if isinstance(statement, str) else statement(file)
        file.execute(f"PRAGMA application_id = {module.APPLICATION_ID}")
        file.execute("PRAGMA user_version = 2")
        for position, one in enumerate(known, 1):
            head, content = encode(one)
            older = msgspec.msgpack.encode(msgspec.msgpack.decode(head)[:23])
            file.execute(module.INSERT, (position, one.id, one.started, older, content))
            file.execute(queries.INSERT_FIRST_FACTS, queries.first_facts(position, one))
    store = open_store(seconds=0.0)
    assert [store.get(one.id) for one in known] == known
    assert ids(store.rows(Filter(status="failed"))) == ["404", "cut"]
    assert ids(store.rows(Filter(session="c1"))) == ["ok"]
    assert store.overview(Filter()).exchanges == 3
    assert store.target_runs(0.0) == []
    store.add([record(id="new", route="a1"), record(id="copy", route="a1", mirror_of="ok")])
    assert ids(store.rows(Filter(route="a1"))) == ["new"]
    assert ids(store.copies("ok")) == ["copy"]


def test_weights_that_are_out_of_force_are_forgotten(clock: Clock, open_store: Callable[..., SqliteStore]) -> None:
    store = open_store(seconds=100.0)
    for age, weight in ((300, 1.0), (200, 2.0), (50, 3.0)):
        store.note_weights(clock.now - age, {"a1": (TargetWeight("b1", "", weight),)})
    store.trim()
    assert [one.targets[0].weight for one in store.weights(0.0)] == [2.0, 3.0]


def test_old_losses_are_forgotten(clock: Clock, open_store: Callable[..., SqliteStore]) -> None:
    store = open_store(seconds=100.0)
    store.note_losses([Loss("queue", "", 1, clock.now - 200), Loss("queue", "", 2, clock.now - 10)])
    store.trim()
    assert store.losses() == [Loss("queue", "", 2, clock.now - 10)]


def test_times_of_many_exchanges_are_chosen_evenly(
    open_store: Callable[..., SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_SAMPLE", 1000)
    store = open_store()
    store.add([record(id=str(n), seconds=float(n)) for n in range(5000)])
    found = store.overview(Filter())
    assert (found.exchanges, found.runs) == (5000, 5000)
    assert found.p50 is not None
    assert found.p95 is not None
    assert found.p50 == pytest.approx(2500, rel=0.05)
    assert found.p95 == pytest.approx(4750, rel=0.02)


def test_a_failed_write_leaves_nothing(open_store: Callable[..., SqliteStore], monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.add(numbered(1))
    with monkeypatch.context() as patch:
        patch.setattr(module, "INSERT", "INSERT INTO no_such_table VALUES (1)")
        with pytest.raises(StoreError, match="no such table"):
            store.add(numbered(2))
    store.add(numbered(3))
    assert [store.get(id_) for id_ in "123"] == [*numbered(1), None, *numbered(3)]


def test_a_large_batch_keeps_its_order(open_store: Callable[..., SqliteStore]) -> None:
    store = open_store()
    batch = numbered(*range(120))
    store.add(batch)
    assert [row.record.id for row in store.newer(Filter(), 0, 200)] == [record.id for record in batch]
    assert [store.get(record.id) for record in batch] == batch


def test_a_wait_for_other_processes_has_a_limit(open_store: Callable[..., SqliteStore]) -> None:
    store = open_store()
    store.add(numbered(1))
    with store._writer.use() as connection:
        connection.execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(store.directory / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="is locked by another process"):
            store.add(numbered(2))
        assert ids(store.rows(Filter())) == ["1"]
        other.execute("COMMIT")
    store.add(numbered(3))
    assert ids(store.rows(Filter())) == ["3", "1"]


# Retention


def test_the_oldest_go_first_when_it_is_full(open_store: Callable[..., SqliteStore]) -> None:
    store = open_store(bytes=2 * MIB, seconds=0.0)
    for number in range(200):
        store.add([large(str(number), 50_000, number)])
        if number % 10 == 0:
            store.index(10.0)
        store.trim()
        assert size_of(store) <= 2.5 * MIB
    kept = ids(store.rows(Filter(), limit=1000))
    assert kept == [str(number) for number in range(199, 199 - len(kept), -1)]
    assert 10 <= len(kept) <= 40
    assert store.get(kept[-1]) is not None


def test_several_writers_share_the_limit(open_store: Callable[..., SqliteStore]) -> None:
    one, two = open_store(bytes=2 * MIB, seconds=0.0), open_store(bytes=2 * MIB, seconds=0.0)
    one.add([large("first", 10_000)])
    for number in range(100):
        two.add([large(str(number), 50_000)])
        (one if number % 2 else two).trim()
    assert one.get("first") is None
    one.add(numbered(1))
    assert two.get("1") is not None
    assert size_of(one) <= 2.5 * MIB


def test_more_than_the_limit_at_once(open_store: Callable[..., SqliteStore]) -> None:
    store = open_store(bytes=MIB, seconds=0.0)
    store.add([large("1", 3 * MIB)])
    store.add([large("2", 10)])
    store.trim()
    assert store.get("1") is None
    assert size_of(store) <= MIB


def test_old_exchanges_go(open_store: Callable[..., SqliteStore], clock: Clock) -> None:
    store = open_store(seconds=100.0)
    for age in (150, 101, 99, 50):
        store.add([record(id=str(age), started=clock.now - age)])
    store.index(10.0)
    store.trim()
    assert ids(store.rows(Filter())) == ["50", "99"]
    assert ids(store.rows(Filter(text="hello"))) == ["50", "99"]
    clock.now += 1000
    store.trim()
    assert store.rows(Filter()) == []


def test_exchanges_of_the_future_keep_no_older_ones(open_store: Callable[..., SqliteStore], clock: Clock) -> None:
    """The clock was ahead for a while: what was recorded then goes with the exchanges after it, and not before."""
    store = open_store(seconds=100.0)
    for id, age in (("a", 50), ("ahead", -1e9), ("b", 40), ("c", 0), ("ahead again", -1e9)):
        store.add([record(id=id, started=clock.now - age)])
    store.trim()
    assert len(store.rows(Filter())) == 5
    clock.now += 70
    store.trim()
    assert ids(store.rows(Filter())) == ["ahead again", "c"]
    clock.now += 70
    store.trim()
    assert ids(store.rows(Filter())) == ["ahead again"]
    store.add([record(id="d", started=clock.now)])
    clock.now += 101
    store.trim()
    assert store.rows(Filter()) == []


def test_the_database_becomes_smaller(open_store: Callable[..., SqliteStore], clock: Clock) -> None:
    store = open_store(seconds=100.0)
    store.add([large(str(number), 2_000, clock.now) for number in range(500)])
    store.index(10.0)
    store._writer.close()
    before = (store.directory / DATABASE).stat().st_size
    clock.now += 1000
    store.trim()
    assert (store.directory / DATABASE).stat().st_size < before / 4


def test_clear_leaves_no_trace_in_the_files(open_store: Callable[..., SqliteStore]) -> None:
    store = open_store()
    store.add([with_body(str(number), f"secretword{number}") for number in range(50)])
    store.keep_medium("a" * 64, "image/png", b"secretword")
    assert len(store.rows(Filter(text="secretword*"))) == 50
    store.clear()
    left = b"".join(path.read_bytes() for path in store.directory.rglob("*") if path.is_file())
    assert b"secretword" not in left


def test_media_go_by_age_and_by_size(open_store: Callable[..., SqliteStore], clock: Clock) -> None:
    store = open_store(seconds=1000.0, media_bytes=25)
    ages = {"a": 1001, "b": 900, "c": 800, "d": 700}
    for name, age in ages.items():
        store.keep_medium(name * 64, "image/png", name.encode() * 10)
        [path] = (store.directory / "media" / (name * 2)).iterdir()
        os.utime(path, (clock.now - age, clock.now - age))
    store.trim()
    left = [path.name[0] for path in (store.directory / "media").rglob("*.*")]
    assert sorted(left) == ["c", "d"]


def test_media_of_no_exchange_go(open_store: Callable[..., SqliteStore], clock: Clock) -> None:
    store = open_store(seconds=0.0)
    store.add([record(id="1", started=clock.now - 100)])
    for name, age in {"a": 3601 + 100, "b": 100}.items():
        store.keep_medium(name * 64, "image/png", b"x")
        [path] = (store.directory / "media" / (name * 2)).iterdir()
        os.utime(path, (clock.now - age, clock.now - age))
    (store.directory / "media" / "aa" / ".unfinished").touch()
    os.utime(store.directory / "media" / "aa" / ".unfinished", (clock.now - 5000, clock.now - 5000))
    store.trim()
    assert [path.name[0] for path in (store.directory / "media").rglob("*.*")] == ["b"]


def test_media_stay_after_the_clock_was_ahead(open_store: Callable[..., SqliteStore], clock: Clock) -> None:
    store = open_store(seconds=1e9)
    store.add([record(id="1", started=clock.now + 10_000), record(id="2", started=clock.now)])
    store.keep_medium("a" * 64, "image/png", b"x")
    [path] = (store.directory / "media" / "aa").iterdir()
    os.utime(path, (clock.now, clock.now))
    store.trim()
    assert path.exists()


def test_damaged_media_are_not_shown(open_store: Callable[..., SqliteStore]) -> None:
    store = open_store()
    store.keep_medium("a" * 64, "image/png", b"other bytes than those of this hash")
    assert store.medium("a" * 64) is None


def test_a_medium_that_was_cut_is_kept_again(open_store: Callable[..., SqliteStore]) -> None:
    """A loss of power leaves files that are empty."""
    store, data = open_store(), b"an image"
    digest = hashlib.sha256(data).hexdigest()
    store.keep_medium(digest, "image/png", data)
    [path] = (store.directory / "media" / digest[:2]).iterdir()
    os.truncate(path, 0)
    store.keep_medium(digest, "image/jpeg", data)
    assert store.medium(digest) == ("image/png", data)


# Index


def test_the_index_goes_on_in_another_process(
    open_store: Callable[..., SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP", 3)
    one, two = open_store(), open_store()
    one.add([with_body(str(number), f"word{number}") for number in range(10)])
    assert not one.index(0.0)  # one step
    assert ids(two.rows(Filter(text="word9"))) == ["9"]
    assert one.index(0.0, lambda: True)  # nothing is left
    assert [ids(one.rows(Filter(text=f"word{number}"))) for number in (0, 3, 8)] == [["0"], ["3"], ["8"]]


def test_large_texts_are_indexed_a_few_at_a_time(open_store: Callable[..., SqliteStore]) -> None:
    store = open_store()
    store.add([with_body(str(number), "word " * size) for number, size in enumerate((80_000, 80_000, 800_000, 1, 1))])
    steps = 0
    while not store.index(0.0):
        steps += 1
    assert steps == 3
    assert len(store.rows(Filter(text="word"))) == 5


def test_a_search_that_would_index_too_much_says_so(
    open_store: Callable[..., SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP", 3)
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 0.0)
    store = open_store()
    store.add([with_body(str(number), f"word{number}") for number in range(6)])
    with pytest.raises(StoreError, match="The text of 3 exchanges is not indexed yet"):
        store.rows(Filter(text="word1"))
    with pytest.raises(StoreError, match="The text of 0 exchanges"):
        store.rows(Filter(text="word1"))
    assert ids(store.rows(Filter(text="word1"))) == ["1"]


def test_exchanges_deleted_before_they_were_indexed(open_store: Callable[..., SqliteStore], clock: Clock) -> None:
    store = open_store(seconds=100.0)
    store.add([record(id="old", started=clock.now - 200), record(id="new", started=clock.now)])
    store.trim()
    assert ids(store.rows(Filter(text="hello"))) == ["new"]


def test_used_bytes_counts_records_rows_and_indexes(open_store: Callable[..., SqliteStore]) -> None:
    store = open_store()
    store.add([large(str(number), 10_000) for number in range(20)])
    store.index(10.0)
    with closing(sqlite3.connect(store.directory / DATABASE, isolation_level=None)) as connection:
        empty_log(connection)
        used = used_bytes(connection)
    assert used == pytest.approx(size_of(store), rel=0.05)

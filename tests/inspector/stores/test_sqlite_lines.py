"""Requests that passed, which the SQLite store keeps as lines: they are found as if each had a row of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config.inspector import SqliteExchanges
from gateway.inspector.lines import INTENT, Line, LineRequest, LineResponse, Lines
from gateway.inspector.store import Filter, StoreError
from gateway.inspector.stores.encoding import without_content
from gateway.inspector.stores.sqlite import SqliteStore
from tests.inspector.stores.store_conformance import ids, numbered

NOW = 1_760_000_000.0
REQUESTS = (
    LineRequest((("Host", "x"), ("User-Agent", "curl/8")), 0, "curl/8", "0" * 32),
    LineRequest((("Host", "x"),), 12, "", ""),
)
RESPONSES = (LineResponse((("Content-Length", "5"),), 5),)


def line(place: int, status: int = 200, client: str = "192.0.2.1", target: str = "/a/_doc/1") -> Line:
    came = 0 if status else -1
    return (place, place + 0.25 * (came + 1), place + 0.5, status, 3, client, "GET", 1, target, place % 2, came, place)


def lines(id: int, *each: Line) -> Lines:
    return Lines(id, NOW, 7, REQUESTS, RESPONSES, each)


FIRST = lines(2**61, line(0), line(2, 404, "192.0.2.2"), line(3, 0, target="/b/_search?q=1"))
SECOND = replace(
    lines(5, *(line(place, (200, 503, 301)[place % 3], target=f"/c/{place}") for place in range(10))), scheme="https"
)
RECORDS = numbered(1, 4)
ALL = [*FIRST.among(RECORDS), *SECOND.among(()), *numbered(5)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store with records and lines, twice between records."""
    store = SqliteStore(SqliteExchanges(str(tmp_path / "lines"), seconds=0.0))
    store.add_with_lines(RECORDS, FIRST)
    store.add_with_lines([], SECOND)
    store.add(numbered(5))
    yield store
    store.close()


@pytest.fixture
def rows_only(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store with a row for each of the same exchanges."""
    store = SqliteStore(SqliteExchanges(str(tmp_path / "rows"), seconds=0.0))
    store.add(ALL)
    yield store
    store.close()


def test_each_line_is_a_record_at_its_place(store: SqliteStore) -> None:
    assert [record.id for record in ALL[:5]] == [f"{2**61:016x}", "1", f"{2**61 + 1:016x}", f"{2**61 + 2:016x}", "4"]
    rows = store.newer(Filter(), 0)
    assert [row.position for row in rows] == list(range(1, len(ALL) + 1))
    assert [row.record for row in rows] == list(map(without_content, ALL))
    assert [store.get(record.id) for record in ALL] == ALL


@pytest.mark.parametrize("id", ["5", f"{15:016x}", f"{4:016x}", f"{2**61 + 3:016x}", f"{2**64 - 1:016x}", "x" * 16])
def test_other_ids_are_no_lines(store: SqliteStore, id: str) -> None:
    assert store.get(id) in (None, *numbered(5))


def test_pages_have_each_line_once(store: SqliteStore) -> None:
    newest_first: list[str] = []
    before = None
    while rows := store.rows(Filter(), before, 2):
        newest_first += ids(rows)
        before = rows[-1].position
    assert newest_first == [record.id for record in reversed(ALL)]
    oldest_first: list[str] = []
    after = 0
    while rows := store.newer(Filter(), after, 3):
        oldest_first += ids(rows)
        after = rows[-1].position
    assert oldest_first == newest_first[::-1]


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(path="_search"),
        Filter(path="/c/"),
        Filter(agent="a1"),
        Filter(text="hello"),
        Filter(notice="N"),
        *(Filter(status=status) for status in ("200", "0", "4xx", "error", "5XX", "100")),
        *(Filter(client=client) for client in ("192.0.2.2", "192.0.2", "curl", "nobody")),
        *(Filter(intent=intent) for intent in (INTENT, "runs", "write")),
        Filter(since=NOW + 2),
        Filter(until=NOW + 2),
        Filter(path="/c/", status="error", client="curl", since=NOW + 3),
    ],
    ids=str,
)
def test_filters_find_lines_as_rows(store: SqliteStore, rows_only: SqliteStore, wanted: Filter) -> None:
    assert ids(store.rows(wanted)) == ids(rows_only.rows(wanted))
    assert ids(store.newer(wanted, 3, 2)) == ids(rows_only.newer(wanted, 3, 2))


@pytest.mark.parametrize("field", ["status", "client", "intent", "agent", "notice"])
def test_values_count_lines(store: SqliteStore, rows_only: SqliteStore, field: str) -> None:
    assert store.values(field) == rows_only.values(field)


def test_old_lines_go(tmp_path: Path) -> None:
    store = SqliteStore(SqliteExchanges(str(tmp_path / "old"), seconds=100.0), lambda: NOW + 150)
    store.add_with_lines([], lines(1, line(0), line(1)))
    store.add_with_lines([], replace(lines(9, line(0), line(1)), offset=NOW + 50))
    store.trim()
    assert ids(store.rows(Filter())) == [f"{10:016x}", f"{9:016x}"]
    assert store.get(f"{1:016x}") is None
    store.clear()
    assert store.rows(Filter()) == []
    store.add(numbered(1))
    assert [row.position for row in store.rows(Filter())] == [5]
    store.close()


def test_lines_of_the_future_keep_no_older_ones(tmp_path: Path) -> None:
    store = SqliteStore(SqliteExchanges(str(tmp_path / "ahead"), seconds=100.0), lambda: NOW + 150)
    for id, offset in ((1, NOW + 1e9), (11, NOW), (21, NOW + 120), (31, NOW + 1e9)):
        store.add_with_lines([], replace(lines(id, line(0), line(1)), offset=offset))
    store.trim()
    assert ids(store.rows(Filter())) == [f"{id:016x}" for id in (32, 31, 22, 21)]
    store.close()


def test_lines_with_a_surrogate_are_stored_as_records(store: SqliteStore) -> None:
    bad = replace(lines(77, line(1), line(2)), requests=(REQUESTS[0], replace(REQUESTS[1], headers=(("A", "\ud800"),))))
    store.add_with_lines(numbered(6), bad)
    assert ids(store.rows(Filter(), limit=3)) == [f"{78:016x}", f"{77:016x}", "6"]
    record = store.get(f"{77:016x}")
    assert record is not None
    assert record.request.headers == (("A", "\ufffd"),)


def test_lines_that_cannot_be_read(store: SqliteStore) -> None:
    path = store.directory / "records" / "1.records"
    whole = path.read_bytes()
    path.write_bytes(b"\xc1" * len(whole))
    with pytest.raises(StoreError, match="Exchange 6 can't be read"):
        store.rows(Filter(intent=INTENT))
    os.truncate(path, 10)
    assert store.rows(Filter(intent=INTENT)) == []

"""The SQLite store: the tests of every store, and its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.memory.model import SessionKey
from gateway.memory.store import StoreUnavailable, UnknownPosition, UnreadableSession, Unstorable
from gateway.memory.stores.sqlite import SqliteStore
from gateway.storage import sqlite
from tests.memory.conversations import (
    METADATA,
    assistant,
    image,
    key,
    medium,
    text,
    texts,
    tool_result,
    turn,
    user,
)
from tests.memory.sqlite_query import query
from tests.memory.store_conformance import NewStore, StoreConformance


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        return lambda: SqliteStore(tmp_path / "memory.sqlite3")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.sqlite3"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.start()
    yield store
    await store.close()


# Large media, and deletion


async def test_medium_is_stored_once_and_deleted_with_its_last_message(path: Path, store: SqliteStore) -> None:
    one, two = medium(100_000, 1), medium(100_000, 2)
    await store.append(key("a"), turn(user(image(one), image(one)), assistant(one)), 0)
    await store.append(key("b"), turn(user(image(one), image(two))), 0)
    stored = "SELECT data FROM media ORDER BY number"
    assert query(path, stored) == [(one.encode(),), (two.encode(),)]
    await store.delete(key("a"))
    assert query(path, stored) == [(one.encode(),), (two.encode(),)]
    assert (await store.load(key("b"))).messages[0].message == user(image(one), image(two))
    await store.delete(key("b"))
    assert query(path, stored) == []
    assert query(path, "SELECT (SELECT count(*) FROM media_uses), (SELECT count(*) FROM turns)") == [(0, 0)]


async def test_deleted_session_is_in_no_file(path: Path, store: SqliteStore) -> None:
    secret = medium(200_000, 7)
    message = user("SECRET-TEXT", image(secret), metadata=METADATA["all"])
    own = SessionKey(key(caller="SECRET-CALLER").owner, "gws-SECRET-ID")
    await store.append(key("kept"), turn(user("KEPT-TEXT")), 0)
    for number in range(3):
        await store.append(own, turn(message, id_=f"SECRET-TURN-{number}", system=f"SECRET-SYSTEM-{number}"), number)

    def found() -> list[bool]:
        files = b"".join(file.read_bytes() for file in path.parent.iterdir() if file.name.startswith(path.name))
        return [word in files for word in (b"KEPT-TEXT", b"SECRET-", b"bedrock/converse", secret[:100].encode())]

    assert found() == [True, True, True, True]
    assert await store.delete(own)
    assert found() == [True, False, False, False]


async def test_log_that_another_process_reads_is_emptied_at_the_next_deletion(path: Path, store: SqliteStore) -> None:
    for name in ("a", "b"):
        await store.append(key(name), turn(user("SECRET-TEXT")), 0)
    log = path.with_name(path.name + "-wal")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM messages").fetchone() == (2,)
        assert await store.delete(key("a"))
        assert await store.session(key("a")) is None
        assert await asyncio.to_thread(log.read_bytes)
    assert await store.delete(key("b"))
    assert await asyncio.to_thread(log.read_bytes) == b""


# What can't be stored or read


@pytest.mark.parametrize("content", ["\ud800", "x" * 70_000 + "\ud800"])
async def test_text_that_is_no_unicode_is_refused(store: SqliteStore, content: str) -> None:
    with pytest.raises(Unstorable) as caught:
        await store.append(key(), turn(user("before"), user("a", tool_result("call-1", text(content)))), 0)
    assert caught.value.place == "messages[1].content[1]"
    with pytest.raises(Unstorable):
        await store.append(key(), turn(system=content), 0)
    assert await store.session(key()) is None
    assert (await store.append(key(), turn(), 0)).turns == 1


@pytest.mark.parametrize("change", ["content = '{'", "content = '[1]'", "metadata = '[]'", "role = 'robot'"])
async def test_damaged_message_is_an_error(path: Path, store: SqliteStore, change: str) -> None:
    await store.append(key(), turn(), 0)
    query(path, f"UPDATE messages SET {change} WHERE seq = 1")
    with pytest.raises(UnreadableSession, match="Message 1 of the session can't be read"):
        await store.load(key())
    assert texts((await store.load(key(), before=1)).messages)


async def test_full_disk(store: SqliteStore) -> None:
    await store.append(key(), turn(), 0)
    await store._run(lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchall())
    added = turn(user(image(medium(300_000))))
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await store.append(key(), added, 1)
    assert len((await store.load(key())).messages) == 2
    assert (await store.append(key(), added, 1)).turns == 2  # the file was opened again, without the limit


@pytest.mark.parametrize("after", ["abc", "1", "1:x", "1:" + "9" * 30])
async def test_after_of_another_store_is_an_error(store: SqliteStore, after: str) -> None:
    with pytest.raises(UnknownPosition, match="not the `next` of a page"):
        await store.sessions(after=after)


async def test_before_may_be_any_number(store: SqliteStore) -> None:
    await store.append(key(), turn(), 0)
    assert len((await store.load(key(), before=2**70)).messages) == 2
    assert (await store.load(key(), before=-1)).messages == ()


# A file that is locked


async def test_locked_file_does_not_block_the_loop(path: Path, store: SqliteStore) -> None:
    await store.append(key(), turn(), 0)
    reader = SqliteStore(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.append(key(), turn(), 1))
        await reader.start()
        assert len((await reader.load(key())).messages) == 2  # readers don't wait for writers
        assert not writing.done()
        other.execute("COMMIT")
        assert (await writing).turns == 2
    await reader.close()


async def test_wait_for_a_locked_file_has_a_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.01)
    store = SqliteStore(path)
    await store.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="is locked by another process"):
            await store.append(key(), turn(), 0)
        other.execute("COMMIT")
    assert (await store.append(key(), turn(), 0)).turns == 1
    await store.close()


async def test_slow_operation_ends_for_its_caller(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def clock() -> float:
        go_on.wait()
        return 1000.0

    store = SqliteStore(path, clock)
    await store.start()
    added = turn()
    with monkeypatch.context() as patch:
        patch.setattr(store, "_seconds", 0.01)
        for _ in range(2):  # the second one waits for the first
            with pytest.raises(StoreUnavailable, match=r"did not respond within 0\.01 s"):
                await store.append(key(), added, 0)
    go_on.set()
    assert (await store.append(key(), added, 0)).turns == 1
    await store.close()


async def test_close_finishes_what_was_begun(path: Path, store: SqliteStore) -> None:
    writing = [asyncio.ensure_future(store.append(key(f"{number}"), turn(), 0)) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert [session.turns for session in await asyncio.gather(*writing)] == [1] * 20
    with pytest.raises(StoreUnavailable, match="is closed"):
        await store.session(key())
    await store.start()
    assert len((await store.sessions()).sessions) == 20

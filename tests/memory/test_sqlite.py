"""The SQLite store: the tests of every store, and its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.memory.model import Message, SessionKey
from gateway.memory.store import StoreError, StoreUnavailable, UnreadableSession, Unstorable
from gateway.memory.stores import sqlite_database
from gateway.memory.stores.sqlite import SqliteStore
from tests.memory.conversations import (
    METADATA,
    assistant,
    image,
    key,
    medium,
    text,
    texts,
    tool_result,
    tool_use,
    turn,
    user,
)
from tests.memory.store_conformance import NewStore, StoreConformance

VERSION_1 = Path(__file__).parent / "fixtures" / "sqlite_version_1.sql"


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


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    """Run a statement, and return its rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def modes(folder: Path) -> dict[str, str]:
    """Return the mode of each file below `folder`."""
    return {path.relative_to(folder).as_posix(): oct(path.stat().st_mode & 0o777) for path in folder.rglob("*")}


async def start_fails(path: Path, error: type[StoreError], match: str) -> None:
    """Check that a store at `path` does not start, and changes nothing."""
    before = await asyncio.to_thread(path.read_bytes)
    store = SqliteStore(path)
    with pytest.raises(error, match=match):
        await store.start()
    await store.close()
    assert await asyncio.to_thread(path.read_bytes) == before


# Files


async def test_files_are_of_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    store = SqliteStore(folder / "memory.sqlite3")
    await store.start()
    await store.append(key(), turn(), 0)
    found = modes(tmp_path)
    await store.close()
    assert found == {
        "a": "0o700",
        "a/b": "0o700",
        "a/b/memory.sqlite3": "0o600",
        "a/b/memory.sqlite3-shm": "0o600",
        "a/b/memory.sqlite3-wal": "0o600",
    }


async def test_path_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in [
        (tmp_path / "file" / "memory.sqlite3", "Not a directory|it is not a directory"),
        (tmp_path, "Is a directory"),
    ]:
        store = SqliteStore(path)
        with pytest.raises(StoreUnavailable, match=rf"can't be used: ({reason})\. Make it writable"):
            await store.start()
        await store.close()


async def test_store_whose_path_becomes_usable_works(tmp_path: Path) -> None:
    (tmp_path / "volume").touch()
    store = SqliteStore(tmp_path / "volume" / "memory.sqlite3")
    with pytest.raises(StoreUnavailable):
        await store.start()
    with pytest.raises(StoreUnavailable):
        await store.session(key())
    (tmp_path / "volume").unlink()
    assert (await store.append(key(), turn(), 0)).turns == 1
    await store.close()


@pytest.mark.parametrize("content", [b"This is no database. " * 100, b"SQLite format 3\0" + bytes(4080)])
async def test_file_that_is_no_database(path: Path, content: bytes) -> None:
    await asyncio.to_thread(path.write_bytes, content)
    await start_fails(path, UnreadableSession, r"can't be read: .*Restore it from a backup")


async def test_database_of_another_program_is_left_alone(path: Path) -> None:
    query(path, "CREATE TABLE sessions (id)")
    await start_fails(path, UnreadableSession, "made by another program")


async def test_many_stores_open_a_new_file_at_once(path: Path) -> None:
    stores = [SqliteStore(path) for _ in range(8)]
    await asyncio.gather(*(store.start() for store in stores))
    await asyncio.gather(*(store.append(key(f"{i}"), turn(), 0) for i, store in enumerate(stores)))
    assert len((await stores[0].sessions()).sessions) == 8
    await asyncio.gather(*(store.close() for store in stores))


# Migrations


def restore(path: Path) -> None:
    """Make the file that version 1 wrote."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1.read_text())


async def check_restored(store: SqliteStore) -> None:
    page = await store.load(key())
    assert [stored.message for stored in page.messages] == [
        user("Look:", image(), image()),
        assistant(tool_use("call-1", query="cats")),
        user(tool_result("call-1", text("3 cats"), image())),
        Message("assistant", (text("A cat. Ü"),), METADATA["all"]),
    ]
    session = await store.session(key())
    assert session is not None
    assert (session.turns, session.messages, session.system) == (2, 4, "Be brief.")
    assert (session.created, session.updated, session.pinned) == (1000.0, 1001.5, False)
    other = await store.session(key("two", "other", "tenant", "caller"))
    assert other is not None
    assert other.pinned
    assert await store.append(key(), turn(id_="t1"), 0) == session


async def test_file_of_version_1_is_read(path: Path) -> None:
    restore(path)
    store = SqliteStore(path)
    await store.start()
    await check_restored(store)
    await store.close()


async def test_file_of_version_1_is_migrated_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restore(path)
    added = (
        "ALTER TABLE sessions ADD COLUMN title TEXT NOT NULL DEFAULT ''",
        "UPDATE sessions SET title = title || 'migrated'",
    )
    monkeypatch.setattr(sqlite_database, "MIGRATIONS", (sqlite_database.MIGRATIONS[0], added))
    stores = [SqliteStore(path) for _ in range(4)]
    await asyncio.gather(*(store.start() for store in stores))
    await check_restored(stores[-1])
    await asyncio.gather(*(store.close() for store in stores))
    assert query(path, "PRAGMA user_version") == [(2,)]
    assert query(path, "SELECT title FROM sessions") == [("migrated",)] * 2


async def test_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restore(path)
    migrations = (sqlite_database.MIGRATIONS[0], ("DROP TABLE turns", "DROP TABLE no_such_table"))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_database, "MIGRATIONS", migrations)
        store = SqliteStore(path)
        with pytest.raises(StoreUnavailable, match="no such table: no_such_table"):
            await store.start()
        await store.close()
    await (store := SqliteStore(path)).start()
    await check_restored(store)
    await store.close()


async def test_file_of_a_newer_gateway_is_refused(path: Path, store: SqliteStore) -> None:
    await store.append(key(), turn(), 0)
    await store.close()
    query(path, "PRAGMA user_version = 99")
    with pytest.raises(
        UnreadableSession, match="its tables are of version 99, and this gateway knows versions up to 1"
    ):
        await store.start()


def test_a_new_file_has_the_tables_of_version_1(path: Path, tmp_path: Path) -> None:
    """A released migration must not change: files that it wrote are not migrated again."""
    tables = "SELECT sql FROM sqlite_master ORDER BY name"
    restore(tmp_path / "old")
    sqlite_database.open_database(path).close()
    assert query(path, tables) == query(tmp_path / "old", tables)


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


async def test_after_of_another_store_is_an_error(store: SqliteStore) -> None:
    with pytest.raises(StoreError, match="not the `next` of a page"):
        await store.sessions(after="abc")


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
    monkeypatch.setattr(sqlite_database, "BUSY_SECONDS", 0.01)
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

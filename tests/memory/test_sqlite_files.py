"""The files of the SQLite store: modes, paths, other programs' files, migrations."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.memory.model import Message
from gateway.memory.store import StoreError, StoreUnavailable, UnreadableSession
from gateway.memory.stores import sqlite as store_module
from gateway.memory.stores.sqlite import FORMAT, SqliteStore
from gateway.storage import sqlite
from gateway.storage.sqlite import open_file
from tests.memory.conversations import (
    METADATA,
    assistant,
    image,
    key,
    text,
    tool_result,
    tool_use,
    turn,
    user,
)
from tests.memory.sqlite_query import query

VERSION_1 = Path(__file__).parent / "fixtures" / "sqlite_version_1.sql"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.sqlite3"


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
        (tmp_path / "file" / "memory.sqlite3", f"{tmp_path}/file is not a directory"),
        (tmp_path, "it is a directory"),
        (tmp_path / ("x" * 300) / "memory.sqlite3", "File name too long"),
        (Path("~no-such-user/memory.sqlite3"), "the home directory is not known"),
    ]:
        store = SqliteStore(path)
        with pytest.raises(StoreUnavailable) as caught:
            await store.start()
        assert f"can't be used: {reason}. Make it writable" in str(caught.value)
        await store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("mode", [0o000, 0o500])
async def test_directory_without_permissions(tmp_path: Path, mode: int) -> None:
    (tmp_path / "a").mkdir(mode=mode)
    for path in (tmp_path / "a" / "memory.sqlite3", tmp_path / "a" / "b" / "memory.sqlite3"):
        store = SqliteStore(path)
        with pytest.raises(StoreUnavailable, match="can't be used"):
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


async def test_backup_of_a_file_in_use(path: Path, tmp_path: Path) -> None:
    store, restored = SqliteStore(path), SqliteStore(tmp_path / "backup.sqlite3")
    await store.start()
    await store.append(key(), turn(), 0)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(tmp_path / "backup.sqlite3")) as target:
        source.backup(target)  # as `.backup` of the command sqlite3
    await restored.start()
    assert await restored.load(key()) == await store.load(key())
    await restored.close()
    await store.close()


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
    monkeypatch.setattr(store_module, "FORMAT", replace(FORMAT, migrations=(FORMAT.migrations[0], added)))
    stores = [SqliteStore(path) for _ in range(4)]
    await asyncio.gather(*(store.start() for store in stores))
    await check_restored(stores[-1])
    await asyncio.gather(*(store.close() for store in stores))
    assert query(path, "PRAGMA user_version") == [(2,)]
    assert query(path, "SELECT title FROM sessions") == [("migrated",)] * 2


async def test_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restore(path)
    migrations = (FORMAT.migrations[0], ("DROP TABLE turns", "DROP TABLE no_such_table"))
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "FORMAT", replace(FORMAT, migrations=migrations))
        store = SqliteStore(path)
        with pytest.raises(StoreUnavailable, match="no such table: no_such_table"):
            await store.start()
        await store.close()
    await (store := SqliteStore(path)).start()
    await check_restored(store)
    await store.close()


async def test_file_of_a_newer_gateway_is_refused(path: Path) -> None:
    restore(path)
    query(path, "PRAGMA user_version = 99")
    expected = "its tables are of version 99, and this gateway knows versions up to 1"
    await start_fails(path, UnreadableSession, expected)


def test_a_new_file_has_the_tables_of_version_1(path: Path, tmp_path: Path) -> None:
    """A released migration must not change: files that it wrote are not migrated again."""
    tables = "SELECT sql FROM sqlite_master ORDER BY name"
    restore(tmp_path / "old")
    open_file(path, FORMAT).close()
    assert query(path, tables) == query(tmp_path / "old", tables)


def test_another_process_that_opens_the_new_file_too_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            other.execute("COMMIT")

        monkeypatch.setattr(sqlite.time, "sleep", sleep)
        with closing(open_file(path, FORMAT)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert len(pauses) == 1

"""Sessions in a SQLite file, for the workers of one host.

SQLite blocks, so each store has a thread of its own. The file is in WAL mode: readers never wait for writers, and
writers of several processes wait for each other.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from gateway.config.memory import Memory
from gateway.memory.model import Owner, Page, Session, SessionKey, SessionPage, Turn
from gateway.memory.store import NEWEST, StoreError, StoreUnavailable, TooLargeForStore, UnreadableSession, Unstorable
from gateway.memory.stores import sqlite_rows as rows
from gateway.memory.stores.sqlite_database import open_database
from gateway.storage.paths import UnusableFile, expand, state_directory
from gateway.storage.sqlite import ForeignFile, error_code

_T = TypeVar("_T")

SECONDS = 10.0
"""Longest time of an operation, waits for other processes and for this store's earlier operations included."""


def build(settings: Memory, upstream_url: str) -> SqliteStore:
    """Return the store of the settings, not started."""
    path = settings.sqlite.path
    return SqliteStore(Path(path) if path else state_directory() / "memory.sqlite3")


class SqliteStore:
    """Keeps sessions in the SQLite file at `path`. clock: the seconds since the epoch."""

    name: ClassVar[str] = "sqlite"

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, seconds: float = SECONDS) -> None:
        self._path = expand(path)
        self._clock = clock
        self._seconds = seconds
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def start(self) -> None:
        """Open the file; make it, and its directory, if they don't exist.

        Raises:
            StoreUnavailable: it can't be made or opened.
            UnreadableSession: it was made by another program, or by a newer gateway.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "memory-sqlite")
        await self._run(lambda connection: None)

    async def close(self) -> None:
        """Close the file when what was begun is finished."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.get_running_loop().run_in_executor(thread, self._disconnect)
        except TimeoutError:
            pass  # the thread closes the file when it gets to it
        finally:
            thread.shutdown(wait=False)

    async def probe(self, size: int) -> None:
        """Write `size` bytes to the log of the file, and wait until they are on the disk."""
        await self._run(partial(rows.probe, size=size))

    async def session(self, key: SessionKey) -> Session | None:
        """Return the session, or None if its owner has none of this id."""
        return await self._run(partial(rows.find, key=key))

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        """Append the turn in one transaction."""
        return await self._run(lambda connection: rows.append(connection, key, turn, turns, self._clock()))

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100, most_bytes: int = 0) -> Page:
        """Return the newest `limit` messages with a seq below `before`, oldest first."""
        return await self._run(partial(rows.load, key=key, before=before, limit=limit, most_bytes=most_bytes))

    async def sessions(self, owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        """Return the sessions of `owner`, or all of the store, the last updated first."""
        return await self._run(partial(rows.sessions, owner=owner, after=after, limit=limit))

    async def delete(self, key: SessionKey) -> bool:
        """Delete the session with all its messages and media. Return whether it existed."""
        return await self._run(partial(rows.delete, key=key))

    async def pin(self, key: SessionKey, pinned: bool) -> Session:
        """Keep the session from being deleted by age or number, or no longer."""
        return await self._run(partial(rows.pin, key=key, pinned=pinned))

    async def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` on the store's thread. It is skipped if the caller is cancelled while it waits."""
        if self._thread is None:
            raise StoreUnavailable(f"The store at {self._path} is closed")
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work)
        except TimeoutError:
            reason = (
                f"{self._path} did not respond within {self._seconds:g} s. Is its disk slow, or another process busy?"
            )
            raise StoreUnavailable(reason) from None

    def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work`; open the file first if it is not open. On the store's thread."""
        try:
            if self._connection is None:
                self._connection = open_database(self._path)
            return work(self._connection)
        except UnusableFile as error:
            raise StoreUnavailable(str(error)) from error
        except ForeignFile as error:
            raise UnreadableSession(str(error)) from error
        except sqlite3.Error as error:
            if error_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_TOOBIG):
                self._disconnect()  # the next operation opens the file again
            raise _store_error(error, self._path) from error
        except UnicodeEncodeError as error:
            raise Unstorable(f"The ids or the system text can't be written as UTF-8: {error}", "system") from error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the store's error for one of SQLite's (https://www.sqlite.org/rescode.html)."""
    match error_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(f"{path} is locked by another process: {error}. Try again")
        case sqlite3.SQLITE_TOOBIG:
            return TooLargeForStore(f"SQLite can't keep a message of this size: {error}")
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return UnreadableSession(f"{path} can't be read: {error}. Restore it from a backup, or name another path")
        case _:
            return StoreUnavailable(f"{path} can't be used: {error}. Check the disk and the file's permissions")

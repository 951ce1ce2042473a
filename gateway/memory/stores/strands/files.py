"""Sessions as files that Strands' `FileSessionManager` reads and writes too, for one host.

Files block, so each store has threads of its own.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
import uuid
import zipfile
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from gateway.memory.copying import copy_session
from gateway.memory.model import Owner, Page, Session, SessionKey, SessionPage, Turn
from gateway.memory.store import NEWEST, Store, StoreUnavailable, UnknownPosition, UnreadableSession, Unstorable
from gateway.memory.stores.strands.session import (
    SessionFiles,
    find_agents,
    key_of,
    read_state,
)
from gateway.storage.files import UnusableFile, Write, expand, locked_file, make_directory, unusable, write_files

_T = TypeVar("_T")

SECONDS = 10.0
"""Longest time of an operation, waits for other processes included."""
_THREADS = 8
_OF_ONE_SESSION = (errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EACCES)
"""Errors of one session's files: a symbolic link, a directory in place of a file or the reverse, no permission."""
_PLACE = re.compile(r"[0-9]{20} .+", re.DOTALL)


class StrandsFilesStore:
    """Keeps sessions below `directory`. clock: the seconds since the epoch. seconds: for an operation."""

    name: ClassVar[str] = "strands_files"

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time, seconds: float = SECONDS) -> None:
        self._root = expand(directory)
        self._clock = clock
        self._seconds = seconds
        self._threads: ThreadPoolExecutor | None = None

    async def start(self) -> None:
        """Make the directory if it does not exist, and finish deletions.

        Raises:
            StoreUnavailable: it can't be made or written to.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "memory-strands-files")
        await self._run(self._prepare)

    async def close(self) -> None:
        """Finish what was begun."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown)

    async def probe(self, size: int) -> None:
        """Write a file of `size` bytes, and wait until it is on the disk."""
        await self._run(partial(self._probe, size))

    async def session(self, key: SessionKey) -> Session | None:
        """Return the session, or None if its owner has none of this id."""
        return await self._run(self._files(key).session)

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        """Append the turn."""
        return await self._run(lambda: self._files(key).append(turn, turns, self._clock()))

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100, most_bytes: int = 0) -> Page:
        """Return the newest `limit` messages with a seq below `before`, oldest first."""
        return await self._run(partial(self._files(key).load, before, limit, most_bytes))

    async def sessions(self, owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        """Return the sessions of `owner`, or all of the store, the last updated first."""
        return await self._run(partial(self._list, owner, after, limit))

    async def delete(self, key: SessionKey) -> bool:
        """Delete the session with all its messages. Return whether it existed."""
        return await self._run(partial(self._delete, key))

    async def pin(self, key: SessionKey, pinned: bool) -> Session:
        """Keep the session from being deleted by age or number, or no longer."""
        return await self._run(partial(self._files(key).pin, pinned))

    async def _run(self, work: Callable[[], _T]) -> _T:
        """Run `work` on a thread. It is skipped if the caller is cancelled while it waits."""
        if self._threads is None:
            raise StoreUnavailable(f"The store in {self._root} is closed")
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._do, work)
        except TimeoutError:
            reason = f"{self._root} did not respond within {self._seconds:g} s. Is its disk slow?"
            raise StoreUnavailable(reason) from None

    def _do(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except UnicodeEncodeError as error:
            raise Unstorable(f"The ids or the system text can't be written as UTF-8: {error}", "system") from error
        except UnusableFile as error:
            raise StoreUnavailable(str(error)) from error
        except OSError as error:
            where = error.filename or self._root
            if error.errno == errno.ELOOP:
                raise UnreadableSession(f"{where} is a symbolic link. Put the file itself there") from error
            reason = f"{where} can't be used: {error.strerror or error}. Check the disk and the file's permissions"
            raise StoreUnavailable(reason) from error

    # On a thread

    @property
    def _trash(self) -> Path:
        return self._root / ".deleted"

    def _prepare(self) -> None:
        for path in (self._root, self._root / ".locks", self._trash):
            if path != self._root and path.is_symlink():
                raise unusable(path, "it is a symbolic link")  # the trash is emptied: not what it leads to
            make_directory(path)
        for deleted in self._trash.iterdir():
            shutil.rmtree(deleted, ignore_errors=True)

    def _probe(self, size: int) -> None:
        """Write a file and remove it. Another process that starts meanwhile may be faster with that."""
        for is_last in (False, True):
            directory = self._trash / uuid.uuid4().hex  # which the next start empties if this process is killed
            directory.mkdir(mode=0o700)
            try:
                write_files(Write(directory / "probe", os.urandom(size)))
                return
            except FileNotFoundError:
                if is_last:
                    raise
            finally:
                shutil.rmtree(directory, ignore_errors=True)

    def _files(self, key: SessionKey) -> SessionFiles:
        return SessionFiles(self._root, key, self._lock)

    def _lock(self, directory: Path) -> AbstractContextManager[None]:
        """Lock a session, and with it about every 256th of the others: so no lock has to be deleted."""
        number = hashlib.sha256(os.fsencode(directory.relative_to(self._root))).hexdigest()[:2]
        return locked_file(self._root / ".locks" / number, self._seconds)

    def _delete(self, key: SessionKey) -> bool:
        trash = self._trash / uuid.uuid4().hex
        existed = self._files(key).delete(trash)
        if existed:
            with suppress(FileNotFoundError):  # a process that starts empties the trash, too
                shutil.rmtree(trash)
        return existed

    def _list(self, owner: Owner | None, after: str, limit: int) -> SessionPage:
        if after and not _PLACE.fullmatch(after):
            raise UnknownPosition(f"{after!r} is not the `next` of a page of sessions")
        sessions: list[Session] = []
        last = ""
        for place in sorted(place for place in self._places(owner) if place > after):
            session = self._readable(self._root / place.partition(" ")[2])
            if session is None:
                continue
            if len(sessions) == limit:
                return SessionPage(tuple(sessions), last)
            sessions.append(session)
            last = place
        return SessionPage(tuple(sessions))

    def _places(self, owner: Owner | None) -> list[str]:
        """Return a text for each session that sorts as sessions are listed: its age, and where it is."""
        places = []
        for agent in find_agents(self._root, owner):
            with suppress(FileNotFoundError, NotADirectoryError):
                updated = (agent / "messages").stat().st_mtime_ns
                places.append(f"{2**64 - updated:020} {agent.relative_to(self._root)}")
        return places

    def _readable(self, agent: Path) -> Session | None:
        """Return the session in the agent's directory, or None if there is none that can be read: `load` says why."""
        try:
            key = key_of(self._root, agent)
            if key is None and (state := read_state(agent)):
                key = key_of(self._root, agent, state.key)
            return self._files(key).session() if key else None
        except UnreadableSession:
            return None
        except OSError as error:
            if error.errno in _OF_ONE_SESSION:
                return None
            raise


_PIECE = 64 * 1024


async def export_session(store: Store, session: Session, directory: Path) -> None:
    """Write the session below `directory`. Messages that are there from an earlier export stay.

    Raises:
        StoreError: the session can't be read, or not be written in this layout.
    """
    target = StrandsFilesStore(directory)
    await target.start()
    try:
        await copy_session(store, target, session)
    finally:
        await target.close()


async def zip_session(store: Store, session: Session) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a ZIP file with what `export_session` writes.

    Raises:
        StoreError: as `export_session`, before the first piece.
    """
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="mlc-gateway-export-"))
    try:
        await export_session(store, session, folder / "sessions")
        archive = folder / "export.zip"
        await asyncio.to_thread(_zip, folder / "sessions", archive)
        with archive.open("rb") as file:
            while piece := await asyncio.to_thread(file.read, _PIECE):
                yield piece
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _zip(directory: Path, archive: Path) -> None:
    """Write what is in `directory` to a ZIP file, without the store's own directories: their names begin with a dot."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory)
            if not name.parts[0].startswith("."):
                file.write(path, name)

"""Sessions in use: a request opens one, and adds its turn when the run has ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from gateway.config.memory import Memory
from gateway.errors import MemoryUnavailable, Problem, SessionBusy, SessionNotFound
from gateway.memory import store
from gateway.memory.busy import BusySessions
from gateway.memory.model import PREFIX, Owner, SessionKey, StoredMessage, Turn
from gateway.memory.owner import new_session_id
from gateway.memory.reading import read_window
from gateway.memory.retention import run_retention
from gateway.notices import Notice
from gateway.observe.logs import Logger

_MOST_CONFLICTS = 10
_STORE_SECONDS = 30.0
"""For one use of the store; longer where its settings allow an operation more than half of that."""
_CLOSE_SECONDS = 5.0

UNAVAILABLE = Notice("MEMORY_UNAVAILABLE", "the store of sessions could not be used, so this turn is not remembered")
_NOT_STORED = "MEMORY_NOT_STORED"
_UNREADABLE = "The gateway can't read what its store holds of this session. Send no memory_id to begin a new session."
_CONCURRENT = Notice("MEMORY_CONCURRENT", "another request added a turn to the session while this one ran")


class OpenSession:
    """A session that a request uses. It is released once its turn is stored, or with `release`.

    key: None if the store can't be used and the request is answered without memory. id: for the client.
    turns: how many the session has. history: the messages to send, oldest first. recent: these, and older ones that do
    not fit, to know again what a client repeats. system: the session's system text.
    """

    def __init__(
        self,
        sessions: Sessions,
        key: SessionKey | None,
        id: str = "",
        turns: int = 0,
        history: Sequence[StoredMessage] = (),
        recent: Sequence[StoredMessage] = (),
        system: str = "",
    ) -> None:
        self.key = key
        self.id = id
        self.turns = turns
        self.history = history
        self.recent = recent
        self.system = system
        self._sessions = sessions
        self._in_use = key is not None

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices for the client about the session itself."""
        return () if self.key is not None else (UNAVAILABLE,)

    async def commit(self, turn: Turn) -> tuple[Notice, ...]:
        """Store `turn` and release the session; return what went wrong. It continues if the caller is cancelled."""
        if self.key is None or not self._in_use:
            return ()
        self._in_use = False
        return await asyncio.shield(self._sessions.in_background(self._sessions.commit(self.key, self.turns, turn)))

    def commit_later(self, turn: Turn) -> None:
        """Store `turn` in the background, then release the session."""
        if self.key is not None and self._in_use:
            self._in_use = False
            self._sessions.in_background(self._sessions.commit(self.key, self.turns, turn))

    def release(self) -> None:
        """Let the next request use the session. It does nothing after `commit`."""
        if self.key is not None and self._in_use:
            self._in_use = False
            self._sessions.busy.release(self.key)


class Sessions:
    """Opens sessions, and stores their turns.

    kept: where. busy: the sessions that requests of this process use. count: called with what became of each turn,
    stored or failed.
    """

    def __init__(
        self,
        kept: store.Store,
        settings: Memory,
        log: Logger,
        busy: BusySessions | None = None,
        clock: Callable[[], float] = time.time,
        close: Callable[[], Awaitable[None]] | None = None,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.busy = BusySessions() if busy is None else busy
        self._store = kept
        self._log = log
        self._close = close
        self._count = count
        self._seconds = max(_STORE_SECONDS, 2 * getattr(getattr(settings, settings.store), "seconds", 0.0))
        self._retention: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def in_use(self) -> int:
        """Number of sessions that requests use now."""
        return len(self.busy)

    async def open(self, owner: Owner, given: str) -> OpenSession:
        """Open the session that the client names, or a new one. given: its id; "" for a new session.

        Raises:
            SessionNotFound: the owner has no such session.
            SessionBusy: another request of this process still uses it.
            MemoryUnavailable: the store can't be used, and the settings don't allow an answer without memory.
        """
        if not given:
            return await self._begin(SessionKey(owner, new_session_id(owner.agent_id)))
        if not given.startswith(PREFIX):
            raise _not_found(given, owner)
        key = SessionKey(owner, given)
        await self._enter(key)
        try:
            return await self._load(key)
        except BaseException:
            self.busy.release(key)
            raise

    async def commit(self, key: SessionKey, turns: int, turn: Turn) -> tuple[Notice, ...]:
        """Store `turn`, after the turns that other processes added meanwhile; release the session.

        Return what went wrong: nothing is raised, as the answer has been given.
        """
        outcome = "failed"
        try:
            async with asyncio.timeout(self._seconds):
                notices = await self._append(key, turns, turn)
            if all(notice.code != _NOT_STORED for notice in notices):
                outcome = "stored"
            return notices
        except (store.StoreUnavailable, TimeoutError) as error:
            self._log.error("turn not stored", agent=key.owner.agent_id, reason=str(error) or "too slow")
            return (UNAVAILABLE,)
        except store.StoreError as error:
            self._log.error("turn not stored", agent=key.owner.agent_id, reason=str(error))
            return (Notice(_NOT_STORED, f"this turn is not remembered: {error}"),)
        except Exception:
            self._log.exception("internal error")
            return (UNAVAILABLE,)
        finally:
            self.busy.release(key)
            self._count(outcome)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` to its end, whatever happens to the request."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def start(self) -> None:
        """Begin to delete expired sessions, if the settings say which."""
        limits = self.settings.retention
        if limits.seconds or limits.sessions:
            self._retention = asyncio.create_task(run_retention(self._store, limits, self._log, self.busy, self.clock))

    def stop(self) -> None:
        """Delete no more expired sessions: other settings say which, or nobody is left to be served."""
        if self._retention is not None:
            self._retention.cancel()

    async def ended(self) -> None:
        """Wait until all turns are stored."""
        while self._running:
            await asyncio.wait(self._running)  # which, if cancelled, does not cancel them

    async def close(self) -> None:
        """Release the store once the turns are stored that requests have just left, but not later than some seconds."""
        self.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.ended()
        if self._retention is not None:
            await asyncio.gather(self._retention, return_exceptions=True)
        if self._close is not None:
            close, self._close = self._close, None
            await close()

    async def _append(self, key: SessionKey, turns: int, turn: Turn) -> tuple[Notice, ...]:
        """Append the turn, after those that others were faster with.

        If it is not known whether the turn was written, such as after a lost connection, it is sent once more. The
        turn's id prevents that it is stored twice.
        """
        notices: tuple[Notice, ...] = ()
        is_repeated = False
        for _ in range(_MOST_CONFLICTS):
            try:
                await self._store.append(key, turn, turns)
                return notices
            except store.StoreThrottled:
                raise
            except store.StoreUnavailable:
                if is_repeated:
                    raise
                is_repeated = True
            except store.SessionConflict as conflict:
                if turns and not conflict.turns:
                    return (Notice(_NOT_STORED, "this turn is not remembered: the session was deleted meanwhile"),)
                turns, notices = conflict.turns, (_CONCURRENT,)
        raise store.StoreUnavailable("other processes keep adding turns to the session")

    async def _enter(self, key: SessionKey) -> None:
        wait = self.settings.wait_seconds if self.settings.concurrent == "wait" else 0.0
        if not await self.busy.enter(key, wait):
            raise _busy(key.id, wait)

    async def _begin(self, key: SessionKey) -> OpenSession:
        try:
            async with asyncio.timeout(self._seconds):
                await self._store.start()
        except (store.StoreError, TimeoutError) as error:
            return self._without_memory("", error)
        await self.busy.enter(key, 0.0)
        return OpenSession(self, key, key.id)

    async def _load(self, key: SessionKey) -> OpenSession:
        try:
            async with asyncio.timeout(self._seconds):
                session = await self._store.session(key)
                if session is None:
                    raise _not_found(key.id, key.owner)
                turns, recent, start = await read_window(self._store, key, self.settings.window)
        except store.SessionNotFound:
            raise _not_found(key.id, key.owner) from None
        except (store.StoreError, TimeoutError) as error:
            unavailable = self._without_memory(key.id, error)
            self.busy.release(key)
            return unavailable
        return OpenSession(self, key, key.id, max(turns, session.turns), recent[start:], recent, session.system)

    def _without_memory(self, id: str, error: Exception) -> OpenSession:
        """Answer without memory, if the settings allow it.

        Raises:
            MemoryUnavailable: they don't.
        """
        self._log.error("store unavailable", reason=str(error) or "too slow", type=type(error).__name__)
        if self.settings.on_failure == "refuse":
            if isinstance(error, store.UnreadableSession):
                raise MemoryUnavailable(_UNREADABLE)
            raise MemoryUnavailable("The session can't be read: the gateway's store of sessions is not available.")
        return OpenSession(self, None, id)


def _not_found(id: str, owner: Owner) -> SessionNotFound:
    """Return the error for a session that there is not, or that is another owner's."""
    if id.startswith(PREFIX):
        help = "Send no memory_id to begin a new session. Ids are valid for one agent and one caller."
    else:
        help = (
            "The agent's memory is the gateway's, which has no such id. Send no memory_id to begin a new session, "
            f"or take over the cluster's conversations: mlc-gateway memory import-cluster --agent {owner.agent_id}"
        )
    place = Problem("parameters.memory_id", "no such session", f"an id that starts with {PREFIX}", id, repeats=id)
    return SessionNotFound(f"The agent {owner.agent_id} has no session {id} of yours.", [place], help, repeats=id)


def _busy(id: str, wait: float) -> SessionBusy:
    reason = f"Another request of session {id} is still running"
    error = SessionBusy(f"{reason}, and did not end within {wait:g} seconds." if wait else f"{reason}.", repeats=id)
    error.retry_after = 1
    return error

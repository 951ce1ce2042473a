"""Sessions in use: a request opens one, and adds its turn when the run has ended. Old ones are deleted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gateway.codes import Notice
from gateway.config.memory import Memory, Retention
from gateway.errors import MemoryUnavailable, Problem, SessionBusy, SessionNotFound
from gateway.memory import store
from gateway.memory.cluster_copies import ClusterCopies, with_copy
from gateway.memory.model import PREFIX, Owner, Session, SessionKey, StoredMessage, Turn, as_failed
from gateway.memory.owner import imported_key, new_session_id, thread_key
from gateway.memory.reading import read_window
from gateway.memory.store import Store, StoreError
from gateway.memory.window import measure
from gateway.observe.logs import Logger
from gateway.offload import Background


class BusySessions:
    """Lets one request at a time use a session; the others wait in order."""

    def __init__(self) -> None:
        self._waiting: dict[SessionKey, deque[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def enter(self, key: SessionKey, seconds: float) -> bool:
        """Begin to use a session; return False if it is still in use after `seconds`."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return True
        if seconds <= 0:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.release(key)  # it was this request's turn at the same moment
            elif turn in waiting:
                waiting.remove(turn)
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def release(self, key: SessionKey) -> None:
        """End the use of a session; the next request that waits begins to use it."""
        waiting = self._waiting[key]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[key]


Delete = Callable[[SessionKey], Awaitable[bool]]
"""Deletes a session; returns whether it existed."""


async def delete_expired(
    store: Store, limits: Retention, now: float, busy: BusySessions, delete: Delete | None = None
) -> int:
    """Delete what `limits` does not keep, at the time `now`. Return how many sessions were deleted.

    A session that was used meanwhile is kept, and one that a request of this process uses. Requests of other processes
    are not known: their sessions are deleted. Pinned sessions are kept, and do not count. delete: None for
    `Store.delete`.

    Raises:
        StoreError: from the store. Some sessions may be deleted by then.
    """
    deleted = 0
    for session in await _expired(store, limits, now):
        if not await busy.enter(session.key, 0.0):
            continue
        try:
            current = await store.session(session.key)
            if current is not None and current.updated == session.updated and not current.pinned:
                deleted += await (delete or store.delete)(session.key)
        finally:
            busy.release(session.key)
    return deleted


async def _expired(store: Store, limits: Retention, now: float) -> list[Session]:
    """Return the sessions that are too old or too many, from the list of all."""
    expired = []
    kept: Counter[Owner] = Counter()
    after = ""
    while True:
        page = await store.sessions(after=after)
        for session in page.sessions:  # the last updated first
            if session.pinned:
                continue
            too_old = limits.seconds and now - session.updated > limits.seconds
            too_many = limits.sessions and kept[session.key.owner] >= limits.sessions
            if too_old or too_many:
                expired.append(session)
            else:
                kept[session.key.owner] += 1
        after = page.next
        if not after:
            return expired


async def run_retention(
    store: Store,
    limits: Retention,
    log: Logger,
    busy: BusySessions,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    delete: Delete | None = None,
) -> None:
    """Delete expired sessions now, and every `limits.check_seconds`, until cancelled. Return at once without limits.

    An error is logged, and the store tried again the next time.
    """
    while limits.seconds or limits.sessions:
        try:
            deleted = await delete_expired(store, limits, clock(), busy, delete)
        except StoreError as error:
            log.warning("sessions not deleted", reason=str(error))
        except Exception:
            log.exception("internal error")
        else:
            if deleted:
                log.info("sessions deleted", sessions=deleted)
        await sleep(limits.check_seconds)


_MOST_CONFLICTS = 10
_STORE_SECONDS = 30.0
"""For one use of the store; longer where its settings allow an operation more than half of that."""
_CLOSE_SECONDS = 5.0
_PROBE_SECONDS = 5.0
"""For so long after a write that succeeded, the store counts as one that takes writes."""
_REFUSAL_SECONDS = 1.0
"""For so long after a probe that failed, the store counts as one that takes none."""
_PROBE_BYTES = 65_536
_LARGEST_PROBE = 16 * 1024 * 1024

UNAVAILABLE = Notice("MEMORY_UNAVAILABLE", "the store of sessions could not be used, so this turn is not remembered")
_NOT_STORED = "MEMORY_NOT_STORED"
_UNREADABLE = "The gateway can't read what its store holds of this session. Send no memory_id to begin a new session."
_CONCURRENT = Notice("MEMORY_CONCURRENT", "another request added a turn to the session while this one ran")


class OpenSession:
    """A session that a request uses. It is released once its turn is stored, or with `release`.

    key: None if the store can't be used and the request is answered without memory. id: for the client; "" if there
    is no such session, as when its first turn was not stored. turns: how many the session has. recent: the newest
    messages of the conversation, oldest first, at least as many as the window takes. more: it has older ones. system:
    the session's system text. is_stored: whether the session holds the turn of the request by now.
    """

    def __init__(
        self,
        sessions: Sessions,
        key: SessionKey | None,
        id: str = "",
        turns: int = 0,
        recent: Sequence[StoredMessage] = (),
        more: bool = False,
        system: str = "",
    ) -> None:
        self.key = key
        self.id = id
        self.turns = turns
        self.recent = recent
        self.more = more
        self.system = system
        self._sessions = sessions
        self._in_use = key is not None
        self.is_stored = False

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices for the client about the session itself."""
        return () if self.key is not None else (UNAVAILABLE,)

    async def commit(self, turn: Turn) -> tuple[Notice, ...]:
        """Store `turn` and release the session; return what went wrong. It continues if the caller is cancelled."""
        if self.key is None or not self._in_use:
            return ()
        self._in_use = False
        committed = self._sessions.background.run(self._sessions.commit(self.key, self.turns, turn))
        is_stored, notices = await asyncio.shield(committed)
        self.is_stored = is_stored
        if not (is_stored or self.turns):
            self.id = ""
        return notices

    async def fail(self, turn: Turn, copy: str = "") -> tuple[Notice, ...]:
        """Store `turn` as one whose run failed, as `commit`. A session is not begun with it: the client gets no id.

        copy: what the cluster has of it.
        """
        if self.turns:
            return await self.commit(with_copy(as_failed(turn), copy))
        self.release()
        self.id = ""
        return ()

    def fail_later(self, turn: Turn) -> None:
        """Store `turn` as `fail` in the background, then release the session."""
        if self.key is not None and self._in_use and self.turns:
            self._in_use = False
            self._sessions.background.run(self._sessions.commit(self.key, self.turns, as_failed(turn)))

    def release(self) -> None:
        """Let the next request use the session. It does nothing after `commit`."""
        if self.key is not None and self._in_use:
            self._in_use = False
            self._sessions.busy.release(self.key)


class Sessions:
    """Opens sessions, and stores their turns.

    kept: where. copies: deletes what the cluster has of them; None to leave it. busy: the sessions that requests of
    this process use. count: called with what became of each turn, stored or failed.
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
        copies: ClusterCopies | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.busy = BusySessions() if busy is None else busy
        self._store = kept
        self._log = log
        self.copies = copies
        self._close = close
        self._count = count
        self._seconds = max(_STORE_SECONDS, 2 * getattr(getattr(settings, settings.store), "seconds", 0.0))
        self._retention: asyncio.Task[None] | None = None
        self.background = Background()
        self._writes = _Writes()
        self._probe: asyncio.Task[None] | None = None

    @property
    def in_use(self) -> int:
        """Number of sessions that requests use now."""
        return len(self.busy)

    async def open(self, owner: Owner, given: str) -> OpenSession:
        """Open the session that the client names, or a new one. given: its id; "" for a new session.

        Of a conversation that was imported from a cluster's memory, the id there is good, too.

        Raises:
            SessionNotFound: the owner has no such session.
            SessionBusy: another request of this process still uses it.
            MemoryUnavailable: the store can't be used, and the settings don't allow an answer without memory.
        """
        if not given:
            return await self._begin(SessionKey(owner, new_session_id(owner.agent_id)))
        key = SessionKey(owner, given) if given.startswith(PREFIX) else imported_key(owner, given)
        return await self._enter(key, named=given)

    async def open_thread(self, owner: Owner, thread: str) -> OpenSession:
        """Open the session of a conversation that a client names in its own way, or begin it. The name is its seed.

        Raises:
            SessionBusy, MemoryUnavailable: as `open`.
        """
        return await self._enter(thread_key(owner, thread), may_begin=True)

    async def last_agent(self, key: SessionKey) -> str:
        """Return the id of the agent that the session's last message is from; "" if that can't be read."""
        try:
            async with asyncio.timeout(self._seconds):
                page = await self._store.load(key, limit=1)
        except (StoreError, TimeoutError):
            return ""
        return page.messages[-1].message.metadata.agent_id if page.messages else ""

    async def commit(self, key: SessionKey, turns: int, turn: Turn) -> tuple[bool, tuple[Notice, ...]]:
        """Store `turn`, after the turns that other processes added meanwhile; release the session.

        Return whether it is stored, and what went wrong: nothing is raised, as the agent has run.
        """
        is_stored = False
        notices: tuple[Notice, ...] = (UNAVAILABLE,)
        try:
            async with asyncio.timeout(self._seconds):
                is_stored, notices = await self._append(key, turns, turn)
        except (store.StoreUnavailable, TimeoutError) as error:
            self._log.error("turn not stored", agent=key.owner.agent_id, reason=str(error) or "too slow")
            self._writes.failed(_size(turn))
        except store.StoreError as error:
            self._log.error("turn not stored", agent=key.owner.agent_id, reason=str(error))
            notices = (Notice(_NOT_STORED, f"this turn is not remembered: {error}"),)
        except Exception:
            self._log.exception("internal error")
        finally:
            self.busy.release(key)
            self._count("stored" if is_stored else "failed")
        return is_stored, notices

    async def delete(self, key: SessionKey, headers: Mapping[str, str] | None = None) -> bool:
        """Delete a session, and what the cluster has of it. Return whether it existed.

        headers: the credentials of the client that asks for it; None for those of the gateway.

        Raises:
            StoreError: as `Store.delete`.
        """
        if self.copies is None:
            return await self._store.delete(key)
        return await self.copies.delete_session(self._store, key, headers)

    def start(self) -> None:
        """Begin to delete expired sessions, if the settings say which."""
        limits = self.settings.retention
        if limits.seconds or limits.sessions:
            work = run_retention(self._store, limits, self._log, self.busy, self.clock, delete=self.delete)
            self._retention = asyncio.create_task(work)

    def stop(self) -> None:
        """Delete no more expired sessions: other settings say which, or nobody is left to be served."""
        if self._retention is not None:
            self._retention.cancel()

    async def ended(self) -> None:
        """Wait until all turns are stored."""
        await self.background.ended()

    async def close(self) -> None:
        """Release the store once the turns are stored that requests have just left, but not later than some seconds."""
        self.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.ended()
        if self._retention is not None:
            await asyncio.gather(self._retention, return_exceptions=True)
        if self.copies is not None:
            await self.copies.close()
        if self._close is not None:
            close, self._close = self._close, None
            await close()

    async def _append(self, key: SessionKey, turns: int, turn: Turn) -> tuple[bool, tuple[Notice, ...]]:
        """Append the turn, after those that others were faster with. Return as `commit`.

        If it is not known whether the turn was written, such as after a lost connection, it is sent once more. The
        turn's id prevents that it is stored twice.
        """
        notices: tuple[Notice, ...] = ()
        is_repeated = False
        for _ in range(_MOST_CONFLICTS):
            try:
                await self._store.append(key, turn, turns)
                self._writes.succeeded(_size(turn))
                return True, notices
            except store.StoreThrottled:
                raise
            except store.StoreUnavailable:
                if is_repeated:
                    raise
                is_repeated = True
            except store.SessionConflict as conflict:
                if turns and not conflict.turns:
                    deleted = "this turn is not remembered: the session was deleted meanwhile"
                    return False, (Notice(_NOT_STORED, deleted),)
                turns, notices = conflict.turns, (_CONCURRENT,)
        raise store.StoreUnavailable("other processes keep adding turns to the session")

    async def _enter(self, key: SessionKey, may_begin: bool = False, named: str = "") -> OpenSession:
        """Load a session when no other request uses it any more. Arguments as of `_load`."""
        wait = self.settings.wait_seconds if self.settings.concurrent == "wait" else 0.0
        if not await self.busy.enter(key, wait):
            raise _busy(key.id, wait)
        try:
            return await self._load(key, may_begin, named)
        except BaseException:
            self.busy.release(key)
            raise

    async def _begin(self, key: SessionKey) -> OpenSession:
        try:
            async with asyncio.timeout(self._seconds):
                await self._store.start()
                await _end(self._begin_proof())
        except (store.StoreError, TimeoutError) as error:
            return self._without_memory("", error)
        await self.busy.enter(key, 0.0)
        return OpenSession(self, key, key.id)

    async def _load(self, key: SessionKey, may_begin: bool, named: str) -> OpenSession:
        """Load a session. may_begin: it need not exist. named: as the client names it."""
        try:
            async with asyncio.timeout(self._seconds):
                # Both end before the request is answered: a later one must not share a probe of an earlier state.
                both = self._read(key), _end(self._begin_proof())
                opened, proved = await asyncio.gather(*both, return_exceptions=True)
                for failure in (opened, proved):
                    if isinstance(failure, BaseException):
                        raise failure
                assert isinstance(opened, OpenSession)
                return opened
        except (store.SessionNotFound, SessionNotFound):
            if may_begin:
                return OpenSession(self, key, key.id)
            raise _not_found(named or key.id, key.owner) from None
        except (store.StoreError, TimeoutError) as error:
            unavailable = self._without_memory(key.id, error)
            self.busy.release(key)
            return unavailable

    async def _read(self, key: SessionKey) -> OpenSession:
        session = await self._store.session(key)
        if session is None:
            raise _not_found(key.id, key.owner)
        turns, recent, more = await read_window(self._store, key, self.settings.window)
        return OpenSession(self, key, key.id, max(turns, session.turns), recent, more, session.system)

    def _begin_proof(self) -> asyncio.Task[None] | None:
        """Begin to prove that the store takes writes, as an LLM call costs money. Requests share a probe.

        Return None if that is known, or the settings want an answer without memory.
        """
        if self.settings.on_failure == "answer" or self._writes.is_recent:
            return None
        if self._probe is None or (self._probe.done() and not self._writes.is_refused):
            self._probe = self.background.run(self._try_to_write())
            self._probe.add_done_callback(lambda probe: probe.cancelled() or probe.exception())  # no request may wait
        return self._probe

    async def _try_to_write(self) -> None:
        size = max(_PROBE_BYTES, self._writes.failed_size)
        try:
            async with asyncio.timeout(self._seconds):
                await self._store.probe(size)
        except BaseException:
            self._writes.refused()
            raise
        self._writes.succeeded(size)

    def _without_memory(self, id: str, error: Exception) -> OpenSession:
        """Answer without memory, if the settings allow it.

        Raises:
            MemoryUnavailable: they don't.
        """
        self._log.error("store unavailable", reason=str(error) or "too slow", type=type(error).__name__)
        if self.settings.on_failure == "refuse":
            if isinstance(error, store.UnreadableSession):
                raise MemoryUnavailable(_UNREADABLE)
            reason = "The gateway's store of sessions is not available: it can't be read, or takes no writes."
            raise MemoryUnavailable(reason)
        return OpenSession(self, None, id)


class _Writes:
    """What is known of the store's writes. failed_size: of a turn that failed since, in bytes."""

    def __init__(self) -> None:
        self.failed_size = 0
        self._until = self._refused_until = 0.0

    @property
    def is_recent(self) -> bool:
        """Return whether a write succeeded a short time ago, and none failed since."""
        return time.monotonic() < self._until

    @property
    def is_refused(self) -> bool:
        """Return whether a probe failed a short time ago."""
        return time.monotonic() < self._refused_until

    def succeeded(self, size: int) -> None:
        """Note a write. One that is smaller than the failed one says nothing: a disk may be almost full."""
        if size >= self.failed_size:
            self.failed_size = 0
            self._until = time.monotonic() + _PROBE_SECONDS

    def failed(self, size: int) -> None:
        """Note that a turn was not stored."""
        self.failed_size = min(size, _LARGEST_PROBE)
        self._until = 0.0

    def refused(self) -> None:
        """Note a probe that failed."""
        self._refused_until = time.monotonic() + _REFUSAL_SECONDS


async def _end(proof: asyncio.Task[None] | None) -> None:
    if proof is not None:
        await asyncio.shield(proof)


def _size(turn: Turn) -> int:
    return sum(measure(message)[0] for message in turn.messages)


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

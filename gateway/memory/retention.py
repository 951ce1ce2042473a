"""Deletes sessions that are too old, or too many of one owner."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from gateway.config.memory import Retention
from gateway.memory.model import Owner, Session
from gateway.memory.opening import BusySessions
from gateway.memory.store import Store, StoreError
from gateway.observe.logs import Logger


async def delete_expired(store: Store, limits: Retention, now: float, busy: BusySessions) -> int:
    """Delete what `limits` does not keep, at the time `now`. Return how many sessions were deleted.

    A session that was used meanwhile is kept, and one that a request of this process uses. Requests of other processes
    are not known: their sessions are deleted. Pinned sessions are kept, and do not count.

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
                deleted += await store.delete(session.key)
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
) -> None:
    """Delete expired sessions now, and every `limits.check_seconds`, until cancelled. Return at once without limits.

    An error is logged, and the store tried again the next time.
    """
    while limits.seconds or limits.sessions:
        try:
            deleted = await delete_expired(store, limits, clock(), busy)
        except StoreError as error:
            log.warning("sessions not deleted", reason=str(error))
        except Exception:
            log.exception("internal error")
        else:
            if deleted:
                log.info("sessions deleted", sessions=deleted)
        await sleep(limits.check_seconds)

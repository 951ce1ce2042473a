"""Lists the sessions of an AgentCore memory. AgentCore has no list by time, so the record of each session is read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from gateway.memory.model import Owner, Session, SessionPage
from gateway.memory.store import UnknownPosition, UnreadableSession
from gateway.memory.stores.agentcore import record as ids
from gateway.memory.stores.agentcore.client import Operation
from gateway.memory.stores.agentcore.record import read
from gateway.observe.logs import Logger

_T = TypeVar("_T")

_KEPT = 4
"""Lists of which the rest is kept."""
_POSITION = re.compile(r"[0-9]{14}\.[0-9]{3} .*", re.ASCII | re.DOTALL)


class SessionLists:
    """Lists of sessions, the last updated first.

    What a page leaves is kept for the next page, so that all pages of a list need each record once. They show the
    sessions as they were when the first page was read.

    operation: begins an operation; each record has one of its own. at_once: records that are read at a time.
    """

    def __init__(self, operation: Callable[[], Operation], at_once: int, log: Logger) -> None:
        self._operation = operation
        self._reads = asyncio.Semaphore(at_once)
        self._log = log
        self._rests: dict[tuple[Owner | None, str], list[Session]] = {}

    async def page(self, owner: Owner | None, after: str, limit: int) -> SessionPage:
        """Return a page as `Store.sessions`."""
        if after and not _POSITION.fullmatch(after):
            raise UnknownPosition(f"{after!r} is not the `next` of a page of sessions")
        rest = self._rests.pop((owner, after), None)
        same_moment = rest is not None
        if rest is None:
            rest = [session for session in await self._read(owner) if not after or _position(session) > after]
        if len(rest) <= limit:
            return SessionPage(tuple(rest), same_moment=same_moment)
        following = _position(rest[limit - 1])
        self._rests[owner, following] = rest[limit:]
        if len(self._rests) > _KEPT:
            del self._rests[next(iter(self._rests))]
        return SessionPage(tuple(rest[:limit]), following, same_moment)

    async def _read(self, owner: Owner | None) -> list[Session]:
        """Return all sessions of `owner`, or of the memory, in order."""
        if owner is not None:
            actors = [ids.actor(ids.RECORDS, owner)]
        else:
            prefix = f"{ids.RECORDS}-"
            actors = [actor for actor in await self._operation().actors() if actor.startswith(prefix)]
        named = await _all(self._names(actor) for actor in actors)
        pairs = [(actor, name) for actor, names in zip(actors, named, strict=True) for name in names]
        sessions = await _all(self._session(actor, name) for actor, name in pairs)
        found = [one for one in sessions if one is not None and owner in (None, one.key.owner)]
        return sorted(found, key=_position)

    async def _names(self, actor: str) -> list[str]:
        async with self._reads:
            return await self._operation().sessions(actor)

    async def _session(self, actor: str, name: str) -> Session | None:
        """Return a session; None if it was deleted, or can't be read, which is logged."""
        async with self._reads:
            events = await self._operation().events(actor, name)
        try:
            return read(events).session
        except UnreadableSession as error:
            self._log.warning("session not listed", session=name, reason=str(error))
            return None


async def _all(works: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the results of all `works`. If one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _position(session: Session) -> str:
    """Return a text by which sessions sort, the last updated first."""
    return f"{10**14 - session.updated * 1000:018.3f} {session.key.owner!r} {session.key.id}"

"""The store of sessions: opened when it is used first, kept when the settings are reloaded; one request a session."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from gateway.config.problems import ConfigError
from gateway.config.schema import Settings
from gateway.memory.model import Owner, Page, Session, SessionKey, SessionPage, Turn
from gateway.memory.store import NEWEST, Store, StoreUnavailable, UnreadableSession
from gateway.memory.stores.registry import build_store
from gateway.shared import Shared, SharedResources


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


_STOPPING = "the gateway is stopping"


class LazyStore:
    """Opens a store on first use, and again on the next use if that failed. make: builds the store, not started."""

    name: ClassVar[str] = "lazy"

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._store: Store | None = None
        self._opening: asyncio.Task[Store] | None = None
        self._closed = False

    async def start(self) -> None:
        """Open the store, unless it is open.

        Raises:
            StoreError: it can't be opened.
        """
        await self._open()

    async def _open(self) -> Store:
        """Return the open store. Requests that come while it is opened share the attempt, and its failure."""
        if self._store is not None:
            return self._store
        if self._closed:
            raise StoreUnavailable(_STOPPING)
        opening = self._opening = self._opening or asyncio.create_task(self._start())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise StoreUnavailable(_STOPPING) from None
            raise

    async def _start(self) -> Store:
        try:
            opened = self._make()
            try:
                await opened.start()
            except BaseException:
                await opened.close()
                raise
            self._store = opened
            return opened
        except ConfigError as error:
            raise StoreUnavailable(f"the settings of the store can't be used: {error}") from error
        except UnreadableSession as error:  # not of one session: clients can't begin another one either
            raise StoreUnavailable(str(error)) from error
        finally:
            self._opening = None

    async def close(self) -> None:
        """Close the store. It is not opened again."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def probe(self, size: int) -> None:
        """See `Store`."""
        await (await self._open()).probe(size)

    async def session(self, key: SessionKey) -> Session | None:
        """See `Store`."""
        return await (await self._open()).session(key)

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        """See `Store`."""
        return await (await self._open()).append(key, turn, turns)

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100, most_bytes: int = 0) -> Page:
        """See `Store`."""
        return await (await self._open()).load(key, before, limit, most_bytes)

    async def sessions(self, owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        """See `Store`."""
        return await (await self._open()).sessions(owner, after, limit)

    async def delete(self, key: SessionKey) -> bool:
        """See `Store`."""
        return await (await self._open()).delete(key)

    async def pin(self, key: SessionKey, pinned: bool) -> Session:
        """See `Store`."""
        return await (await self._open()).pin(key, pinned)


def share_store(
    stores: SharedResources[LazyStore], settings: Settings, build: Callable[[Settings], Store] | None = None
) -> Shared[LazyStore]:
    """Return the store that `settings` name, shared with other settings that do. build: `build_configured`."""
    make = build or build_configured
    return stores.use(_store_settings(settings), lambda: LazyStore(lambda: make(settings)))


def build_configured(settings: Settings) -> Store:
    """Build the store that `settings` name, not started.

    Raises:
        ConfigError: its settings can't be used.
    """
    return build_store(settings.memory, first_address(settings))


def _store_settings(settings: Settings) -> tuple[object, ...]:
    memory = settings.memory
    own = getattr(memory, memory.store)
    return memory.store, own, first_address(settings)


def first_address(settings: Settings) -> str:
    """Return the URL of the cluster's first node, for a store that names no other."""
    return settings.upstream.nodes[0] if settings.upstream.nodes else settings.upstream.url

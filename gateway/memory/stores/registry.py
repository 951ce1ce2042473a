"""The stores by name, one row each, and how the one in the settings is opened: on first use, kept across a reload.

A module is imported when its store is built, with the libraries it needs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

from gateway.config.memory import Memory
from gateway.config.problems import ConfigError, ConfigProblem
from gateway.config.schema import Settings
from gateway.config.types import OpenSearchAccount
from gateway.memory.model import Owner, Page, Session, SessionKey, SessionPage, Turn
from gateway.memory.store import NEWEST, Store, StoreUnavailable, UnreadableSession
from gateway.storage.files import expand, find_fault, find_file_fault, state_directory

Problems = Iterator[ConfigProblem]


class Row(msgspec.Struct, frozen=True):
    """A store.

    build: returns it, not started, from the settings and the cluster's first address. one_host: gateways on several
    hosts can't share it. check: what is wrong with its settings.
    """

    build: Callable[[Memory, str], Store]
    one_host: bool
    check: Callable[[Memory], Problems]


def build_store(settings: Memory, upstream_url: str = "", name: str = "") -> Store:
    """Return the store `name` (empty: the one in the settings), not started.

    upstream_url: the cluster's first address, for a store that names no other.

    Raises:
        ConfigError: its settings can't be used.
    """
    name = name or settings.store
    problems = check_store(settings, name)
    if problems:
        raise ConfigError(problems)
    return STORES[name].build(settings, upstream_url)


def check_store(settings: Memory, name: str = "") -> list[ConfigProblem]:
    """Return what is wrong with the settings of the store `name` (empty: the one in the settings). Looks at files."""
    name = name or settings.store
    if name not in STORES:
        return [ConfigProblem("memory.store", "there is no such store", repr(name), ", ".join(STORES))]
    return list(STORES[name].check(settings))


def describe_store(settings: Memory) -> str:
    """Return what operators should know of the store in the settings; "" for nothing."""
    if not STORES[settings.store].one_host:
        return ""
    shared = " or ".join(name for name, row in STORES.items() if not row.one_host)
    return f"memory.store: {settings.store} serves the workers of one host; gateways on several hosts need {shared}"


def _sqlite(settings: Memory, _: str) -> Store:
    from gateway.memory.stores.sqlite import SqliteStore

    path = settings.sqlite.path
    return SqliteStore(Path(path) if path else state_directory() / "memory.sqlite3")


def _strands_files(settings: Memory, _: str) -> Store:
    from gateway.memory.stores.strands.files import StrandsFilesStore

    directory = settings.strands_files.directory
    return StrandsFilesStore(Path(directory) if directory else state_directory() / "sessions")


def _opensearch(settings: Memory, upstream_url: str) -> Store:
    from gateway.memory.stores.opensearch.store import OpenSearchStore

    return OpenSearchStore(settings.opensearch, upstream_url)


def _agentcore(settings: Memory, _: str) -> Store:
    from gateway.memory.stores.agentcore.store import AgentCoreStore

    return AgentCoreStore(settings.agentcore)


def _check_sqlite(settings: Memory) -> Problems:
    given = settings.sqlite.path
    if given and (reason := find_file_fault(expand(Path(given)))):
        yield ConfigProblem("memory.sqlite.path", f"can't be used: {reason}", repr(given))


def _check_strands_files(settings: Memory) -> Problems:
    if settings.strands_files.directory:
        reason = find_fault(expand(Path(settings.strands_files.directory)))
        if reason:
            given = repr(settings.strands_files.directory)
            yield ConfigProblem("memory.strands_files.directory", f"can't be used: {reason}", given)


def _check_opensearch(settings: Memory) -> Problems:
    return check_account("memory.opensearch", settings.opensearch)


def check_account(section: str, account: OpenSearchAccount) -> Problems:
    """Yield what is wrong with the account of a store on an OpenSearch cluster. section: of the settings."""
    if bool(account.username) != bool(account.password):
        missing, given = ("password", "username") if account.username else ("username", "password")
        yield ConfigProblem(f"{section}.{missing}", f"is needed with {section}.{given}")
    if account.sigv4_region and account.username:
        yield ConfigProblem(f"{section}.sigv4_region", f"can't be given together with {section}.username")
    if account.ca_file and not os.access(account.ca_file, os.R_OK):
        yield ConfigProblem(f"{section}.ca_file", "can't be read", repr(account.ca_file))


def _check_agentcore(settings: Memory) -> Problems:
    if not settings.agentcore.memory_id:
        yield ConfigProblem("memory.agentcore.memory_id", "is needed for the store agentcore")


STORES: dict[str, Row] = {
    "sqlite": Row(_sqlite, True, _check_sqlite),
    "opensearch": Row(_opensearch, False, _check_opensearch),
    "agentcore": Row(_agentcore, False, _check_agentcore),
    "strands_files": Row(_strands_files, True, _check_strands_files),
}
"""Every store. Its name is also that of its section in the settings."""


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


def share_store(stores: SharedResources[LazyStore], settings: Settings) -> Shared[LazyStore]:
    """Return the store that `settings` name, shared with other settings that do. Its settings are checked on use."""
    memory, address = settings.memory, first_address(settings)
    name = memory.store, getattr(memory, memory.store), address
    return stores.use(name, lambda: LazyStore(lambda: build_store(memory, address)))


def first_address(settings: Settings) -> str:
    """Return the URL of the cluster's first node, for a store that names no other."""
    return settings.upstream.nodes[0] if settings.upstream.nodes else settings.upstream.url


class Closable(Protocol):
    """A resource that is closed after its last use."""

    async def close(self) -> None:
        """Close it."""


T = TypeVar("T", bound=Closable)


class Shared(Generic[T]):
    """A resource of all sets of settings that name it. users: how many there are."""

    def __init__(self, resource: T, forget: Callable[[], object]) -> None:
        self.resource = resource
        self.users = 0
        self._forget = forget

    async def release(self) -> None:
        """End one use; the last one closes the resource."""
        self.users -= 1
        if not self.users:
            self._forget()
            await self.resource.close()


class SharedResources(Generic[T]):
    """Resources by name."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Shared[T]] = {}

    def use(self, name: Hashable, make: Callable[[], T]) -> Shared[T]:
        """Return the resource of a name, made if there is none. Release it in the end."""
        if name not in self._open:
            self._open[name] = Shared(make(), lambda: self._open.pop(name))
        shared = self._open[name]
        shared.users += 1
        return shared

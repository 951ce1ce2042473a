"""The stores by name, one row each. A module is imported when its store is built, with the libraries it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gateway.config.memory import Memory
from gateway.config.problems import ConfigError, ConfigProblem
from gateway.memory.store import Store
from gateway.storage.paths import expand, find_fault, find_file_fault, state_directory

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
    store = settings.opensearch
    if bool(store.username) != bool(store.password):
        missing, given = ("password", "username") if store.username else ("username", "password")
        yield ConfigProblem(f"memory.opensearch.{missing}", f"is needed with memory.opensearch.{given}")
    if store.sigv4_region and store.username:
        yield ConfigProblem("memory.opensearch.sigv4_region", "can't be given together with memory.opensearch.username")
    if store.ca_file and not os.access(store.ca_file, os.R_OK):
        yield ConfigProblem("memory.opensearch.ca_file", "can't be read", repr(store.ca_file))


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

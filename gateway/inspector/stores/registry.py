"""The stores of exchanges by name: one row each. A store's module is imported when it is opened.

A module has ``build(settings: Inspector, log: Logger) -> RecordSink``, which does not open files or connections yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from gateway.config.inspector import Inspector
from gateway.config.problems import ConfigProblem
from gateway.inspector.store import RecordSink, RecordStore
from gateway.inspector.stores.places import audit_path, sqlite_directory
from gateway.observe.logs import Logger
from gateway.storage.paths import find_fault, find_file_fault

Problems = Iterator[ConfigProblem]
Build = Callable[[Inspector, Logger], RecordSink]


@dataclass(frozen=True, slots=True)
class Entry:
    """A store. check: what is wrong with its settings."""

    module: str
    check: Callable[[Inspector], Problems]


def open_sinks(settings: Inspector, log: Logger) -> list[RecordSink]:
    """Return the stores in which to record; none if the inspector is off. `close` them."""
    if not settings.enabled:
        return []
    builders: list[Build] = [import_module(SINKS[name].module).build for name in dict.fromkeys(settings.stores)]
    return [build(settings, log) for build in builders]


def open_store(settings: Inspector) -> RecordStore | None:
    """Return the store that the page reads; None if exchanges are not recorded there. `close` it."""
    if not settings.enabled or "sqlite" not in settings.stores:
        return None
    from gateway.inspector.stores.sqlite import SqliteStore

    return SqliteStore(settings.sqlite)


def check_sinks(settings: Inspector) -> list[ConfigProblem]:
    """Return what is wrong with the settings of the stores that are used. Looks at files."""
    if not settings.enabled:
        return []
    if not settings.stores:
        return [ConfigProblem("inspector.stores", "is empty, so nothing would be recorded", allowed=", ".join(SINKS))]
    return [problem for name in dict.fromkeys(settings.stores) for problem in SINKS[name].check(settings)]


def _check_sqlite(settings: Inspector) -> Problems:
    directory = sqlite_directory(settings.sqlite)
    if reason := find_fault(directory):
        yield _unusable("inspector.sqlite.directory", settings.sqlite.directory, directory, reason)


def _check_audit_file(settings: Inspector) -> Problems:
    path = audit_path(settings.audit_file)
    if reason := find_file_fault(path):
        yield _unusable("inspector.audit_file.path", settings.audit_file.path, path, reason)


def _unusable(setting: str, given: str, place: Path, reason: str) -> ConfigProblem:
    if given:
        return ConfigProblem(setting, f"can't be used: {reason}", repr(given))
    allowed = "a place that this user can write to"
    return ConfigProblem(setting, f"is not set, and the default {place} can't be used: {reason}", allowed=allowed)


def _check_opensearch(settings: Inspector) -> Problems:
    section, store = "inspector.opensearch", settings.opensearch
    if not store.url:
        yield ConfigProblem(f"{section}.url", "is needed for the store opensearch")
    if bool(store.username) != bool(store.password):
        missing, given = ("password", "username") if store.username else ("username", "password")
        yield ConfigProblem(f"{section}.{missing}", f"is needed with {section}.{given}")
    if store.sigv4_region and store.username:
        yield ConfigProblem(f"{section}.sigv4_region", f"can't be given together with {section}.username")
    if store.ca_file and not os.access(store.ca_file, os.R_OK):
        yield ConfigProblem(f"{section}.ca_file", "can't be read", repr(store.ca_file))


SINKS: dict[str, Entry] = {
    "sqlite": Entry("gateway.inspector.stores.sqlite", _check_sqlite),
    "audit_file": Entry("gateway.inspector.stores.audit_file", _check_audit_file),
    "opensearch": Entry("gateway.inspector.stores.opensearch", _check_opensearch),
}
"""Every store. Its name is also that of its section in the settings."""

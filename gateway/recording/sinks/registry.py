"""The stores of exchanges by name, one row each, and all sinks that the settings switch on.

The modules of the others than `sqlite`, which the page reads, are imported when the sink is opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from gateway.config.inspector import Inspector
from gateway.config.problems import ConfigProblem
from gateway.config.schema import Settings
from gateway.memory.stores.registry import check_account
from gateway.observe.logs import Logger
from gateway.observe.record import ExchangeRecord
from gateway.proxy.routes import Intent
from gateway.recording.sinks.sqlite import RecordingStore, SqliteStore
from gateway.recording.store import RecordSink, audit_path, sqlite_directory
from gateway.storage.files import find_fault, find_file_fault

Problems = Iterator[ConfigProblem]


class Entry(msgspec.Struct, frozen=True):
    """A store. build: returns it, without opening files or connections yet. check: what is wrong with its settings."""

    build: Callable[[Inspector, Logger], RecordSink]
    check: Callable[[Inspector], Problems]


def open_sinks(settings: Inspector, log: Logger) -> list[RecordSink]:
    """Return the stores in which to record; none if the inspector is off. `close` them."""
    if not settings.enabled:
        return []
    return [SINKS[name].build(settings, log) for name in dict.fromkeys(settings.stores)]


def open_store(settings: Inspector) -> SqliteStore | None:
    """Return the store that the page reads; None if exchanges are not recorded there. `close` it."""
    if not settings.enabled or "sqlite" not in settings.stores:
        return None
    return SqliteStore(settings.sqlite)


def _sqlite(settings: Inspector, log: Logger) -> RecordSink:
    return RecordingStore(settings.sqlite, log)


def _audit_file(settings: Inspector, _: Logger) -> RecordSink:
    from gateway.recording.sinks.audit_file import AuditFile

    return AuditFile(settings.audit_file)


def _opensearch(settings: Inspector, log: Logger) -> RecordSink:
    from gateway.recording.sinks.opensearch import OpenSearchSink

    return OpenSearchSink(settings.opensearch, log)


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
    if not settings.opensearch.url:
        yield ConfigProblem("inspector.opensearch.url", "is needed for the store opensearch")
    yield from check_account("inspector.opensearch", settings.opensearch)


SINKS: dict[str, Entry] = {
    "sqlite": Entry(_sqlite, _check_sqlite),
    "audit_file": Entry(_audit_file, _check_audit_file),
    "opensearch": Entry(_opensearch, _check_opensearch),
}
"""Every store. Its name is also that of its section in the settings."""


_PASSED = (Intent.PASSTHROUGH.value, Intent.WRITE.value, Intent.READ_MEMORY.value)


def open_telemetry(settings: Settings) -> list[RecordSink]:
    """Return the sinks that are switched on, traces last. `close` them."""
    sinks: list[RecordSink] = []
    if settings.logs.access != "off":
        from gateway.recording.sinks.access_log import AccessLog

        sinks.append(AccessLog(settings.logs.access, settings.logs.access_file))
    if settings.telemetry.traces.endpoint:
        from gateway.recording.sinks.traces import TraceSink

        sinks.append(TraceSink(settings.telemetry.traces))
    return sinks


def check_telemetry(settings: Settings) -> list[ConfigProblem]:
    """Return what is wrong with the files of the access log and of the collector. Looks at files."""
    problems = _check_access_file(settings.logs.access_file) if settings.logs.access != "off" else []
    traces = settings.telemetry.traces
    if traces.endpoint and traces.ca_file and not os.access(traces.ca_file, os.R_OK):
        problems.append(ConfigProblem("telemetry.traces.ca_file", "can't be read", repr(traces.ca_file)))
    return problems


def _check_access_file(given: str) -> list[ConfigProblem]:
    if not given:
        return []
    path = Path(given)
    reason = "" if path.parent.is_dir() else f"{path.parent} is not a directory"
    if not reason and path.is_dir():
        reason = "it is a directory"
    if not reason and not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "it is not writable"
    return [ConfigProblem("logs.access_file", f"can't be used: {reason}", repr(given))] if reason else []


class RunsOnly:
    """A sink without the requests that pass unchanged, which are recorded for the access log."""

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self.name = sink.name
        self.keep_medium = sink.keep_medium
        self.note_losses = sink.note_losses
        self.close = sink.close

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Store the others.

        Raises:
            StoreError: as the sink.
        """
        read = [record for record in records if record.intent not in _PASSED]
        if read:
            self._sink.add(read)


OpenSinks = Callable[[Inspector, Logger], Sequence[RecordSink]]


def open_all_sinks(settings: Settings, log: Logger, open_stores: OpenSinks = open_sinks) -> list[RecordSink]:
    """Open the sinks: the inspector's first, so that they are closed before a collector is waited for.

    Raises:
        StoreError: one can't be opened.
    """
    stores = open_stores(settings.inspector, log) if settings.inspector.enabled else ()
    if settings.inspector.passthrough == "none":
        stores = [RunsOnly(store) for store in stores]
    return [*stores, *open_telemetry(settings)]

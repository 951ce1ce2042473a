"""All sinks of records that the settings switch on. Modules of the access log and of traces are imported if used."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.config.inspector import Inspector
from gateway.config.problems import ConfigProblem
from gateway.config.schema import Settings
from gateway.inspector.store import RecordSink
from gateway.inspector.stores.registry import open_sinks
from gateway.observe.logs import Logger
from gateway.observe.record import ExchangeRecord
from gateway.proxy.routes import Intent

_PASSED = (Intent.PASSTHROUGH.value, Intent.WRITE.value, Intent.READ_MEMORY.value)


def open_telemetry(settings: Settings) -> list[RecordSink]:
    """Return the sinks that are switched on, traces last. `close` them."""
    sinks: list[RecordSink] = []
    if settings.logs.access != "off":
        from gateway.inspector.access_log import AccessLog

        sinks.append(AccessLog(settings.logs.access, settings.logs.access_file))
    if settings.telemetry.traces.endpoint:
        from gateway.inspector.traces import TraceSink

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

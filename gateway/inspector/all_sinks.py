"""All sinks of records that the settings switch on: the inspector's stores, the access log, traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.config.inspector import Inspector
from gateway.config.schema import Settings
from gateway.inspector.store import RecordSink
from gateway.inspector.stores.registry import open_sinks
from gateway.inspector.telemetry import RunsOnly, open_telemetry
from gateway.observe.logs import Logger

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

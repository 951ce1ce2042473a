"""The sinks of records, by the settings."""

from __future__ import annotations

from gateway.config.schema import Settings
from gateway.inspector.store import RecordSink
from gateway.observe.logs import Logger


def open_sinks(settings: Settings, log: Logger) -> list[RecordSink]:
    """Open the sinks. Blocks on files."""
    return []

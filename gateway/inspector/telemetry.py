"""The sinks of records that are not the inspector's: the access log and traces. Their modules are imported if used."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.schema import Settings
from gateway.inspector.store import RecordSink
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

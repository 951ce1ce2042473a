"""The recorder as the settings ask for it: made, and stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.config.schema import Settings
from gateway.inspector.recorder import Recorder
from gateway.inspector.store import RecordSink
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics

GRACE = 5.0
"""Seconds in which the exchanges that wait are recorded when the gateway stops."""
OpenSinks = Callable[[Settings, Logger], Sequence[RecordSink]]


def make_recorder(settings: Settings, open_sinks: OpenSinks, log: Logger, metrics: Metrics) -> Recorder | None:
    """Make the recorder, not started; None if exchanges are not recorded.

    Raises:
        ConfigError: a setting of the redaction can't be used.
    """
    if not settings.inspector.enabled:
        return None
    return Recorder(settings.inspector, lambda: open_sinks(settings, log), log, metrics)


async def stop_recorder(recorder: Recorder | None) -> None:
    """Record what waits, within `GRACE` seconds."""
    if recorder is not None:
        await recorder.stop(GRACE)

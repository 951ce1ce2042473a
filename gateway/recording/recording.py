"""What is recorded under one set of settings: the recorder, its sinks, the store that the page reads."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from gateway.config.inspector import Inspector
from gateway.config.schema import Settings
from gateway.execute.run_events import recorded_usage
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.observe.record import Delivery, Scheme, Usage
from gateway.policy.usage import Prices
from gateway.recording.recorder import Recorder
from gateway.recording.records import ReadUsage
from gateway.recording.sinks.registry import OpenSinks, open_all_sinks, open_sinks, open_store

_GRACE = 5.0
"""Seconds for what is still to be recorded when recording stops."""


class Recording:
    """Records, or does not.

    recorder: None if neither the inspector nor traces nor the access log are on. store: what the page reads, if
    anything. sinks: opens the inspector's; by default, the settings' stores. They are used in a thread.
    """

    def __init__(self, settings: Settings, log: Logger, metrics: Metrics, sinks: OpenSinks | None = None) -> None:
        self._settings = settings
        self.recorder: Recorder | None = None
        inspector, traces = settings.inspector, settings.telemetry.traces
        others = inspector.enabled or settings.logs.access != "off"
        if others or traces.endpoint:
            bodies, traced_only = inspector.enabled or traces.messages, not others
            scheme: Scheme = "https" if settings.listen.tls.cert_file else "http"
            self.recorder = Recorder(
                recorded(settings),
                lambda: open_all_sinks(settings, log, sinks or open_sinks),
                log,
                metrics,
                usage_reader(settings),
                bodies=bodies,
                traced_only=traced_only,
                scheme=scheme,
            )
        self.store = open_store(inspector)

    def is_for(self, settings: Settings) -> bool:
        """Return True if the recording need not change for `settings`."""
        return _parts(settings) == _parts(self._settings)

    async def start(self) -> None:
        """Open the sinks.

        Raises:
            StoreError: one can't be opened.
        """
        if self.recorder is not None:
            await self.recorder.start()

    async def stop(self) -> None:
        """Record what is left, and close."""
        try:
            if self.recorder is not None:
                await self.recorder.stop(_GRACE)
        finally:
            if self.store is not None:
                await asyncio.to_thread(self.store.close)


def recorded(settings: Settings) -> Inspector:
    """Return the inspector's settings as the recorder needs them for all sinks."""
    inspector, has_access_log = settings.inspector, settings.logs.access != "off"
    passthrough = inspector.passthrough if inspector.enabled else "none"
    if has_access_log and passthrough == "none":
        passthrough = "line"
    return replace(inspector, passthrough=passthrough, media=inspector.media if inspector.enabled else "hash")


def _parts(settings: Settings) -> tuple[object, ...]:
    logs = settings.logs
    return settings.inspector, settings.telemetry, settings.policy.prices, logs.access, logs.access_file


def usage_reader(settings: Settings) -> ReadUsage:
    """Return what reads the usage, with the prices of the settings."""
    prices = Prices(settings.policy.prices)

    def read(delivery: Delivery, content: bytes, streaming: bool) -> Usage | None:
        return recorded_usage(delivery, content, streaming, prices)

    return read

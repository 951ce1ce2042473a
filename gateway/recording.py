"""What is recorded under one set of settings: the recorder, its sinks, the store that the page reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from gateway.config.inspector import Inspector
from gateway.config.schema import Settings
from gateway.execute.run_usage import recorded_usage
from gateway.inspector.recorder import Recorder
from gateway.inspector.store import RecordSink
from gateway.inspector.stores.registry import open_sinks, open_store
from gateway.inspector.telemetry import RunsOnly, open_telemetry
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.observe.record import Delivery, Usage
from gateway.policy.prices import Prices

OpenSinks = Callable[[Inspector, Logger], Sequence[RecordSink]]

_GRACE = 5.0
"""Seconds for what is still to be recorded when recording stops."""


class Recording:
    """Records, or does not.

    recorder: None if neither the inspector nor traces nor the access log are on. store: what the page reads, if
    anything. sinks: opens the inspector's.
    """

    def __init__(self, settings: Settings, log: Logger, metrics: Metrics, sinks: OpenSinks = open_sinks) -> None:
        self._settings = settings
        self._log = log
        self._open_sinks = sinks
        self._prices = Prices(settings.policy.prices)
        self.recorder: Recorder | None = None
        inspector, traces = settings.inspector, settings.telemetry.traces
        others = inspector.enabled or settings.logs.access != "off"
        if others or traces.endpoint:
            self.recorder = Recorder(
                recorded(settings),
                self._open,
                log,
                metrics,
                self._read_usage,
                bodies=inspector.enabled or traces.messages,
                traced_only=not others,
                scheme="https" if settings.listen.tls.cert_file else "http",
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

    def _read_usage(self, delivery: Delivery, content: bytes, streaming: bool) -> Usage | None:
        return recorded_usage(delivery, content, streaming, self._prices)

    def _open(self) -> list[RecordSink]:
        """Open the sinks: the inspector's first, so that they are closed before a collector is waited for."""
        settings = self._settings
        stores = self._open_sinks(settings.inspector, self._log) if settings.inspector.enabled else ()
        if settings.inspector.passthrough == "none":
            stores = [RunsOnly(store) for store in stores]
        return [*stores, *open_telemetry(settings)]


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

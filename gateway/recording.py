"""The recording of exchanges under one set of settings: the recorder, its sinks, the store that the page reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.config.inspector import Inspector
from gateway.inspector.recorder import Recorder
from gateway.inspector.store import RecordSink
from gateway.inspector.stores.registry import open_sinks, open_store
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics

OpenSinks = Callable[[Inspector, Logger], Sequence[RecordSink]]

_GRACE = 5.0
"""Seconds for what is still to be recorded when recording stops."""


class Recording:
    """Records, or does not. recorder: None if exchanges are not recorded. store: what the page reads, if anything."""

    def __init__(self, settings: Inspector, log: Logger, metrics: Metrics, sinks: OpenSinks = open_sinks) -> None:
        self.recorder = Recorder(settings, lambda: sinks(settings, log), log, metrics) if settings.enabled else None
        self.store = open_store(settings)

    async def start(self) -> None:
        """Open the sinks.

        Raises:
            StoreError: one can't be opened.
        """
        if self.recorder is not None:
            await self.recorder.start()

    async def stop(self) -> None:
        """Record what is left, and close."""
        if self.recorder is not None:
            await self.recorder.stop(_GRACE)
        if self.store is not None:
            await asyncio.to_thread(self.store.close)

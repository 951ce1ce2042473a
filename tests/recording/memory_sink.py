"""Sinks of records for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gateway.observe.record import ExchangeRecord
from gateway.recording.store import Loss
from tests.wire import PATIENCE


class MemorySink:
    """Keeps records and media in memory. fails: called before records are taken, to raise or to wait."""

    name = "memory"

    def __init__(self, fails: Callable[[], None] = lambda: None) -> None:
        self.records: list[ExchangeRecord] = []
        self.media: dict[str, tuple[str, bytes]] = {}
        self.losses: list[Loss] = []
        self.is_closed = False
        self._fails = fails
        self._changed = threading.Condition()

    def __call__(self, *_: Any) -> list[MemorySink]:
        """Open the sinks: this one."""
        return [self]

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        self._fails()
        with self._changed:
            self.records += records
            self._changed.notify_all()

    def keep_medium(self, sha256: str, media_type: str, data: bytes) -> None:
        self.media[sha256] = (media_type, data)

    def note_losses(self, losses: Sequence[Loss]) -> None:
        with self._changed:
            self.losses += losses
            self._changed.notify_all()

    def close(self) -> None:
        self.is_closed = True

    async def wait_for(self, count: int = 1) -> list[ExchangeRecord]:
        """Return the records once there are `count`."""

        def wait() -> None:
            with self._changed:
                assert self._changed.wait_for(lambda: len(self.records) >= count, PATIENCE), self.records

        await asyncio.to_thread(wait)
        return self.records

    def text(self) -> str:
        """Return all that is kept, as JSON."""
        return msgspec.json.encode(self.records).decode()

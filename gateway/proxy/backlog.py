"""Shares the event loop among connections with much buffered input: each is read a little per turn of the loop."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Protocol

SLICE = 0.001
"""Seconds that the backlog may take in one turn of the loop."""


class Resumable(Protocol):
    """A connection."""

    def continue_reading(self) -> None:
        """Do a bounded amount of work, and add itself again if there is more."""

    def break_off(self) -> None:
        """End after the exception that is being handled."""


class Backlog:
    """Calls its connections in order, each at most once per turn of the loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Resumable, None] = OrderedDict()
        self._scheduled = False

    def add(self, connection: Resumable) -> None:
        """Queue `connection`. If it is queued already, its position does not change."""
        self._waiting[connection] = None
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        until = time.monotonic() + SLICE
        for _ in range(len(self._waiting)):
            connection = self._waiting.popitem(last=False)[0]
            try:
                connection.continue_reading()
            except Exception:  # it must not stop the others
                connection.break_off()
            if time.monotonic() >= until:
                break
        self._scheduled = False
        self._schedule()

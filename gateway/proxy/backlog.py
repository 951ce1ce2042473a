"""Connections whose client sent more than is read in one go: they take turns, a little in each turn of the loop."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Protocol

SLICE = 0.001
"""Seconds of one turn of the loop that the backlog may take."""


class Resumable(Protocol):
    """A connection."""

    def go_on(self) -> None:
        """Do a bounded piece of work; it adds itself again if there is more."""


class Backlog:
    """Calls the connections in it one after the other, at most once each in a turn of the loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Resumable, None] = OrderedDict()
        self._scheduled = False

    def add(self, connection: Resumable) -> None:
        """Let `connection` go on when it is its turn; one that waits already keeps its turn."""
        self._waiting[connection] = None
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        until = time.monotonic() + SLICE
        for _ in range(len(self._waiting)):
            self._waiting.popitem(last=False)[0].go_on()
            if time.monotonic() >= until:
                break
        self._scheduled = False
        self._schedule()

"""Whether clients that are not being read from are still there: the loop, which reads nothing, does not say."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable
from typing import Protocol

PERIOD = 0.4
"""Seconds between two looks: a client that has gone is noticed within a second."""

_LEFT = getattr(select, "POLLRDHUP", 0)
"""It sends no more; only Linux tells that apart from bytes that wait to be read."""


class Pollable(Protocol):
    """A connection."""

    def held_back(self) -> int:
        """The descriptor of its socket while it is not being read from, else -1."""

    def peer_gone(self, cut: bool) -> None:
        """The client has gone. cut: by a reset, and not by an end that may still have bytes before it."""


class DisconnectPoller:
    """Looks after `guests` every so often, all of those that are held back with one call of the system's."""

    def __init__(self, guests: Iterable[Pollable]) -> None:
        self._guests = guests
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._timer = asyncio.get_running_loop().call_later(PERIOD, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        waiting = {number: guest for guest in self._guests if (number := guest.held_back()) >= 0}
        if waiting:
            poll = select.poll()
            for number in waiting:
                poll.register(number, _LEFT)
            for number, events in poll.poll(0):
                waiting[number].peer_gone(bool(events & select.POLLERR))
        if self._timer is not None:
            self.start()

"""Detects disconnected clients while their transport is paused. asyncio reports EOF only when it reads."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable
from typing import Protocol

PERIOD = 0.4
"""Seconds between two polls: a disconnect is noticed within a second."""

_HANGUP = getattr(select, "POLLRDHUP", 0)
"""The peer has shut down its sending side. Only Linux reports that separately from unread bytes."""


class Pollable(Protocol):
    """A connection."""

    def paused_descriptor(self) -> int:
        """Return the descriptor of the socket if the transport is paused, else -1."""

    def peer_gone(self, cut: bool) -> None:
        """Handle the disconnect. cut: by a reset. Otherwise there may be unread bytes before the end."""


class DisconnectPoller:
    """Polls all paused `connections` with one system call, every `PERIOD` seconds."""

    def __init__(self, connections: Iterable[Pollable]) -> None:
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to poll."""
        self._timer = asyncio.get_running_loop().call_later(PERIOD, self._poll)

    def stop(self) -> None:
        """Stop polling."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        self.start()
        paused = {
            number: connection for connection in self._connections if (number := connection.paused_descriptor()) >= 0
        }
        if paused:
            poll = select.poll()
            for number in paused:
                poll.register(number, _HANGUP)
            for number, events in poll.poll(0):
                paused[number].peer_gone(bool(events & select.POLLERR))

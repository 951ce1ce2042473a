"""The open connections and running exchanges of a data port, from its start to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.config.schema import ClientTimeouts
from gateway.proxy.disconnects import DisconnectPoller
from gateway.upstream.deadlines import DeadlineTimer

if TYPE_CHECKING:
    from gateway.proxy.client_connection import ClientConnection
    from gateway.proxy.data_port import DataPort


class Lifecycle:
    """Knows when a data port may end. connections: all that are open. running: exchanges that are not finished.

    draining: each response asks its client to close the connection.
    """

    def __init__(self, timeouts: ClientTimeouts) -> None:
        self.connections: set[ClientConnection] = set()
        self.draining = False
        self.running = 0
        self._idle = asyncio.Event()
        seconds = (timeouts.head, timeouts.body, timeouts.send, timeouts.keepalive)
        self._timer = DeadlineTimer(self.connections, seconds)
        self._poller = DisconnectPoller(self.connections)

    def start(self) -> None:
        """Start the timer of the deadlines and the detection of disconnected clients."""
        self._timer.start()
        self._poller.start()

    def exchange_finished(self) -> None:
        """Count one exchange less."""
        self.running -= 1
        if not self.running:
            self._idle.set()

    async def ended(self) -> None:
        """Wait until no exchange is running."""
        while self.running:
            self._idle.clear()
            await self._idle.wait()

    def hand_over(self, successor: DataPort) -> None:
        """Give all connections to `successor`; the exchanges that run on them finish here."""
        successor.lifecycle.connections |= self.connections
        for connection in self.connections:
            connection.port = successor
        self.connections.clear()
        self.stop()

    def stop(self) -> None:
        """Cut the connections that are left."""
        self._timer.stop()
        self._poller.stop()
        for connection in list(self.connections):
            connection.cut_off()

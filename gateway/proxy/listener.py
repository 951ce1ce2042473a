"""The listening sockets of the data port: they open, change their settings, drain and close."""

from __future__ import annotations

import asyncio
import ssl
import time

from gateway.observe.logs import Logger
from gateway.proxy.acceptor import Acceptor, bind
from gateway.proxy.client_connection import ClientConnection
from gateway.proxy.data_port import DataPort
from gateway.proxy.lifecycle import close_idle

_LAST_CALL = 0.25
"""Seconds that idle connections stay open when the port stops: a request on its way on one is still served."""


class DataListener:
    """The listening sockets of a data port.

    grace: seconds that requests in flight have to finish when it stops. tls: None for plain HTTP. shared: other
    processes listen on the same port.
    """

    def __init__(
        self,
        data_port: DataPort,
        host: str,
        port: int,
        log: Logger,
        grace: float,
        tls: ssl.SSLContext | None = None,
        shared: bool = False,
    ) -> None:
        self._data_port = data_port
        self._host = host
        self._port = port
        self._log = log
        self._tls = tls
        self._shared = shared
        self._stop_now = False
        self.grace = grace
        self.port = 0

    async def start(self) -> None:
        """Bind and listen; `port` is the bound port after that.

        Raises:
            OSError: the port cannot be bound.
        """
        sockets = await bind(self._host, self._port, shared=self._shared)
        self._data_port.lifecycle.start()
        self._acceptor = Acceptor(sockets, lambda: ClientConnection(self._data_port), self._tls)
        await self._acceptor.open()
        self.port = self._acceptor.port
        self._log.info("listening", address=f"{self._host}:{self.port}", serves="the cluster's API")

    def replace(self, data_port: DataPort, grace: float) -> None:
        """Use `data_port` from the next request on, on open connections too."""
        old, self._data_port = self._data_port, data_port
        self.grace = grace
        data_port.lifecycle.draining = old.lifecycle.draining
        data_port.lifecycle.start()
        old.lifecycle.hand_over(data_port, data_port.lifecycle)

    def drain(self) -> None:
        """Ask clients to close their connections: each response from now on says so."""
        self._data_port.lifecycle.draining = True

    def stop_now(self) -> int:
        """Make `stop` wait for nothing, even if it waits already. Return the number of connections that this cuts."""
        self._stop_now = True
        return len(self._data_port.lifecycle.connections)

    async def stop(self, linger: float = _LAST_CALL) -> None:
        """Accept no more connections, let requests in flight finish within the grace period, then cut the rest.

        linger: seconds that idle connections stay open, so that a request on its way on one is still served.
        """
        self.drain()
        try:
            await self._acceptor.close()
            await self._empty(linger, time.monotonic() + self.grace)
        finally:
            self._acceptor.cut_handshakes()
            self._data_port.lifecycle.stop()
            await asyncio.sleep(0)

    async def _empty(self, linger: float, until: float) -> None:
        """Wait until no connection is left, at most until `until`.

        Connections that are idle, or become so, are closed after `linger` seconds, which begin with the end of the TLS
        handshake: the head of a response that began before the drain does not announce the end of its connection. So
        are those of clients that have not begun the TLS handshake by then.
        """
        connections = self._data_port.lifecycle.connections
        closes_at: dict[object, float] = {}
        silent_until = time.monotonic() + linger
        while (connections or self._acceptor.pending) and (now := time.monotonic()) < until and not self._stop_now:
            if now >= silent_until:
                self._acceptor.cut_silent()
            for connection in list(connections):
                if now >= closes_at.setdefault(connection, now + linger) and connection.idle:
                    close_idle(connection)
            await asyncio.sleep(0.005)

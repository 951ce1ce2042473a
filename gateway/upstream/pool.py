"""The connections to one node: kept while they are idle, never more than the limit."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable

from gateway.upstream.answers import Heads
from gateway.upstream.connection import Connection, Outbound
from gateway.upstream.nodes import Node

_BRIEF = 0.001


class Pool:
    """Connections to `node`. tls: None for plain HTTP. limit: most at a time. keepalive: seconds idle.

    everyone: takes part of the sweep. again: sends an outbound once more, see `Upstream`.
    """

    def __init__(
        self,
        node: Node,
        tls: ssl.SSLContext | None,
        limit: int,
        keepalive: float,
        heads: Heads,
        everyone: set[Connection],
        again: Callable[[Outbound, Node, bool], bool],
    ) -> None:
        self.node = node
        self._tls = tls
        self.again = again
        self._limit = limit
        self._keepalive = keepalive
        self._heads = heads
        self._everyone = everyone
        self._idle: list[Connection] = []
        self._open = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()

    def take(self) -> Connection | None:
        """An idle connection, the one used last, or None."""
        while self._idle:
            connection = self._idle.pop()
            # Bytes that nobody asked for, or the end, may have come since the loop last looked: looking again costs a
            # call of the system's, so it is done where there was time for it.
            idle = time.monotonic() - connection.deadline + self._keepalive
            if not connection.transport.is_closing() and (idle < _BRIEF or not connection.disturbed()):
                connection.reused = True
                return connection
            connection.transport.abort()
        return None

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose exchange is done, or hand it to who waits for one."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                connection.reused = True
                waiting.set_result(connection)
                return
        connection.deadline = time.monotonic() + self._keepalive
        self._idle.append(connection)

    def discard(self, connection: Connection) -> None:
        """A connection is gone: its place is free."""
        self._everyone.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._freed()

    def _freed(self) -> None:
        self._open -= 1
        self._tell()

    def _tell(self) -> None:
        """Wake whoever has waited longest for a place."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def open(self) -> Connection:
        """A connection: a new one, or where the limit is reached the next that is free.

        Raises:
            OSError: it can't be made.
        """
        while self._open >= self._limit:
            waiting: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                connection = await waiting
            except asyncio.CancelledError:
                if waiting.done() and not waiting.cancelled():  # what it was given is the next one's
                    if (given := waiting.result()) is not None:
                        self.give_back(given)
                    else:
                        self._tell()
                raise
            if connection is not None and not connection.transport.is_closing():
                return connection
        return await self._connect()

    async def _connect(self) -> Connection:
        self._open += 1
        node = self.node
        made: list[Connection] = []

        def make() -> Connection:
            made.append(Connection(self, self._heads))
            return made[-1]

        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                make, node.host, node.port, ssl=self._tls, server_hostname=node.host if self._tls else None
            )
        except BaseException:
            if not any(hasattr(each, "transport") for each in made):  # else `discard` has counted it, or will
                self._freed()
            raise
        self._everyone.add(connection)
        return connection

"""Listening sockets that close without losing a connection that a client believes to have made."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

BACKLOG = 1024
"""Connections the kernel holds until they are accepted."""

_MOST_AT_ONCE = 128
_HANDSHAKE = 1.0
"""Seconds that a door which closes waits for handshakes of TLS."""

UNIX = "unix:"

Factory = Callable[[], asyncio.BaseProtocol]


async def bind(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Sockets bound to every address of `host`, not listening yet.

    host: ``unix:`` and a path for a socket in the file system, where `port` means nothing.
    port: 0 takes a free one, the same for all addresses. shared: other processes may bind to it too, and the kernel
    spreads new connections over those that listen (SO_REUSEPORT).

    Raises:
        OSError: the host is unknown or the port is taken.
    """
    if host.startswith(UNIX):
        return [_bind_unix(host.removeprefix(UNIX))]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            bound.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port or bound[0].getsockname()[1], *address[2:]))
            port = one.getsockname()[1]
    except OSError:
        for one in bound:
            one.close()
        raise
    return bound


def _bind_unix(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)  # of a process that ended without cleaning up
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    one.bind(path)
    return one


class Acceptor:
    """Lets connections in from `sockets`, which it owns from now on."""

    def __init__(self, sockets: list[socket.socket], factory: Factory, tls: ssl.SSLContext | None) -> None:
        self._sockets = sockets
        self._factory = factory
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._entering: set[asyncio.Task[None]] = set()
        self._local = sockets[0].family == socket.AF_UNIX
        self.port: int = 0 if self._local else sockets[0].getsockname()[1]

    async def open(self) -> None:
        """Listen. Raises OSError: another process listens there."""
        loop = asyncio.get_running_loop()
        try:
            for one in self._sockets:
                listen = loop.create_unix_server if self._local else loop.create_server
                self._servers.append(await listen(self._accepted, sock=one.dup(), ssl=self._tls, backlog=BACKLOG))
        except OSError:
            await self.close()
            raise

    def _accepted(self) -> asyncio.BaseProtocol:
        """For a connection that the loop let in; who waits behind it is let in as well.

        uvloop accepts one connection a turn (libuv, pull request 3696), and under load a turn is as long as all that is
        done in it: a crowd would wait for as many turns as it has heads.
        """
        self._let_in(_MOST_AT_ONCE)
        return self._factory()

    def _let_in(self, most: int) -> None:
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            with contextlib.suppress(OSError):  # nobody waits any more, or this one never listened
                for _ in range(most):
                    connection = one.accept()[0]
                    connection.setblocking(False)
                    task = loop.create_task(self._enter(connection))
                    self._entering.add(task)
                    task.add_done_callback(self._entering.discard)

    async def _enter(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a handshake that fails is the client's affair
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(self._factory, connection, ssl=self._tls)

    async def close(self) -> None:
        """Let in who waits already, and nobody else."""
        for server in self._servers:
            server.close()
        self._let_in(BACKLOG)
        for one in self._sockets:
            one.close()
        if self._entering:
            _, late = await asyncio.wait(self._entering, timeout=_HANDSHAKE)
            for task in late:
                task.cancel()

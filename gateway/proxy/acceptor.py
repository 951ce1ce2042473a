"""Listening sockets that can be closed without losing a connection that the kernel has already accepted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""

_MOST_AT_ONCE = 128
_PAUSE = 1.0
"""Seconds until connections are accepted again after the process or the system had no descriptor or memory for one."""
_SILENCE = 60.0
"""Seconds that a client has to begin its TLS handshake, and again as many to complete it (asyncio's default)."""

UNIX = "unix:"

Factory = Callable[[], asyncio.BaseProtocol]


async def bind(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Bind a socket to every address of `host`, without listening.

    host: ``unix:`` and a path for a socket in the file system; `port` is ignored then. port: 0 takes a free port, the
    same for all addresses. shared: other processes may bind to the port too, and the kernel distributes new
    connections among those that listen (SO_REUSEPORT).

    Raises:
        OSError: the host is unknown or the port is taken; its text names both.
    """
    if host.startswith(UNIX):
        return [_bind_unix(host.removeprefix(UNIX))]
    loop = asyncio.get_running_loop()
    bound: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
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
    except OSError as error:
        for one in bound:
            one.close()
        raise OSError(f"{host}:{port} can't be opened: {error.strerror}") from error
    return bound


def _bind_unix(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)  # left by a process that ended without removing it
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    one.bind(path)
    return one


class Acceptor:
    """Accepts connections from `sockets`, which it owns.

    With TLS it does without the loop's servers: those don't report the handshakes that are under way.
    """

    def __init__(self, sockets: list[socket.socket], factory: Factory, tls: ssl.SSLContext | None) -> None:
        self._sockets = sockets
        self._factory = factory
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._silent: set[asyncio.Task[None]] = set()  # those of `_handshakes` whose client has sent nothing
        self._local = sockets[0].family == socket.AF_UNIX
        self.port: int = 0 if self._local else sockets[0].getsockname()[1]

    async def open(self) -> None:
        """Listen.

        Raises:
            OSError: another process listens there.
        """
        loop = asyncio.get_running_loop()
        try:
            for one in self._sockets:
                if self._tls is not None:
                    one.listen(BACKLOG)
                    loop.add_reader(one, self._accept_ready, one)
                    continue
                listen = loop.create_unix_server if self._local else loop.create_server
                self._servers.append(await listen(self._on_accepted, sock=one.dup(), backlog=BACKLOG))
        except OSError:
            await self.close()
            raise

    @property
    def pending(self) -> int:
        """Number of connections that are accepted, and not set up yet: their TLS handshake is under way."""
        return len(self._handshakes)

    def _on_accepted(self) -> asyncio.BaseProtocol:
        """Make the protocol for a connection that the loop has accepted, and accept the others that are queued.

        uvloop accepts one connection per turn of the loop (libuv, pull request 3696). Under load a turn takes long, so
        many clients that connect together would wait for as many turns.
        """
        for one in self._sockets:
            self._accept(one, _MOST_AT_ONCE)
        return self._factory()

    def _accept(self, one: socket.socket, most: int) -> None:
        with contextlib.suppress(OSError):  # the queue is empty, or the socket never listened
            self._accept_from(one, most)

    def _accept_ready(self, one: socket.socket) -> None:
        try:
            self._accept_from(one, _MOST_AT_ONCE)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass
        except OSError:  # no descriptor or memory is left
            loop = asyncio.get_running_loop()
            loop.remove_reader(one)
            loop.call_later(_PAUSE, self._resume, one)

    def _resume(self, one: socket.socket) -> None:
        if one.fileno() >= 0:
            asyncio.get_running_loop().add_reader(one, self._accept_ready, one)

    def _accept_from(self, one: socket.socket, most: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(most):
            connection = one.accept()[0]
            connection.setblocking(False)
            task = loop.create_task(self._connect(connection))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _connect(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a failed handshake concerns only its client
            if self._tls is not None:
                await self._handshake_begun(connection)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(self._factory, connection, ssl=self._tls)

    async def _handshake_begun(self, connection: socket.socket) -> None:
        """Wait until the client has sent something: in TLS, the client begins. Close the connection if it does not.

        Raises:
            TimeoutError: nothing was received in time.
        """
        loop, received = asyncio.get_running_loop(), asyncio.Event()
        task = asyncio.current_task()
        assert task is not None
        self._silent.add(task)
        loop.add_reader(connection, received.set)
        try:
            async with asyncio.timeout(_SILENCE):
                await received.wait()
        except BaseException:
            loop.remove_reader(connection)
            connection.close()
            raise
        finally:
            self._silent.discard(task)
        loop.remove_reader(connection)

    async def close(self) -> None:
        """Accept the connections that are queued already, and no others. Handshakes continue; see `pending`.

        One that the kernel queues between the last accept of a socket and its end is reset; nothing is done in between.
        """
        for server in self._servers:
            server.close()
        while self._sockets:
            one = self._sockets.pop()
            if self._tls is not None:
                asyncio.get_running_loop().remove_reader(one)
            self._accept(one, 2 * BACKLOG)  # others may be queued meanwhile
            one.close()
        if self._tls is None and self._handshakes:
            await asyncio.wait(self._handshakes)

    def cut_silent(self) -> None:
        """Cut the connections whose client has not begun the TLS handshake."""
        for task in self._silent:
            task.cancel()

    def cut_handshakes(self) -> None:
        """Cut the connections whose handshake is not complete."""
        for task in self._handshakes:
            task.cancel()

"""The attacker's connections to the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field

_RESET = struct.pack("ii", 1, 0)
_BIND_LATE = getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24)
_ADDRESSES = itertools.cycle(f"127.0.0.{number}" for number in range(2, 252))
"""Where connections come from: one address alone would run out of ports while closed ones are in TIME_WAIT."""


def get(path: str, *lines: str) -> bytes:
    """A GET request."""
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: gateway", *lines, "", "")).encode()


def post(path: str, body: bytes = b"", *lines: str, length: int | None = None) -> bytes:
    """A POST of JSON. length: what its Content-Length says, where that is not the body's."""
    size = len(body) if length is None else length
    head = (f"POST {path} HTTP/1.1", "Host: gateway", "Content-Type: application/json", f"Content-Length: {size}")
    return "\r\n".join((*head, *lines, "", "")).encode() + body


def post_chunked(path: str, *lines: str) -> bytes:
    """The head of a POST in chunks."""
    head = (f"POST {path} HTTP/1.1", "Host: gateway", "Content-Type: application/json", "Transfer-Encoding: chunked")
    return "\r\n".join((*head, *lines, "", "")).encode()


class Peer:
    """One connection of the attacker's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send, at the gateway's speed."""
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Read an answer whole, interim ones left out; its status, 0 where it ended too early."""
        try:
            status, _ = await self.answer()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            return 0
        return status

    async def answer(self) -> tuple[int, int]:
        """Read an answer whole; its status and the size of its body."""
        status, length = 100, 0
        while status < 200:
            status, length = await self.head()
            if status == 101:
                return status, 0
        left = length
        while left:
            piece = await self.reader.read(min(left, 1 << 18))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
        return status, length

    async def head(self) -> tuple[int, int]:
        """Read an answer's head; its status and its Content-Length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return int(head[9:12]), length

    def leave(self, reset: bool = False) -> None:
        """Close at once: with FIN, or with RST."""
        transport = self.writer.transport
        if reset:
            with contextlib.suppress(OSError, AttributeError):
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()

    def end(self) -> None:
        """Send no more, but still read."""
        with contextlib.suppress(OSError, NotImplementedError):
            self.writer.write_eof()


@dataclass
class Target:
    """The gateway under attack. seen: the statuses of answers to the attacker, 0 for an answer that broke off.

    scale: 1 for the whole attack, less for a smaller one. terminate: sends SIGTERM to the gateway. prepared: what
    attacks keep from one round to the next. faults: what an attack found wrong by itself. cpu: seconds that the
    gateway has used.
    """

    port: int
    tls: ssl.SSLContext | None = None
    scale: float = 1.0
    terminate: Callable[[], None] = lambda: None
    cpu: Callable[[], float] = lambda: 0.0
    seen: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    prepared: dict[object, bytes] = field(default_factory=dict)
    rounds: int = 0
    _open: set[Peer] = field(default_factory=set)

    def some(self, count: int) -> int:
        """So many, or fewer in a smaller run."""
        return max(2, round(count * self.scale))

    async def connect(self, window: int = 0) -> Peer:
        """A connection from an address of its own. window: bytes of its receive buffer, 0 for the system's."""
        sock = await self.socket(window)
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=self.tls, server_hostname="127.0.0.1" if self.tls else None, limit=1 << 18
        )
        return Peer(reader, writer)

    async def socket(self, window: int = 0) -> socket.socket:
        """A plain connected socket from an address of its own."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, _BIND_LATE, 1)
        if window:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        try:
            sock.bind((next(_ADDRESSES), 0))
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except BaseException:
            sock.close()
            raise
        return sock

    @contextlib.asynccontextmanager
    async def peer(self, *, reset: bool = False, window: int = 0) -> AsyncIterator[Peer]:
        """A connection that is closed at once at the end of the block; refusals in between are no fault."""
        peer = await self.connect(window)
        self._open.add(peer)
        try:
            with contextlib.suppress(ConnectionError, BrokenPipeError, asyncio.IncompleteReadError):
                yield peer
        finally:
            self._open.discard(peer)
            peer.leave(reset)

    async def ask(self, *pieces: bytes) -> int:
        """Send a request on a connection of its own and read the answer, even one that comes before all is sent."""
        status = 0
        async with self.peer() as peer:
            reading = asyncio.ensure_future(peer.status())
            try:
                for piece in pieces:
                    if reading.done():
                        break
                    with contextlib.suppress(ConnectionError):
                        await peer.send(piece)
                status = await reading
            finally:
                reading.cancel()
        self.seen[status] += 1
        return status

    async def burst(self, one: Callable[[int], Awaitable[object]], count: int, seconds: float = 0.0) -> None:
        """Run `one` `count` times side by side, started evenly over some seconds."""
        loop = asyncio.get_running_loop()
        start, tasks = loop.time(), set()
        try:
            for number in range(count):
                ahead = start + number * seconds / count - loop.time()
                if ahead > 0.002 or number % 8 == 0:
                    await asyncio.sleep(max(0.0, ahead))
                tasks.add(asyncio.ensure_future(one(number)))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def at_rate(self, peer: Peer, pieces: Iterable[bytes], each: float) -> None:
        """Send a piece every so many seconds, several at once where they are shorter than the clock's ticks."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        for number, piece in enumerate(pieces):
            ahead = start + number * each - loop.time()
            if ahead > 0.002:
                await asyncio.sleep(ahead)
            await peer.send(piece)

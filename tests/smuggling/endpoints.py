"""Both ends of a hostile exchange: a client and an upstream that count every byte and never wait politely."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.wire import OK, PATIENCE, Parsed, RecordingUpstream, read_message

Feed = Callable[[socket.socket, bytes], Awaitable[None]]


async def whole(sock: socket.socket, raw: bytes) -> None:
    """All bytes at once."""
    await asyncio.get_running_loop().sock_sendall(sock, raw)


async def byte_by_byte(sock: socket.socket, raw: bytes) -> None:
    """One byte at a time, each in a segment of its own that the other end can read before the next."""
    loop = asyncio.get_running_loop()
    for index in range(len(raw)):
        await loop.sock_sendall(sock, raw[index : index + 1])
        await asyncio.sleep(0)
        await asyncio.sleep(0)


FEEDS: dict[str, Feed] = {"whole": whole, "byte by byte": byte_by_byte}


async def converse(
    port: int, raw: bytes, feed: Feed, enough: Callable[[bytes], bool] = lambda came: False
) -> tuple[bytes, bool]:
    """Everything that came back, and whether the other end closed the connection (within `PATIENCE`).

    enough: where the other end keeps the connection, says of what came that it is all.

    Plain sockets, since a transport of asyncio gives up reading when a write fails, and so loses an answer that
    was sent before the connection was closed.
    """
    loop = asyncio.get_running_loop()
    came = bytearray()

    async def receive() -> None:
        with suppress(ConnectionError):
            while not enough(bytes(came)) and (data := await loop.sock_recv(sock, 65536)):
                came.extend(data)

    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        receiving = asyncio.create_task(receive())
        with suppress(ConnectionError):
            await feed(sock, raw)
        done, _ = await asyncio.wait([receiving], timeout=PATIENCE)
        receiving.cancel()
        with suppress(asyncio.CancelledError):
            await receiving
    return bytes(came), bool(done)


async def answers_in(came: bytes, *, bodyless: bool = False) -> list[Parsed]:
    """The answers in what a client received, each whole.

    Raises:
        asyncio.IncompleteReadError: the last one breaks off.
    """
    reader = asyncio.StreamReader()
    reader.feed_data(came)
    reader.feed_eof()
    answers = []
    while not reader.at_eof():
        answers.append(await read_message(reader, bodyless=bodyless, to_end=True))
    return answers


@dataclass
class Witness:
    """What an upstream saw: every byte, and the requests that were complete; `RecordingUpstream(script=witness)`."""

    seen: bytearray = field(default_factory=bytearray)
    requests: list[Parsed] = field(default_factory=list)
    open: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(
        self, upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.open += 1
        self.idle.clear()
        copy = asyncio.StreamReader()
        answering = asyncio.create_task(self._answer(copy, writer))
        try:
            with suppress(ConnectionError):
                while data := await reader.read(65536):
                    self.seen += data
                    copy.feed_data(data)
            copy.feed_eof()
            await answering
        finally:
            answering.cancel()
            self.open -= 1
            if not self.open:
                self.idle.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.requests.append(await read_message(reader))
                writer.write(OK)

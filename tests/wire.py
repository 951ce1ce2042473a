"""Both ends of a conversation as raw bytes: an upstream that records and answers, and a client that just sends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

PATIENCE = 60
"""Seconds after which a test gives up: far more than what it waits for takes, on a loaded machine, too."""

HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade"}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True)
class Parsed:
    """A message taken apart by hand: its first line, its headers as they stood, its body without chunks."""

    line: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def end_to_end(self) -> Parsed:
        end_to_end = tuple(pair for pair in self.headers if pair[0].lower() not in HOP_BY_HOP)
        return Parsed(self.line, end_to_end, self.body)

    def values(self, name: str) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower().encode()]


async def read_message(reader: asyncio.StreamReader, *, bodyless: bool = False, to_end: bool = False) -> Parsed:
    """The next message. to_end: one without a length goes on until the connection ends."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, *lines = head[:-4].split(b"\r\n")
    headers = tuple((name, value.strip(b" \t")) for name, _, value in (item.partition(b":") for item in lines))
    found = {name.lower(): value for name, value in headers}
    if bodyless:
        body = b""
    elif found.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = await _chunks(reader)
    elif b"content-length" in found:
        body = await reader.readexactly(int(found[b"content-length"]))
    else:
        body = await reader.read() if to_end else b""
    return Parsed(line, headers, body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return body


@contextlib.contextmanager
def reserved(port: int = 0) -> Iterator[int]:
    """A port that refuses connections, and that the kernel gives to nobody; a server that names it may listen there."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        yield sock.getsockname()[1]


async def refuses_connections(port: int) -> None:
    """Wait until nothing listens on the port any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return
        except ConnectionResetError:  # it was in the kernel's queue when the listener closed
            continue
        writer.close()


def undelivered(transport: asyncio.BaseTransport) -> int:
    """Bytes that were written and that the other end's kernel does not have yet."""
    sock = transport.get_extra_info("socket")
    queued = int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return queued + transport.get_write_buffer_size()  # type: ignore[attr-defined]


async def delivered(transport: asyncio.BaseTransport) -> None:
    """Wait until an end that runs in this loop has read what was written, so that what follows is read apart."""
    while not transport.is_closing() and undelivered(transport):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    for _ in range(5):  # turns of the loop, each of which reads what is there
        await asyncio.sleep(0)


Script = Callable[["RecordingUpstream", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RecordingUpstream:
    """A cluster that records every request and answers with the next of `answers`, the last one for ever.

    script: takes over the whole connection instead.
    """

    answers: Sequence[bytes] = (OK,)
    script: Script | None = None
    requests: list[Parsed] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> RecordingUpstream:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._open: set[asyncio.StreamWriter] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def record(self, request: Parsed) -> None:
        """Record a client's request: not the one by which a gateway, when it starts, looks for the cluster's scheme."""
        if request.line != b"HEAD / HTTP/1.1" or request.values("Connection") != [b"close"]:
            self.requests.append(request)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            if self.script is not None:
                await self.script(self, reader, writer)
                return
            while True:
                request = await read_message(reader)
                self.record(request)
                answers = list(self.answers)
                answer = answers[min(len(self.requests), len(answers)) - 1]
                head, _, body = answer.partition(b"\r\n\r\n")
                writer.write(head + b"\r\n\r\n" + (b"" if request.line.startswith(b"HEAD") else body))
                await writer.drain()
                if b"content-length" not in answer.lower() and b"chunked" not in answer.lower():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            self._open.discard(writer)
            writer.close()


async def send_request(port: int, raw: bytes, *, bodyless: bool = False) -> Parsed:
    """Send `raw` on a connection of its own and read one whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        await writer.drain()
        return await read_message(reader, bodyless=bodyless, to_end=True)
    finally:
        writer.transport.abort()


async def send_until_closed(port: int, raw: bytes) -> bytes:
    """Send `raw` and read until the connection ends, however it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    came = b""
    try:
        writer.write(raw)
        while chunk := await reader.read(65536):
            came += chunk
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return came

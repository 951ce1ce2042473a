"""A client of the data port inside the process: a request is written into a connection of its own.

So a request that arrives in another way goes through the same limits, policies, sessions and records as any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from typing_extensions import override

from gateway.http1.head_buffer import ResponseHeadBuffer
from gateway.http1.response_heads import ResponseHead, ResponseReader
from gateway.http1.rules import HeadLimits
from gateway.ports import MirrorUse, SessionUse
from gateway.proxy.client_connection import ClientConnection
from gateway.proxy.data_port import DataPort

_BUFFER = 64 * 1024
"""Bytes of a response that are held before the cluster is read more slowly."""
_HEADS = ResponseReader(HeadLimits(line=2**24, head=2**24, fields=2**16))
"""Reads the heads that a `ClientConnection` has written. The cluster's were within the limits that are configured."""


class LocalTransport(asyncio.Transport):
    """What a `ClientConnection` writes to, and is paused and closed by. readable: it takes more of the request.

    peer: the connection of the client that the request is of; None if it is not an HTTP/1.1 connection of this process.
    address: of the client; None for the peer's.
    """

    connection: ClientConnection

    def __init__(self, peer: asyncio.BaseTransport | None, address: tuple[str, int] | None = None) -> None:
        super().__init__()
        self.closing = self.released = False
        self.readable = asyncio.Event()
        self.readable.set()
        self._peer = peer
        self._address = address
        self._written: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = self._cut = False
        self._news = asyncio.Event()

    async def read(self) -> bytes:
        """Return what has been written; b"" once the connection writes no more.

        Raises:
            ConnectionResetError: it was cut in the middle of a response.
        """
        while not self._written:
            if self._cut:
                raise ConnectionResetError("the response broke off")
            if self._ended:
                return b""
            self._news.clear()
            await self._news.wait()
        data = b"".join(self._written)
        self._written.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            self.connection.resume_writing()
        return data

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername" and self._address is not None:
            return self._address
        return default if self._peer is None else self._peer.get_extra_info(name, default)

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._written.append(bytes(data))
        self._size += len(data)
        self._news.set()
        if self._size > _BUFFER and not self._paused:
            self._paused = True
            self.connection.pause_writing()

    @override
    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    @override
    def get_write_buffer_size(self) -> int:
        return self._size

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def write_eof(self) -> None:
        self._ended = True
        self._news.set()

    @override
    def is_closing(self) -> bool:
        return self.closing

    @override
    def close(self) -> None:
        self.closing = True
        self.write_eof()

    def abort(self) -> None:
        """See `asyncio.Transport`: cut the client's own connection."""
        self.closing = self._cut = True
        self._news.set()
        if isinstance(self._peer, asyncio.Transport):
            self._peer.abort()

    def is_reading(self) -> bool:
        """See `asyncio.Transport`. `DisconnectPoller` need not look: aiohttp reads."""
        return True

    @override
    def pause_reading(self) -> None:
        self.readable.clear()

    @override
    def resume_reading(self) -> None:
        self.readable.set()


async def read_head(transport: LocalTransport) -> tuple[ResponseHead, bytes]:
    """Read the head of the final response, and the start of its body. aiohttp sends no interim responses.

    Raises:
        ConnectionResetError: the connection ended before.
    """
    buffer = ResponseHeadBuffer()
    data = b""
    while True:
        data = data or await transport.read()
        if not data:
            raise ConnectionResetError("no response")
        found = buffer.feed(data, _HEADS.limits)
        if found is None:
            data = b""
            continue
        head, data = _HEADS.read(found[0]), found[1]
        if head.status >= 200:
            return head, data


class LocalResponse:
    """The response to a request that `send_request` sent. Close it: a run that is not over is abandoned then."""

    def __init__(
        self, connection: ClientConnection, transport: LocalTransport, head: ResponseHead, data: bytes
    ) -> None:
        self.status = head.status
        self._head = head
        self._connection = connection
        self._transport = transport
        self._data = data

    def header(self, name: str) -> str:
        """Return the value of a header, several ones joined by commas; "" if there is none. name: in lower case."""
        pairs = self._head.pairs()
        return ", ".join(value.decode("utf-8", "replace") for key, value in pairs if key.lower() == name.encode())

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, without its framing.

        Raises:
            ConnectionResetError: it broke off.
        """
        body = self._head.body(b"POST", True)
        data, self._data = self._data, b""
        while True:
            piece = body.feed(data) if data else b""
            if piece:
                yield piece
            if body.done:
                return
            data = await self._transport.read()
            if not data:
                raise ConnectionResetError("the response broke off")

    async def read(self) -> bytes:
        """Return the whole body; raises as `pieces`."""
        return b"".join([piece async for piece in self.pieces()])

    def close(self) -> None:
        """End the request's connection."""
        _end(self._connection, self._transport)


async def send_request(
    port: DataPort,
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]],
    body: bytes = b"",
    address: tuple[str, int] | None = None,
    session: SessionUse | None = None,
    mirror: MirrorUse | None = None,
) -> LocalResponse:
    """Send a request to the data port, and return its response once its head is there.

    headers: without those of its framing. address: the client's. session, mirror: see `ExecuteCall`.

    Raises:
        ConnectionResetError: the gateway cut the connection.
    """
    transport = LocalTransport(None, address)
    connection = ClientConnection(port)
    transport.connection = connection
    connection.session, connection.mirror = session, mirror
    connection.connection_made(transport)
    lines = [f"{method} {target} HTTP/1.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    try:
        connection.data_received("\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape") + body)
        head, data = await read_head(transport)
    except BaseException:
        _end(connection, transport)
        raise
    return LocalResponse(connection, transport, head, data)


def _end(connection: ClientConnection, transport: LocalTransport) -> None:
    if not transport.released:
        transport.released = transport.closing = True
        connection.connection_lost(None)

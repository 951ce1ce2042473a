"""The cluster behind the attacked gateway: ``python -m bench.attacks.upstream <port> [<certificate>]``.

| request | answer |
|---|---|
| ``GET /bytes/<n>`` | n bytes |
| ``GET /slow/<milliseconds>/<n>`` | the same, later |
| ``GET /interim/<n>`` | n interim answers at once, then a short answer |
| an upgrade to a websocket | 101, then whatever comes is sent back |
| an agent, its model and its connector | the benchmark's documents; for agents named ``slow-…`` after a second |
| ``_execute`` of an agent named ``long-…`` | a short answer after a second |
| a POST to ``/keep/<path>`` | a short answer; from then on its body is the answer to a GET of ``/<path>`` |
| an agent named ``endless-…`` | an object that does not end |
| an agent named ``huge-<bytes>-…`` | an object of so many bytes |
| any other | a short answer, once the body is there |
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import ClassVar

import uvloop

from bench.upstream import AGENT, ANSWER, documents

SLOW_AGENT, LONG_AGENT, ENDLESS_AGENT, HUGE_AGENT = "slow-", "long-", "endless-", "huge-"
KEEP = "/keep"
_MOST_KEPT = 2_000
_ENDLESS = 1 << 40
_OBJECT = b'{"name":"x","type":"flow","tools":[],"description":"'
_BLOCK = b"x" * (1 << 17)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
_INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
_AGENTS = b"/_plugins/_ml/agents/"
_CHUNKS_END = b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection of the gateway's. It sends no request before it has the answer to the last."""

    documents: dict[bytes, bytes]
    kept: ClassVar[dict[bytes, bytes]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.waiting = b""
        self.left = 0
        self.chunked = self.tunnel = False
        self.tail = b""
        self.body = b""
        self.writable = asyncio.Event()
        self.writable.set()
        self.task: asyncio.Task[None] | None = None
        transport.set_write_buffer_limits(high=len(_BLOCK))  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self.tunnel:
            self.transport.write(data)
        elif self.left or self.chunked:
            self._body(data)
        else:
            self._head(self.waiting + data)

    def _head(self, data: bytes) -> None:
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            self.waiting = data
            return
        self.waiting = b""
        line, *lines = head.split(b"\r\n")
        self.method, self.target, _ = line.split(b" ", 2)
        fields = {name.lower(): value.strip().lower() for name, _, value in (one.partition(b":") for one in lines)}
        if fields.get(b"upgrade") == b"websocket":
            self.tunnel = True
            self.transport.write(_SWITCH)
            return
        if fields.get(b"expect"):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.left = int(fields.get(b"content-length", b"0"))
        self.chunked = fields.get(b"transfer-encoding") == b"chunked"
        self._body(rest)

    def _body(self, data: bytes) -> None:
        if self.target.startswith(KEEP.encode()):
            self.body += data
        self.left = max(0, self.left - len(data))
        if self.chunked:
            self.tail = (self.tail + data)[-len(_CHUNKS_END) :]
            self.chunked = self.tail != _CHUNKS_END
        if not self.left and not self.chunked:
            self.tail = b""
            self._answer()

    def _answer(self) -> None:
        target = self.target.partition(b"?")[0]
        _, kind, *rest = target.split(b"/")
        if target.startswith(KEEP.encode()):
            self.kept[target.removeprefix(KEEP.encode())], self.body = self.body, b""
            if len(self.kept) > _MOST_KEPT:
                self.kept.pop(next(iter(self.kept)))
            self._send(ANSWER)
        elif self.method == b"GET" and target in self.kept:
            self._send(self.kept[target])
        elif target.startswith(_AGENTS + ENDLESS_AGENT.encode()) and self.method == b"GET":
            self.task = asyncio.ensure_future(self._pieces(_ENDLESS, _OBJECT))
        elif target.startswith(_AGENTS + HUGE_AGENT.encode()) and self.method == b"GET":
            self.task = asyncio.ensure_future(self._pieces(int(target.split(b"-")[1]), _OBJECT, b'"}'))
        elif target.startswith(_AGENTS) and target.endswith(b"/_execute"):
            self._later(1.0 if target.startswith(_AGENTS + LONG_AGENT.encode()) else 0.0, ANSWER)
        elif target.startswith(_AGENTS):
            slow = target.startswith(_AGENTS + SLOW_AGENT.encode())
            self._later(1.0 if slow else 0.0, self.documents[_AGENTS + AGENT.encode()])
        elif target in self.documents:
            self._send(self.documents[target])
        elif kind == b"bytes" and self.method == b"GET":
            self._big(int(rest[0]))
        elif kind == b"interim":
            self.transport.write(_INTERIM * int(rest[0]))
            self._send(ANSWER)
        elif kind == b"slow":
            self.task = asyncio.ensure_future(self._slow(int(rest[0]) / 1000, int(rest[1])))
        else:
            self._send(b"" if self.method == b"HEAD" else ANSWER)

    def _send(self, body: bytes) -> None:
        self.transport.write(_HEAD % len(body) + body)

    def _later(self, seconds: float, body: bytes) -> None:
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._send, body)
        else:
            self._send(body)

    def _big(self, size: int) -> None:
        if size <= len(_BLOCK):
            self._send(_BLOCK[:size])
        else:
            self.task = asyncio.ensure_future(self._pieces(size))

    async def _slow(self, seconds: float, size: int) -> None:
        await asyncio.sleep(seconds)
        await self._pieces(size)

    async def _pieces(self, size: int, begin: bytes = b"", end: bytes = b"") -> None:
        """Send `size` bytes that begin and end like this."""
        self.transport.write(_HEAD % size + begin)
        size -= len(begin) + len(end)
        for start in range(0, size, len(_BLOCK)):
            await self.writable.wait()
            if self.transport.is_closing():
                return
            self.transport.write(_BLOCK[: size - start])
        self.transport.write(end)


async def main(port: int, certificate: str = "") -> None:
    Connection.documents = documents()
    context = None
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=4096, ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), *sys.argv[2:]))

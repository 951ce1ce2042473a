"""A client that tells exactly what it saw of an answer: all of it, a part of it, or the gateway's own error."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from tests.faults.upstream import BAD, CUT, LATE, WHOLE, right_answer

_ERRORS = {502: ("UpstreamUnavailable", BAD), 504: ("UpstreamTimeout", LATE)}


@dataclass(frozen=True)
class Ask:
    """A request that the faulty upstream understands. fault: "" for none; size: bytes of the answer at least."""

    id: bytes
    method: bytes = b"GET"
    target: bytes = b"/i/_search"
    body: bytes = b""
    fault: str = ""
    size: int = 0
    version: bytes = b"1.1"
    chunked: bool = False

    def head(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.method, self.target, self.version), b"Host: c", b"X-Id: " + self.id]
        if self.fault:
            lines.append(b"X-Fault: " + self.fault.encode())
        if self.size:
            lines.append(b"X-Size: %d" % self.size)
        if self.chunked:
            lines.append(b"Transfer-Encoding: chunked")
        elif self.body or self.method == b"POST":
            lines.append(b"Content-Length: %d" % len(self.body))
        return b"\r\n".join((*lines, b"", b""))

    def raw(self) -> bytes:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(self.body), self.body) if self.chunked else self.body
        return self.head() + body

    def right(self) -> bytes:
        return right_answer(self.method, self.target, self.id, self.size, self.body)


@dataclass(frozen=True)
class Saw:
    """A response as a client saw it. status: 0 without a complete head. reusable: the connection may be used again."""

    status: int = 0
    body: bytes = b""
    whole: bool = False
    reusable: bool = False

    def verdict(self, ask: Ask) -> str:
        """WHOLE, CUT, BAD or LATE where that is true; else what is wrong."""
        if not self.whole:
            return CUT
        if self.status == 200:
            right = b"" if ask.method == b"HEAD" else ask.right()
            return WHOLE if self.body == right else f"wrong 200: {self.body[:80]!r}"
        if ask.method == b"HEAD" and self.status in _ERRORS:
            return _ERRORS[self.status][1]
        return _error(self.status, self.body)


def _error(status: int, body: bytes) -> str:
    """Which of the gateway's errors it is, if it has OpenSearch's shape."""
    kind, verdict = _ERRORS.get(status, ("", ""))
    try:
        document = msgspec.json.decode(body)
        error = document["error"]
        shaped = document["status"] == status and error["root_cause"] == [{"type": kind, "reason": error["reason"]}]
    except (msgspec.DecodeError, TypeError, KeyError, UnicodeDecodeError):
        shaped = False
    return verdict if shaped and error["type"] == kind else f"wrong {status}: {body[:200]!r}"


class Client:
    """Keeps one connection as long as it can."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._pair is None:
            self._pair = await asyncio.open_connection("127.0.0.1", self._port)
        return self._pair

    async def ask(self, ask: Ask) -> Saw:
        reader, writer = await self.connected()
        try:
            writer.write(ask.raw())
            saw = await read(reader, bodyless=ask.method == b"HEAD")
        except ConnectionError:
            saw = Saw()
        if not saw.reusable or ask.version == b"1.0":  # which is not kept unless asked for
            self.close()
        return saw

    def close(self) -> None:
        if self._pair is not None:
            self._pair[1].transport.abort()
            self._pair = None


async def read(reader: asyncio.StreamReader, *, bodyless: bool = False) -> Saw:
    """The next final answer; the end of a connection within it makes it a part, and a reset does so anywhere."""
    status, body = 0, b""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            if status >= 200:
                break
        fields = head.lower()
        reusable = head.startswith(b"HTTP/1.1") and b"\r\nconnection: close" not in fields
        if bodyless or status in (204, 304):
            return Saw(status, b"", True, reusable)
        if b"\r\ntransfer-encoding: chunked" in fields:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            assert await reader.readexactly(2) == b"\r\n"
            return Saw(status, body, True, reusable)
        at = fields.find(b"\r\ncontent-length:")
        if at >= 0:
            body = await reader.readexactly(int(fields[at + 17 :].partition(b"\r\n")[0]))
            return Saw(status, body, True, reusable)
        while piece := await reader.read(65536):
            body += piece
        return Saw(status, body, True, False)
    except (asyncio.IncompleteReadError, ConnectionError):
        return Saw(status, body)


async def once(port: int, ask: Ask) -> Saw:
    """One request on a connection of its own."""
    client = Client(port)
    try:
        return await client.ask(ask)
    finally:
        client.close()

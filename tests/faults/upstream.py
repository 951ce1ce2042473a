"""A cluster that fails on demand: a request names the fault it wants in `X-Fault`, and gets its own answer otherwise.

Raw asyncio, so that no library repairs a fault. Each fault is a row of `FAULTS`, with what a client behind a
gateway may truthfully see of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.wire import PATIENCE, delivered, reserved

WHOLE, CUT, BAD, LATE = "whole", "cut", "502", "504"
"""What a client may see: the right answer; an end before the answer's; the gateway's 502 or 504."""

POISON = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"


def reset(transport: asyncio.BaseTransport) -> None:
    """End a connection with RST, whatever is under way."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()  # type: ignore[attr-defined]


def right_answer(method: bytes, target: bytes, id: bytes, size: int, body: bytes) -> bytes:
    """The body that belongs to a request and to no other. size: bytes at least."""
    own = b"%b %b %b %d:%08x " % (id, method, target, len(body), zlib.crc32(body))
    return own + (id * (size // max(1, len(id)) + 1))[: max(0, size - len(own))]


@dataclass(frozen=True)
class Request:
    """A received request: the parts of its head, and its body without the transfer coding."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def answer(self) -> bytes:
        size = int(self.headers.get(b"x-size", b"0"))
        return right_answer(self.method, self.target, self.headers.get(b"x-id", b""), size, self.body)

    @property
    def fault(self) -> str:
        return self.headers.get(b"x-fault", b"").decode()


class Connection(asyncio.Protocol):
    """One connection of the gateway's: reads requests, answers or fails."""

    def __init__(self, upstream: FaultyUpstream) -> None:
        self.upstream = upstream
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.upstream.accepted += 1
        self.upstream.open.add(self)
        if self.upstream.close_next:
            self.upstream.close_next -= 1
            reset(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.upstream.open.discard(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        while self._task is None and (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            line, *lines = bytes(self._buffer[:end]).split(b"\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (one.partition(b":") for one in lines)}
            method, target, _ = line.split(b" ", 2)
            early = EARLY.get(headers.get(b"x-fault", b"").decode())
            if early is not None:
                return self._run(early, Request(method, target, headers, b""))
            found = self._body(headers, end + 4)
            if found is None:
                return None
            body, length = found
            del self._buffer[:length]
            request = Request(method, target, headers, body)
            self.upstream.seen[headers.get(b"x-id", b"")] += 1
            if request.fault in FAULTS:
                return self._run(FAULTS[request.fault].act, request)
            self.whole(request)
        return None

    def _body(self, headers: dict[bytes, bytes], start: int) -> tuple[bytes, int] | None:
        """The body and where it ends in the buffer; None while it is not all there."""
        if headers.get(b"transfer-encoding") != b"chunked":
            end = start + int(headers.get(b"content-length", b"0"))
            return (bytes(self._buffer[start:end]), end) if len(self._buffer) >= end else None
        pieces: list[bytes] = []
        while (at := self._buffer.find(b"\r\n", start)) >= 0:
            size = int(self._buffer[start:at], 16)
            if len(self._buffer) < at + 4 + size:
                return None
            start = at + 4 + size
            if not size:
                return b"".join(pieces), start
            pieces.append(bytes(self._buffer[at + 2 : at + 2 + size]))
        return None

    def _run(self, act: Act, request: Request) -> None:
        self._task = asyncio.create_task(self._acted(act, request))

    async def _acted(self, act: Act, request: Request) -> None:
        await act(self, request)
        self._task = None
        if not self.transport.is_closing():
            self._next()

    def send(self, *pieces: bytes) -> None:
        self.transport.write(b"".join(pieces))

    def whole(self, request: Request, *more: bytes) -> None:
        body = b"" if request.method == b"HEAD" else request.answer
        self.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(request.answer), body, *more)

    async def sent(self) -> None:
        """Wait until what was sent has arrived: a reset overtakes it otherwise."""
        await delivered(self.transport)


@dataclass
class FaultyUpstream:
    """The cluster. seen: how often each `X-Id` arrived whole; close_next: so many connections are reset at once;
    over: those that stopped reading go on."""

    tls: object = None
    port: int = 0
    accepted: int = 0
    close_next: int = 0
    open: set[Connection] = field(default_factory=set)
    seen: Counter[bytes] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    protocol = Connection

    async def __aenter__(self) -> FaultyUpstream:
        loop = asyncio.get_running_loop()
        self._reserved = contextlib.ExitStack()
        self._server = await loop.create_server(
            lambda: self.protocol(self), "127.0.0.1", self.port, ssl=self.tls, backlog=1024
        )  # type: ignore
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        self._reserved.close()

    async def kill(self) -> None:
        """Stop as a process that dies: no new connections, the open ones reset. Nobody else gets its port."""
        await self._stop()
        self._reserved.enter_context(reserved(self.port))

    async def _stop(self) -> None:
        self._server.close()
        for connection in list(self.open):
            reset(connection.transport)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"


Act = Callable[[Connection, Request], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One way to fail. seen: what a client may see of it; lasting: it takes a time limit to notice it.

    after: it strikes a little after the answer, and might hit a request that is under way by then.
    """

    act: Act
    seen: frozenset[str]
    lasting: bool = False
    after: bool = False


FAULTS: dict[str, Fault] = {}
EARLY: dict[str, Act] = {}
"""Those that fail before the request is all there."""


def _fault(*seen: str, early: bool = False, lasting: bool = False, after: bool = False) -> Callable[[Act], Act]:
    def add(act: Act) -> Act:
        name = act.__name__.replace("_", " ")  # type: ignore[attr-defined]
        FAULTS[name] = Fault(act, frozenset(seen), lasting, after)
        if early:
            EARLY[name] = act
        return act

    return add


def _sends(name: str, raw: bytes, *seen: str, closing: str = "close", lasting: bool = False) -> None:
    """A fault that is some bytes, and how the connection ends after them: close, reset or wait."""

    async def act(c: Connection, _: Request) -> None:
        c.send(raw)
        if closing == "reset":
            await c.sent()
            reset(c.transport)
        elif closing == "close":
            c.transport.close()
        else:
            await asyncio.Event().wait()

    FAULTS[name] = Fault(act, frozenset(seen), lasting)


_OK = b"HTTP/1.1 200 OK\r\n"
_SOME = _OK + b"Content-Length: 1000\r\n\r\n" + b"a" * 300
_CHUNKS = _OK + b"Transfer-Encoding: chunked\r\n\r\n"

# Before there is an answer.
_sends("closes without an answer", b"", BAD)
_sends("resets without an answer", b"", BAD, closing="reset")
_sends("closes within the status line", b"HTTP/1.", BAD)
_sends("closes within the head", _OK + b"Content-Le", BAD)
_sends("resets within the head", _OK + b"Content-Le", BAD, closing="reset")
_sends("closes before the head's last line end", _OK + b"Content-Length: 0\r\n", BAD)
_sends("garbage", bytes(range(256)) * 4 + b"\r\n\r\n", BAD, closing="wait")
_sends("speaks another protocol", b"SSH-2.0-OpenSSH_9.2\r\n", BAD)
_sends("two lengths", _OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", BAD)
_sends("negative length", _OK + b"Content-Length: -1\r\n\r\n", BAD)
_sends("length is no number", _OK + b"Content-Length: 1x\r\n\r\na", BAD)
_sends("length and chunks", _OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", BAD)
_sends("status is no number", b"HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n", BAD)
_sends("status of four digits", b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", BAD)
_sends("switches protocols unasked", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", BAD, closing="wait")
_sends("header without a colon", _OK + b"nonsense\r\nContent-Length: 0\r\n\r\n", BAD)
_sends("header of 300 KB", _OK + b"X-A: " + b"a" * 300_000 + b"\r\nContent-Length: 0\r\n\r\n", BAD)
_sends("3,000 headers", _OK + b"X-A: a\r\n" * 3000 + b"Content-Length: 0\r\n\r\n", BAD)
_sends("stalls before the answer", b"", LATE, closing="wait", lasting=True)
_sends("stalls within the head", _OK + b"Content-Le", LATE, closing="wait", lasting=True)

# Within the answer's body. A body that breaks off before anything went out may as well be a 502.
_sends("closes within the body", _SOME, CUT, BAD)
_sends("resets within the body", _SOME, CUT, BAD, closing="reset")
_sends("resets within a body without a length", _OK + b"\r\n" + b"a" * 300, CUT, BAD, closing="reset")
_sends("closes within a big body", _OK + b"Content-Length: 900000\r\n\r\n" + b"a" * 800_000, CUT)
_sends("closes before the last chunk", _CHUNKS + b"3\r\nabc\r\n", CUT, BAD)
_sends("closes within a chunk", _CHUNKS + b"9\r\nabc", CUT, BAD)
_sends("closes within a chunk's size", _CHUNKS + b"3\r\nabc\r\n1", CUT, BAD)
_sends("closes within the trailers", _CHUNKS + b"3\r\nabc\r\n0\r\nX-T: 1\r\n", CUT, BAD)
_sends("resets within a chunk", _CHUNKS + b"9\r\nabc", CUT, BAD, closing="reset")
_sends("chunk size is no number", _CHUNKS + b"3\r\nabc\r\nzz\r\nabc\r\n0\r\n\r\n", CUT, BAD, closing="wait")
_sends("chunk size is negative", _CHUNKS + b"3\r\nabc\r\n-3\r\nabc\r\n0\r\n\r\n", CUT, BAD, closing="wait")
_sends("chunk longer than it says", _CHUNKS + b"3\r\nabcdef\r\n0\r\n\r\n", CUT, BAD, closing="wait")
_sends("stalls within the body", _SOME, CUT, LATE, closing="wait", lasting=True)
_sends("stalls within a chunk", _CHUNKS + b"9\r\nabc", CUT, LATE, closing="wait", lasting=True)


@_fault(WHOLE)
async def slow_bytes(c: Connection, r: Request) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(r.answer), r.answer)
    raw = raw[: raw.index(b"\r\n\r\n") + 4] if r.method == b"HEAD" else raw
    for start in range(0, len(raw), max(1, len(raw) // 20)):
        c.send(raw[start : start + max(1, len(raw) // 20)])
        await asyncio.sleep(0.002)


@_fault(WHOLE)
async def five_interim_answers(c: Connection, r: Request) -> None:
    c.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 5)
    c.whole(r)


@_fault(BAD)
async def thousands_of_interim_answers(c: Connection, r: Request) -> None:
    c.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 5_000)
    c.whole(r)


@_fault(BAD)
async def endless_interim_answers(c: Connection, _: Request) -> None:
    while not c.transport.is_closing():
        c.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10)
        await asyncio.sleep(0.01)


@_fault(LATE, BAD, lasting=True)
async def endless_head(c: Connection, _: Request) -> None:
    c.send(_OK)
    while not c.transport.is_closing():
        c.send(b"X-A: a\r\n")
        await asyncio.sleep(0.01)


@_fault(WHOLE)
async def more_bytes_than_its_length_says(c: Connection, r: Request) -> None:
    c.whole(r, b"more")


@_fault(WHOLE)
async def a_second_answer_nobody_asked_for(c: Connection, r: Request) -> None:
    c.whole(r, POISON)


@_fault(WHOLE, after=True)
async def a_second_answer_a_little_later(c: Connection, r: Request) -> None:
    c.whole(r)
    await asyncio.sleep(0.005)
    c.send(POISON)


@_fault(WHOLE, after=True)
async def closes_the_kept_connection(c: Connection, r: Request) -> None:
    c.whole(r)
    await asyncio.sleep(0.002)
    c.transport.close()


@_fault(WHOLE, after=True)
async def resets_the_kept_connection(c: Connection, r: Request) -> None:
    c.whole(r)
    await c.sent()
    reset(c.transport)


@_fault(BAD, early=True)
async def resets_within_the_request(c: Connection, _: Request) -> None:
    reset(c.transport)


@_fault(BAD, LATE, early=True, lasting=True)
async def stops_reading(c: Connection, _: Request) -> None:
    c.transport.pause_reading()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(c.upstream.over.wait(), PATIENCE)
    c.transport.resume_reading()  # else it would never learn that the other end is gone
    await asyncio.Event().wait()


async def settled(condition: Callable[[], bool]) -> bool:
    """Wait until `condition` is true; False if that takes longer than anything should."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    return condition()

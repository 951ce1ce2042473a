"""Back-pressure both ways: who reads slowly makes the other end wait, and the gateway holds almost nothing meanwhile.

The gateway runs as users run it, in a process of its own, whose memory is read from /proc.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.exactness.conftest import Served, served
from tests.exactness.table import get
from tests.wire import OK, RecordingUpstream

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_factories=["asyncio"])]

SIZE = 256 * 1024 * 1024
"""Bytes of the body: far more than any socket's buffers."""

HELD = 16 * 1024 * 1024
"""Bytes of memory that the gateway may gain: buffers of one connection, and what an allocator keeps."""

PIECE = random.Random(7).randbytes(256 * 1024)


def memory(process: int) -> int:
    """Resident bytes of a process and its children."""
    pids = [process, *map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


class Flow:
    """Writes a body of `SIZE` bytes and counts how far it came; `sum` is what a reader must find."""

    def __init__(self) -> None:
        self.written = 0

    async def write(self, writer: asyncio.StreamWriter) -> None:
        while self.written < SIZE:
            writer.write(PIECE)
            await writer.drain()
            self.written += len(PIECE)


async def read_all(reader: asyncio.StreamReader) -> str:
    digest, left = hashlib.sha256(), SIZE
    while left:
        data = await reader.read(min(left, 1 << 20))
        assert data, f"{left} bytes are missing"
        digest.update(data)
        left -= len(data)
    return digest.hexdigest()


def expected() -> str:
    digest = hashlib.sha256()
    for _ in range(SIZE // len(PIECE)):
        digest.update(PIECE)
    return digest.hexdigest()


async def stalled(count: Callable[[], int]) -> int:
    """Return the value of `count` once it is the same ten times in a row. A machine that stops delays one of them."""
    before, same = 0, 0
    while same < 10:
        await asyncio.sleep(0.05)
        now = count()
        same = same + 1 if now == before and now else 0
        before = now
    return before


async def warm(gateway: Served) -> int:
    """Memory once the gateway has served a first request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(get(b"/", b"Connection: close"))
    await reader.read()
    writer.close()
    return memory(gateway.pid)


async def test_a_slow_client_makes_the_cluster_wait() -> None:
    flow = Flow()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/big" not in await reader.readuntil(b"\r\n\r\n"):
            writer.write(OK)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
        with suppress(ConnectionError):
            await flow.write(writer)

    async with RecordingUpstream(script=script) as upstream:
        with served(upstream.url) as gateway:
            base = await warm(gateway)
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1 << 16)
            writer.write(get(b"/big", b"Connection: close"))
            await reader.readuntil(b"\r\n\r\n")
            assert await stalled(lambda: flow.written) < SIZE // 2
            assert memory(gateway.pid) - base < HELD
            assert await read_all(reader) == expected()
            assert memory(gateway.pid) - base < HELD
            writer.close()


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_slow_cluster_makes_the_client_wait(framing: str) -> None:
    read = asyncio.Event()
    found: list[str] = []
    flow = Flow()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/big" in head:
            await read.wait()
            found.append(await (read_all(reader) if framing == "length" else read_chunks(reader)))
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        with served(upstream.url) as gateway:
            base = await warm(gateway)
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            expected_body = b"Content-Length: %d" % SIZE if framing == "length" else b"Transfer-Encoding: chunked"
            writer.write(b"POST /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + expected_body + b"\r\n\r\n")
            sending = asyncio.create_task(flow.write(writer) if framing == "length" else write_chunks(flow, writer))
            assert await stalled(lambda: flow.written) < SIZE // 2
            assert memory(gateway.pid) - base < HELD
            read.set()
            await sending
            assert (await reader.read()).endswith(b"ok")
            assert found == [expected()]
            assert memory(gateway.pid) - base < HELD
            writer.close()


async def write_chunks(flow: Flow, writer: asyncio.StreamWriter) -> None:
    while flow.written < SIZE:
        writer.writelines([b"%x\r\n" % len(PIECE), PIECE, b"\r\n"])
        await writer.drain()
        flow.written += len(PIECE)
    writer.write(b"0\r\n\r\n")


async def read_chunks(reader: asyncio.StreamReader) -> str:
    digest = hashlib.sha256()
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        digest.update((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return digest.hexdigest()

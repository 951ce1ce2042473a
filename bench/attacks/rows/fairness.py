"""Clients that take more than their share, of time or of places."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

from bench.attacks.attack import Table
from bench.attacks.client import Target, get, post, post_chunked
from bench.upstream import AGENT

TABLE = Table("fairness")
_EXECUTE = f"/_plugins/_ml/agents/{AGENT}/_execute"
_UPLOAD = "/index/_bulk"
_CHUNK = b"1\r\nx\r\n"
_ANY = frozenset({0, 200, 408, 413, 429, 503})
"""What a client that behaves like this may get: an answer, or a refusal."""


async def _tiny_chunks(target: Target, clients: int, rate: int, seconds: float, path: str = _UPLOAD) -> None:
    """Clients that send one-byte chunks. rate: bytes a second of all of them together."""
    tick = 0.01
    piece = _CHUNK * max(1, round(rate * tick / clients / len(_CHUNK)))

    async def one(_: int) -> None:
        async with target.peer() as peer:
            await peer.send(post_chunked(path))
            await target.at_rate(peer, itertools.repeat(piece, round(seconds / tick)), tick)
            await peer.send(b"0\r\n\r\n")
            target.seen[await peer.status()] += 1

    await target.burst(one, clients)


@TABLE.row("one-byte chunks", "a client sends a body in one-byte chunks, at 4 MB/s", answers=_ANY)
async def tiny_chunks(target: Target) -> None:
    await _tiny_chunks(target, 1, 4_000_000, 2.0)


@TABLE.row("one-byte chunks of 20 clients", "20 clients send bodies in one-byte chunks, at 4 MB/s each", answers=_ANY)
async def tiny_chunks_of_many(target: Target) -> None:
    await _tiny_chunks(target, target.some(20), 4_000_000 * target.some(20), 2.0)


@TABLE.row("one-byte chunks to an agent", "10 clients send an _execute in one-byte chunks", answers=_ANY | {400})
async def tiny_chunks_to_an_agent(target: Target) -> None:
    await _tiny_chunks(target, target.some(10), 20_000_000, 2.0, _EXECUTE)


@TABLE.row("slow bodies", "1,000 clients send a body of a byte a second each", answers=_ANY, every=25.0)
async def slow_bodies(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer() as peer:
            await peer.send(post(_UPLOAD, b"x", length=100_000))
            reading = asyncio.ensure_future(peer.status())
            try:
                for _second in range(20):
                    await asyncio.wait((reading,), timeout=1)
                    if reading.done():
                        break
                    await peer.send(b"x")
            finally:
                if reading.done():
                    target.seen[reading.result()] += 1
                reading.cancel()

    await target.burst(one, target.some(1000), 1.0)


@TABLE.row("slow _execute bodies", "300 clients send an _execute of a byte a second each", answers=_ANY, every=25.0)
async def slow_execute_bodies(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer() as peer:
            await peer.send(post(_EXECUTE, b'{"input":"', length=100_000))
            await target.at_rate(peer, itertools.repeat(b"x", 20), 1.0)

    await target.burst(one, target.some(300), 1.0)


@TABLE.row("slow heads", "1,000 clients send a head of a byte a second each", answers=_ANY, every=25.0)
async def slow_heads(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer() as peer:
            await target.at_rate(peer, (bytes([byte]) for byte in get("/bytes/100")[:20]), 1.0)

    await target.burst(one, target.some(1000), 1.0)


@TABLE.row("silent connections", "1,000 connections that send nothing", every=25.0)
async def silent(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer():
            await asyncio.sleep(20)

    await target.burst(one, target.some(1000), 1.0)


@TABLE.row("connects and closes", "connections that are made and closed again, 1,000 a second")
async def connects(target: Target) -> None:
    async def one(_: int) -> None:
        (await target.socket()).close()

    await target.burst(one, target.some(1000), 1.0)


@TABLE.row("Expect and silence", "300 clients ask for 100-continue and send no body", every=10.0, answers=_ANY)
async def expects(target: Target) -> None:
    async def one(number: int) -> None:
        path = _EXECUTE if number % 2 else _UPLOAD
        async with target.peer() as peer:
            await peer.send(post(path, b"", "Expect: 100-continue", length=1000))
            await asyncio.sleep(8)

    await target.burst(one, min(target.some(300), 150), 1.0)


@TABLE.row(
    "slow readers", "20 clients read answers of 10 MB slowly, through a small window", every=10.0, memory=256 << 20
)
async def slow_readers(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer(window=4096) as peer:
            await peer.send(get("/bytes/10000000"))
            for _piece in range(80):
                await peer.reader.read(4096)
                await asyncio.sleep(0.1)

    await target.burst(one, target.some(20), 0.5)


@TABLE.row("never reading", "20 clients ask for 10 MB and read nothing", every=10.0, memory=256 << 20)
async def never_reading(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer(window=2048) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await peer.send(get("/bytes/10000000"))
            await asyncio.sleep(8)

    await target.burst(one, target.some(20), 0.5)


@TABLE.row("pipelined requests", "10 clients keep 200 small requests in their pipelines", answers={200, 0})
async def pipelines(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer() as peer:
            for _turn in range(target.some(4)):
                await peer.send(get("/bytes/10") * 200)
                for _answer in range(200):
                    if await peer.status() != 200:
                        target.seen[0] += 1
                        return

    await target.burst(one, 10)


@TABLE.row(
    "one pipeline, never read", "a client sends 100,000 requests and reads no answer", answers={0, 200}, every=2.0
)
async def pipeline_never_read(target: Target) -> None:
    async with target.peer() as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                for _ in range(target.some(1000)):
                    await peer.send(get("/bytes/1000") * 100)


@TABLE.row(
    "one after the other, never read",
    "20 clients send a request every 10 ms and read no answer",
    answers={0, 200},
    every=10.0,
    memory=128 << 20,
)
async def requests_never_read(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer(window=2048) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _request in range(target.some(800)):
                await peer.send(get("/bytes/100000"))
                await asyncio.sleep(0.01)

    await target.burst(one, target.some(20), 0.5)


@TABLE.row("small requests", "20 clients send GET and HEAD one after the other, without a pause")
async def small_requests(target: Target) -> None:
    async def one(number: int) -> None:
        async with target.peer() as peer:
            for _turn in range(target.some(200)):
                if number % 2:
                    await peer.send(get("/bytes/100"))
                    status, _ = await peer.answer()
                else:
                    await peer.send(b"HEAD /other HTTP/1.1\r\nHost: gateway\r\n\r\n")
                    status, _ = await peer.head()
                target.seen[status] += 1

    await target.burst(one, 20)


@TABLE.row("small _execute requests", "20 clients run an agent one after the other, without a pause")
async def small_runs(target: Target) -> None:
    async def one(number: int) -> None:
        async with target.peer() as peer:
            for turn in range(target.some(50)):
                await peer.send(post(_EXECUTE, b'{"input":[{"type":"text","text":"%d-%d"}]}' % (number, turn)))
                target.seen[await peer.status()] += 1

    await target.burst(one, 20)


@TABLE.row("uploads of 10 MB", "10 clients upload 10 MB each", memory=256 << 20)
async def uploads(target: Target) -> None:
    piece = b"x" * 100_000

    async def one(_: int) -> None:
        await target.ask(post(_UPLOAD, length=100 * len(piece)), *([piece] * 100))

    await target.burst(one, target.some(10), 0.5)


@TABLE.row("big answers", "10 clients read answers of 10 MB as fast as they can", memory=256 << 20)
async def downloads(target: Target) -> None:
    async def one(_: int) -> None:
        await target.ask(get("/bytes/10000000"))

    await target.burst(one, target.some(10), 0.5)


@TABLE.row("one-byte reads", "10 clients read answers of 100 KB a few bytes at a time")
async def tiny_reads(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer(window=1024) as peer:
            await peer.send(get("/bytes/100000"))
            for _read in range(500):
                await peer.reader.read(16)
                await asyncio.sleep(0.001)

    await target.burst(one, target.some(10))


@TABLE.row("tunnel flood", "10 websockets through which tiny messages go, 1,000 a second each")
async def tunnel_flood(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer() as peer:
            await peer.send(get("/socket", "Connection: upgrade", "Upgrade: websocket"))
            await peer.head()
            await target.at_rate(peer, itertools.repeat(b"x" * 10, 800), 0.001)

    await target.burst(one, target.some(10))


@TABLE.row("TLS handshakes", "100 TLS handshakes a second", needs_tls=True)
async def handshakes(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer():
            pass

    await target.burst(one, target.some(100), 1.0)

"""Requests at the edges of HTTP: malformed, near the limits, or cut into awkward pieces."""

from __future__ import annotations

import asyncio
import contextlib

from bench.attacks.attack import Table
from bench.attacks.client import Target, get, post, post_chunked
from bench.upstream import AGENT
from tests.smuggling.table import ROWS

TABLE = Table("framing")
_EXECUTE = f"/_plugins/_ml/agents/{AGENT}/_execute"
_TO_CLUSTER = "/index/_doc"
_REFUSED = frozenset({0, 400, 408, 413, 414, 431, 501, 505})
"""Statuses of refusals; 0 for a connection that was cut since its request had gone on in part."""


async def _each(target: Target, request: bytes, count: int, seconds: float = 0.5) -> None:
    """`count` requests, each on a connection of its own."""

    async def one(_: int) -> None:
        await target.ask(request)

    await target.burst(one, target.some(count), seconds)


@TABLE.row(
    "malformed with the head",
    "a good head, and malformed body bytes in the same segment; then SIGTERM must end the gateway at once",
    answers={400},
    fresh=True,
)
async def malformed_with_the_head(target: Target) -> None:
    for path in (_TO_CLUSTER, _EXECUTE):
        await _each(target, post_chunked(path) + b"ZZ\r\n", 10, 0.1)


@TABLE.row("malformed later", "a chunk that is right, and later one that is malformed", answers=_REFUSED, fresh=True)
async def malformed_later(target: Target) -> None:
    async def one(number: int) -> None:
        await target.ask(post_chunked((_TO_CLUSTER, _EXECUTE)[number % 2]) + b"3\r\nabc\r\n", b"ZZ\r\n")

    await target.burst(one, target.some(20), 0.2)


@TABLE.row("every malformed request", "all requests of the smuggling table, one after the other", answers=_REFUSED)
async def every_malformed(target: Target) -> None:
    # Some are valid under the suite's limits, which are larger than that table's, and some wait for more.
    async def one(number: int) -> None:
        async with target.peer() as peer:
            await peer.send(ROWS[number].raw)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await peer.status()

    await target.burst(one, target.some(len(ROWS)), 0.7)


@TABLE.row("longest header lines", "heads with header lines of 65 KB, 250 KB in all")
async def longest_lines(target: Target) -> None:
    lines = [f"X-{number}: {'a' * 62_000}" for number in range(4)]
    await _each(target, get("/bytes/100", *lines), 20)


@TABLE.row("headers up to the limit", "heads with 990 headers")
async def many_headers(target: Target) -> None:
    await _each(target, get("/bytes/100", *(f"X-{number % 40}: {number}" for number in range(990))), 40)


@TABLE.row("headers over the limit", "heads with 100,000 headers, never ended", answers=_REFUSED)
async def too_many_headers(target: Target) -> None:
    await _each(target, get("/bytes/100")[:-2] + b"A: b\r\n" * 100_000, 5)


@TABLE.row("_execute with many headers", "an _execute with 990 headers", answers={200})
async def execute_with_headers(target: Target) -> None:
    lines = [f"X-{number % 40}: {number}" for number in range(990)]
    await _each(target, post(_EXECUTE, b'{"input":"hello"}', *lines), 40)


@TABLE.row("heads never seen before", "1,000 different heads of 3 KB a round, so that no cache of heads can help")
async def new_heads(target: Target) -> None:
    async def one(number: int) -> None:
        line = f"X-Id: {target.rounds}-{number}-{'a' * 3000}"
        async with target.peer() as peer:
            for part in range(target.some(50)):
                await peer.send(get("/bytes/10", f"{line}{part}"))
                await peer.status()

    await target.burst(one, 20, 0.2)


@TABLE.row(
    "chunk extensions", "a body of one-byte chunks, each with an extension of 100 bytes", answers={200, 400, 413}
)
async def chunk_extensions(target: Target) -> None:
    body = (b"1;" + b"e=" + b"v" * 100 + b"\r\nx\r\n") * 5_000 + b"0\r\n\r\n"
    await _each(target, post_chunked(_TO_CLUSTER) + body, 4, 0.8)


@TABLE.row("endless chunk size", "a chunk's size line that does not end", answers=_REFUSED)
async def endless_size(target: Target) -> None:
    await _each(target, post_chunked(_TO_CLUSTER) + b"0" * 200_000, 5)


@TABLE.row("endless trailers", "trailers that do not end", answers=_REFUSED)
async def endless_trailers(target: Target) -> None:
    await _each(target, post_chunked(_TO_CLUSTER) + b"0\r\n" + b"X-T: v\r\n" * 100_000, 5)


@TABLE.row("empty lines", "megabytes of empty lines before a request", answers=_REFUSED | {200})
async def empty_lines(target: Target) -> None:
    await _each(target, b"\r\n" * 1_000_000 + get("/bytes/100"), 3)


@TABLE.row("interim answers", "the cluster sends 20,000 interim answers at once before its answer", answers={502})
async def interim_answers(target: Target) -> None:
    await _each(target, get("/interim/20000"), 20)


@TABLE.row("head byte by byte", "heads of 60 KB that come in segments of a few bytes", answers={200})
async def byte_by_byte(target: Target) -> None:
    head = get("/bytes/100", "X-Long: " + "a" * 58_000)

    async def one(_: int) -> None:
        async with target.peer() as peer:
            await target.at_rate(peer, (head[at : at + 60] for at in range(0, len(head), 60)), 0.001)
            target.seen[await peer.status()] += 1

    await target.burst(one, target.some(10))


@TABLE.row("long paths", "requests for agents with ids of 60 KB", answers={400, 404, 200})
async def long_paths(target: Target) -> None:
    await _each(target, post(f"/_plugins/_ml/agents/{'%41' * 20_000}/_execute", b'{"parameters":{"question":"a"}}'), 20)


@TABLE.row("tunnels", "websockets that are opened, and echo 100 KB", answers={101})
async def tunnels(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer() as peer:
            await peer.send(get("/socket", "Connection: upgrade", "Upgrade: websocket"))
            status, _length = await peer.head()
            target.seen[status] += 1
            await peer.send(b"x" * 100_000)
            await peer.reader.readexactly(100_000)

    await target.burst(one, target.some(30), 0.5)

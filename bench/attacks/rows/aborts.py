"""Clients that go away at each state of a request; half of them with FIN, half with RST."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from bench.attacks.attack import Table
from bench.attacks.client import _RESET, Peer, Target, get, post, post_chunked
from bench.attacks.upstream import LONG_AGENT, SLOW_AGENT
from bench.upstream import AGENT

TABLE = Table("aborts")
EXECUTE = f"/_plugins/_ml/agents/{AGENT}/_execute"
BODY = b'{"input":"' + b"What is it? " * 2000 + b'"}'
_UPGRADE = get("/socket", "Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")

COUNT, SECONDS = 60, 0.3
"""Clients a round, and the seconds over which they come."""

Act = Callable[[Peer], Awaitable[object]]


async def _abort(
    target: Target, first: bytes, then: Act | None = None, pause: float = 0.02, count: int = COUNT, least: int = 2
) -> None:
    """Clients that send `first`, do `then`, and go after a pause. least: how many there are even in a small run."""

    async def one(number: int) -> None:
        async with target.peer(reset=number % 2 == 0) as peer:
            await peer.send(first)
            if then is not None:
                await then(peer)
            await asyncio.sleep(pause)

    await target.burst(one, max(least, target.some(count)), SECONDS)


@TABLE.row("at once", "1,000 clients in 0.2 s send a GET and close at once", every=2.0)
async def try_fast(target: Target) -> None:
    if target.tls is not None:  # a handshake takes longer than that
        await _abort(target, get("/bytes/100"), pause=0, count=100)
        return

    async def one(number: int) -> None:
        sock = await target.socket()
        try:
            sock.send(get("/bytes/100"))
            if number % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        finally:
            sock.close()

    await target.burst(one, target.some(1000), 0.2)


@TABLE.row("before the request", "clients connect and close without a byte")
async def before_the_request(target: Target) -> None:
    await _abort(target, b"", pause=0)


@TABLE.row("in the TLS handshake", "clients begin a TLS handshake and close", needs_tls=True)
async def in_the_handshake(target: Target) -> None:
    async def one(number: int) -> None:
        sock = await target.socket()
        sock.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        await asyncio.sleep(0.02)
        if number % 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()

    await target.burst(one, target.some(COUNT), SECONDS)


@TABLE.row("in the head", "clients close in the middle of a request's head")
async def in_the_head(target: Target) -> None:
    await _abort(target, b"GET /bytes/100 HTTP/1.1\r\nHost: gat")


@TABLE.row("after the head", "clients close after the head of a request with a body")
async def after_the_head(target: Target) -> None:
    await _abort(target, post("/index/_doc", length=1000))


@TABLE.row("in a body with a length", "clients close in the middle of a body with a length")
async def in_a_body(target: Target) -> None:
    await _abort(target, post("/index/_doc", b"x" * 5000, length=20_000))


@TABLE.row("in a chunked body", "clients close in the middle of a chunk")
async def in_a_chunk(target: Target) -> None:
    await _abort(target, post_chunked("/index/_doc") + b"1000\r\n" + b"x" * 500)


@TABLE.row("in a chunk's size", "clients close in the middle of a chunk's size line")
async def in_a_chunk_size(target: Target) -> None:
    await _abort(target, post_chunked("/index/_doc") + b"5\r\nhello\r\n10")


@TABLE.row("after Expect: 100-continue", "clients wait for 100 and close")
async def after_expect(target: Target) -> None:
    await _abort(target, post("/index/_doc", b"", "Expect: 100-continue", length=1000), lambda peer: peer.head())


@TABLE.row(
    "waiting for a connection",
    "all connections to the cluster are taken; clients that wait for one close",
    settings={"upstream": {"connections": 10}},
    timed=False,
)
async def waiting_for_a_connection(target: Target) -> None:
    await _abort(target, get("/slow/200/100"), pause=0.1, count=100, least=50)


@TABLE.row(
    "waiting for admission",
    "requests at a time are limited; clients that wait for their turn close",
    settings={"admission": {"total": 10}},
    timed=False,
)
async def waiting_for_admission(target: Target) -> None:
    await _abort(target, post("/slow/200/100", b"x" * 100, length=200), pause=0.1, count=100, least=50)


@TABLE.row("while the cluster is slow", "clients close while the cluster has not answered yet")
async def while_slow(target: Target) -> None:
    await _abort(target, get("/slow/5000/100"), pause=0.1)


@TABLE.row("in a big answer", "clients close after the first part of an answer of 10 MB", memory=128 << 20)
async def in_a_big_answer(target: Target) -> None:
    await _abort(target, get("/bytes/10000000"), lambda peer: peer.reader.read(1 << 16), pause=0.05, count=20)


@TABLE.row("in an _execute body", "clients close in the middle of the body of an _execute")
async def in_an_execute(target: Target) -> None:
    await _abort(target, post(EXECUTE, BODY[:10_000], length=len(BODY)))


@TABLE.row("after an _execute body", "clients close right after the body of an _execute")
async def after_an_execute(target: Target) -> None:
    await _abort(target, post(EXECUTE, BODY), pause=0)


@TABLE.row("while an agent is looked up", "clients close while the gateway reads an agent it does not know yet")
async def while_looked_up(target: Target) -> None:
    async def one(number: int) -> None:
        agent = f"{SLOW_AGENT}{target.rounds}-{number}"
        async with target.peer(reset=number % 2 == 0) as peer:
            await peer.send(post(f"/_plugins/_ml/agents/{agent}/_execute", BODY))
            await asyncio.sleep(0.1)

    await target.burst(one, target.some(COUNT), SECONDS)


@TABLE.row("while an agent runs", "clients close while an agent that takes a second runs")
async def while_running(target: Target) -> None:
    await _abort(target, post(f"/_plugins/_ml/agents/{LONG_AGENT}1/_execute", BODY), pause=0.1)


@TABLE.row("while agents share a look-up", "clients that wait for the same look-up of an agent close, but for one")
async def while_sharing(target: Target) -> None:
    path = f"/_plugins/_ml/agents/{SLOW_AGENT}shared-{target.rounds}/_execute"

    async def last() -> None:
        await target.ask(post(path, BODY))

    await asyncio.gather(_abort(target, post(path, BODY), pause=0.1, count=30), last())


@TABLE.row("in a tunnel", "clients close in the middle of a websocket")
async def in_a_tunnel(target: Target) -> None:
    async def exchange(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"x" * 5000)
        await peer.reader.readexactly(100)

    await _abort(target, _UPGRADE, exchange)


@TABLE.row("in a pipeline", "clients send 50 requests at once and close")
async def in_a_pipeline(target: Target) -> None:
    await _abort(target, get("/bytes/100") * 50, pause=0.01, count=20)


@TABLE.row("half-closed", "clients send a request and end their sending side, then wait for a second", answers={0, 200})
async def half_closed(target: Target) -> None:
    async def one(_: int) -> None:
        async with target.peer() as peer:
            await peer.send(get("/slow/300/100"))
            peer.end()
            async with asyncio.timeout(1):
                await peer.status()

    await target.burst(one, target.some(COUNT), SECONDS)


@TABLE.row("while uploading, not answered", "clients close in the middle of an upload of 10 MB", memory=128 << 20)
async def while_uploading(target: Target) -> None:
    await _abort(target, post("/index/_bulk", b"x" * 1_000_000, length=10_000_000), pause=0.05, count=20)

"""SIGTERM in the middle of an answer: it must come whole."""

from __future__ import annotations

import asyncio

from bench.attacks.attack import Table
from bench.attacks.client import Peer, Target, get

TABLE = Table("drain")
_BIG = 3_000_000


async def _whole(target: Target, peer: Peer, what: str, pause: float, *, may_lack: bool = False) -> None:
    """Read an answer of 3 MB slowly. may_lack: the connection may end before it."""
    left = -1
    try:
        async with asyncio.timeout(20):
            status, left = await peer.head()
            while left:
                piece = await peer.reader.read(min(left, 1 << 17))
                if not piece:
                    break
                left -= len(piece)
                await asyncio.sleep(pause)
    except (OSError, EOFError, TimeoutError) as exc:
        if may_lack and left < 0 and not getattr(exc, "partial", b""):
            return
        target.faults[f"{what} was cut, {left} bytes before its end: {type(exc).__name__}"] += 1
        return
    if left or status != 200:
        target.faults[f"{what} was cut, {left} bytes before its end"] += 1


@TABLE.row("a big answer", "SIGTERM in the middle of an answer of 3 MB that is read slowly", ends=True)
async def big_answer(target: Target) -> None:
    async with target.peer(window=1 << 14) as peer:
        await peer.send(get(f"/bytes/{_BIG}"))
        await asyncio.sleep(0.05)
        target.terminate()
        await _whole(target, peer, "the answer", 0.01)


@TABLE.row(
    "a late pipelined request",
    "a pipelined request arrives after SIGTERM, while the answer of 3 MB before it is being read",
    ends=True,
)
async def late_request(target: Target) -> None:
    async with target.peer(window=1 << 14) as peer:
        await peer.send(get(f"/bytes/{_BIG}"))
        await asyncio.sleep(0.05)
        target.terminate()
        await asyncio.sleep(0.05)
        await peer.send(get("/bytes/10"))
        await _whole(target, peer, "the answer before the late request", 0.01)


@TABLE.row(
    "requests after the last answer",
    "SIGTERM while an answer of 3 MB is slow to come, with more requests pipelined behind it",
    ends=True,
)
async def behind_a_slow_answer(target: Target) -> None:
    async with target.peer(window=1 << 14) as peer:
        await peer.send(get(f"/slow/300/{_BIG}"))
        target.terminate()
        await peer.send(get("/bytes/10") * 20)
        await asyncio.sleep(0.35)
        await peer.send(get("/bytes/10") * 20)
        await _whole(target, peer, "the answer before the pipelined requests", 0.01)


@TABLE.row(
    "a request on its way",
    "a request for 3 MB arrives on a kept connection just after SIGTERM",
    ends=True,
)
async def on_its_way(target: Target) -> None:
    async with target.peer(window=1 << 14) as peer:
        await peer.send(get("/bytes/10"))
        await peer.status()
        target.terminate()
        await asyncio.sleep(0.05)
        await peer.send(get(f"/bytes/{_BIG}"))
        await _whole(target, peer, "the answer to the request on its way", 0.01)


@TABLE.row(
    "a pipelined request on its way",
    "two requests arrive on a kept connection just after SIGTERM, the second for 3 MB: if it is answered, then whole",
    ends=True,
)
async def pipelined_on_its_way(target: Target) -> None:
    async with target.peer(window=1 << 14) as peer:
        await peer.send(get(f"/slow/200/{_BIG}") + get(f"/bytes/{_BIG}"))
        await asyncio.sleep(0.1)
        target.terminate()
        await _whole(target, peer, "the first answer", 0.005)
        await _whole(target, peer, "the second answer", 0.005, may_lack=True)  # the first may say `Connection: close`

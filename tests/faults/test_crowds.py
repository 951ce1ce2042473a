"""Hundreds of clients that go away at once, wherever they are: nothing of them is left, and the next are served."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest

from gateway.app import Gateway
from tests.conftest import share
from tests.faults.client import Ask, once
from tests.faults.deployment import in_flight, running_gateway
from tests.faults.upstream import WHOLE, FaultyUpstream, settled
from tests.wire import PATIENCE

CROWD = share(600)
"""Clients at once."""
PATIENT = {"connect": 30, "header": 0, "idle": 0, "execute": 0}
LARGE = 100_000
PLAIN = Ask(b"next", size=LARGE)
RUN = b"/_plugins/_ml/agents/a/_execute"


def _reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


ENDS: dict[str, Callable[[socket.socket], None]] = {"reset": _reset, "close": socket.socket.close}
OTHERS = [(5, "close"), (1000, "reset")]
ASKS = {
    "before the answer": Ask(b"a", fault="stalls before the answer").raw(),
    "within the answer": Ask(b"b", fault="stalls within the body", size=LARGE).raw(),
    "within many answers": Ask(b"c", size=LARGE).raw() * 20,
    "within an execute's answer": Ask(b"d", b"POST", RUN, b"{}", "stalls within the body", LARGE).raw(),
    "within a request": Ask(b"e", b"POST", body=b"x" * LARGE).raw()[:-1],
}


async def _crowd(gateway: Gateway, raw: bytes) -> list[socket.socket]:
    """Clients that have asked, and of an answer take in no more than the first bytes."""
    loop = asyncio.get_running_loop()
    crowd = []
    for _ in range(CROWD):
        one = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(one, ("127.0.0.1", gateway.data_port))
        await loop.sock_sendall(one, raw)
        crowd.append(one)
    return crowd


async def _as_before(gateway: Gateway, upstream: FaultyUpstream, places: int) -> None:
    """No request is under way and each of the places for connections can be had."""
    assert await settled(lambda: in_flight(gateway) == 0)
    assert await settled(lambda: len(upstream.open) <= places)
    many = min(2 * places, CROWD)
    saw = await asyncio.wait_for(asyncio.gather(*(once(gateway.data_port, PLAIN) for _ in range(many))), PATIENCE)
    assert {one.verdict(PLAIN) for one in saw} == {WHOLE}
    assert len(upstream.open) <= places


@pytest.mark.parametrize(
    ("places", "end"),
    [(5, "reset"), (1000, "close"), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)],
)
@pytest.mark.parametrize("where", ASKS)
async def test_a_crowd_goes_away(where: str, places: int, end: str) -> None:
    upstream = FaultyUpstream()
    async with running_gateway(upstream, timeouts=PATIENT, connections=places) as gateway:
        crowd = await _crowd(gateway, ASKS[where])
        if where == "within many answers":  # of which some wait in the gateway for their client, and all may
            assert await settled(lambda: len(gateway._data._data_port.lifecycle.connections) == CROWD)
        else:
            assert await settled(lambda: in_flight(gateway) == CROWD)
        for one in crowd:
            ENDS[end](one)
        await _as_before(gateway, upstream, places)


@pytest.mark.parametrize("where", ["before the answer", "within the answer"])
async def test_those_who_wait_behind_a_crowd_are_served_when_it_goes(where: str) -> None:
    upstream = FaultyUpstream()
    async with running_gateway(upstream, timeouts=PATIENT, connections=5) as gateway:
        crowd = await _crowd(gateway, ASKS[where])
        waiting = [asyncio.create_task(once(gateway.data_port, PLAIN)) for _ in range(20)]
        assert await settled(lambda: in_flight(gateway) == CROWD + 20)
        assert not any(one.done() for one in waiting)
        for one in crowd:
            _reset(one)
        saw = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
        assert {one.verdict(PLAIN) for one in saw} == {WHOLE}
        await _as_before(gateway, upstream, 5)

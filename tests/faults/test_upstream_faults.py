"""Each way a cluster can fail: the client gets the right error, nothing is left over, the next request works."""

from __future__ import annotations

import asyncio
import dataclasses
import socket

import pytest

from tests.faults.client import Ask, once
from tests.faults.deployment import LONG, SHORT, be_patient, running_gateway
from tests.faults.upstream import BAD, CUT, FAULTS, LATE, WHOLE, FaultyUpstream, reset, settled
from tests.wire import PATIENCE, reserved

GET = Ask(b"g", size=4000)
POST = Ask(b"p", b"POST", body=b"0123456789" * 30_000, chunked=True, size=4000)
RUN = Ask(b"e", b"POST", b"/_plugins/_ml/agents/a/_execute", body=b'{"parameters":{}}', size=4000)
ASKS = [GET, POST, RUN]

QUICK = {"stalls before the answer", "stalls within the body"}
"""Of the faults that last, those that are tried by default."""
EACH = [
    pytest.param(name, marks=pytest.mark.slow) if fault.lasting and name not in QUICK else name
    for name, fault in FAULTS.items()
]


def _limits(fault: str) -> dict[str, float]:
    return SHORT if FAULTS[fault].lasting else LONG


@pytest.mark.parametrize("fault", EACH)
async def test_fault(fault: str) -> None:
    upstream = FaultyUpstream()
    asks = [dataclasses.replace(ask, fault=fault) for ask in ASKS]
    async with running_gateway(upstream, timeouts=_limits(fault)) as gateway:
        async with asyncio.timeout(PATIENCE):
            saw = await asyncio.gather(*(once(gateway.data_port, ask) for ask in asks))
        assert {one.verdict(ask) for one, ask in zip(saw, asks, strict=True)} <= FAULTS[fault].seen
        assert max(upstream.seen[POST.id], upstream.seen[RUN.id]) <= 1  # never sent again
        upstream.over.set()
        be_patient(gateway)
        if FAULTS[fault].after:
            assert await settled(lambda: not upstream.open)
        for ask in ASKS:
            assert (await once(gateway.data_port, ask)).verdict(ask) == WHOLE
        assert await settled(lambda: len(upstream.open) <= len(ASKS))  # only connections in order are kept


# A stop in the middle is a whole answer to a client of HTTP/1.0, unless the connection is reset.
SHORT_BODIES = [
    pytest.param(name, marks=pytest.mark.slow) if fault.lasting else name
    for name, fault in FAULTS.items()
    if CUT in fault.seen
]


@pytest.mark.parametrize("fault", SHORT_BODIES)
async def test_no_short_answer_looks_whole_to_an_old_client(fault: str) -> None:
    ask = Ask(b"o", fault=fault, version=b"1.0")
    async with running_gateway(FaultyUpstream(), timeouts=_limits(fault)) as gateway:
        saw = await once(gateway.data_port, ask)
    assert saw.verdict(ask) in (CUT, BAD, LATE)


async def test_refused_connection() -> None:
    ask = Ask(b"r")
    with reserved() as port:
        async with running_gateway(url=f"http://127.0.0.1:{port}") as gateway:
            assert (await once(gateway.data_port, ask)).verdict(ask) == BAD
            assert (await once(gateway.data_port, RUN)).verdict(RUN) == BAD


async def test_connections_closed_as_soon_as_they_are_there() -> None:
    upstream = FaultyUpstream(close_next=10)
    async with running_gateway(upstream) as gateway:
        assert (await once(gateway.data_port, POST)).verdict(POST) == BAD
        upstream.close_next = 10
        assert (await once(gateway.data_port, GET)).verdict(GET) == BAD
        upstream.close_next = 0
        assert (await once(gateway.data_port, GET)).verdict(GET) == WHOLE


async def test_no_request_waits_on_a_connection_that_was_reset_at_once() -> None:
    upstream = FaultyUpstream(close_next=1_000)
    forever = {"connect": 60, "header": 0, "idle": 0, "execute": 0}
    async with running_gateway(upstream, timeouts=forever) as gateway, asyncio.timeout(PATIENCE):
        for ask in ASKS:
            saw = await asyncio.gather(*(once(gateway.data_port, ask) for _ in range(100)))
            assert {one.verdict(ask) for one in saw} == {BAD}


@pytest.mark.parametrize("target", [POST.target, pytest.param(RUN.target, marks=pytest.mark.slow)])
async def test_a_big_upload_that_is_not_taken_in_ends(target: bytes) -> None:
    ask = dataclasses.replace(POST, target=target, body=b"0123456789" * 3_000_000, fault="stops reading")
    upstream = FaultyUpstream()
    async with running_gateway(upstream, timeouts=SHORT) as gateway:
        async with asyncio.timeout(PATIENCE):
            assert (await once(gateway.data_port, ask)).verdict(ask) == LATE
        upstream.over.set()


async def test_no_answer_to_connect() -> None:
    """A full backlog: the connection is never accepted."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fill = [socket.socket() for _ in range(3)]
        for one in fill:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        ask = Ask(b"x")
        async with running_gateway(url=f"http://127.0.0.1:{port}", timeouts={"connect": 0.1}) as gateway:
            assert (await once(gateway.data_port, ask)).verdict(ask) in (LATE, BAD)
        for one in fill:
            one.close()


async def test_bytes_that_nobody_asked_for_never_reach_the_next_client() -> None:
    upstream = FaultyUpstream()
    async with running_gateway(upstream) as gateway:
        for number in range(30):
            fault = "a second answer nobody asked for" if number % 2 else "more bytes than its length says"
            for ask in (Ask(b"%d" % number, fault=fault, size=number * 100), Ask(b"next%d" % number, size=50)):
                assert (await once(gateway.data_port, ask)).verdict(ask) == WHOLE


async def test_kept_connections_that_all_die_at_once_cost_no_safe_request() -> None:
    upstream = FaultyUpstream()
    async with running_gateway(upstream) as gateway:
        asks = [Ask(b"%d" % number, size=500) for number in range(20)]
        for _ in range(3):
            saw = await asyncio.gather(*(once(gateway.data_port, ask) for ask in asks))
            assert [one.verdict(ask) for one, ask in zip(saw, asks, strict=True)] == [WHOLE] * len(asks)
            for connection in list(upstream.open):
                reset(connection.transport)

"""A cluster of three nodes of which one dies: who can be helped is, and no agent runs twice."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from gateway.app import Gateway
from tests.faults.client import Ask, Client, once
from tests.faults.deployment import LONG, SHORT, running_gateway
from tests.faults.upstream import BAD, FAULTS, LATE, WHOLE, FaultyUpstream, settled
from tests.wire import send_request

LASTS = pytest.param("stalls before the answer", marks=pytest.mark.slow)
RUN = b"/_plugins/_ml/agents/a/_execute"
KINDS = {
    "get": lambda id: Ask(id, size=2000),
    "head": lambda id: Ask(id, b"HEAD", b"/i", size=2000),
    "bulk": lambda id: Ask(id, b"POST", b"/_bulk", b'{"index":{}}\n{}\n' * 50, size=500),
    "execute": lambda id: Ask(id, b"POST", RUN, b'{"parameters":{}}', size=500),
    "scroll": lambda id: Ask(id, b"GET", b"/_search/scroll?scroll_id=x", size=500),
}


def _three() -> list[FaultyUpstream]:
    return [FaultyUpstream(), FaultyUpstream(), FaultyUpstream()]


def _arrived(upstreams: list[FaultyUpstream], id: bytes) -> int:
    return sum(upstream.seen[id] for upstream in upstreams)


async def _load(gateway: Gateway, upstreams: list[FaultyUpstream], requests: int, at: int) -> dict[str, Counter[str]]:
    """Requests of every kind from sixteen clients; after `at` of them the first node dies. What each kind saw."""
    saw: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    numbers = iter(range(requests))

    async def client() -> None:
        own = Client(gateway.data_port)
        for number in numbers:
            if number == at:
                await upstreams[0].kill()
            kind = list(KINDS)[number % len(KINDS)]
            ask = KINDS[kind](b"%s-%d" % (kind.encode(), number))
            saw[kind][(await own.ask(ask)).verdict(ask)] += 1
        own.close()

    await asyncio.gather(*(client() for _ in range(16)))
    return saw


async def test_a_node_that_dies_under_load_costs_no_wrong_answer_and_repeats_nothing() -> None:
    upstreams = _three()
    async with running_gateway(*upstreams, health={"interval": 0}) as gateway:
        saw = await _load(gateway, upstreams, 3_000, at=1_000)
        assert saw["get"] == saw["head"] == {WHOLE: 600}
        for kind in ("bulk", "execute", "scroll"):  # at most those under way at the node, and reported so
            assert set(saw[kind]) <= {WHOLE, BAD}
            assert saw[kind][BAD] <= 16
        seen = sum((upstream.seen for upstream in upstreams), Counter())
        assert not [id for id, times in seen.items() if times > 1 and not id.startswith((b"get", b"head"))]
        assert gateway.upstream.nodes.available() == 2
        assert all(upstream.seen.total() > 500 for upstream in upstreams[1:])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_that_refuses_connections_is_passed_over(kind: str) -> None:
    """Nothing was sent to it, so the next node may have whatever it is."""
    upstreams = _three()
    async with running_gateway(*upstreams, health={"interval": 0}, ejection={"failures": 0}) as gateway:
        await upstreams[0].kill()
        await upstreams[1].kill()
        for number in range(4):
            ask = KINDS[kind](b"%d" % number)
            assert (await once(gateway.data_port, ask)).verdict(ask) == WHOLE
            assert _arrived(upstreams, ask.id) == 1


@pytest.mark.parametrize("fault", ["resets without an answer", "garbage", LASTS])
async def test_an_execute_that_got_no_answer_is_not_sent_again(fault: str) -> None:
    upstreams, limits = _three(), SHORT if FAULTS[fault].lasting else LONG
    async with running_gateway(*upstreams, health={"interval": 0}, timeouts=limits) as gateway:
        for number in range(3):
            ask = Ask(b"%d" % number, b"POST", RUN, b"{}", fault)
            assert (await once(gateway.data_port, ask)).verdict(ask) in (BAD, LATE)
            assert _arrived(upstreams, ask.id) == 1


@pytest.mark.parametrize(("kind", "expected"), [("get", WHOLE), ("head", WHOLE), ("bulk", BAD), ("scroll", BAD)])
async def test_a_node_that_loses_requests_loses_no_safe_one(kind: str, expected: str) -> None:
    """Each connection to it is reset as soon as it is there: before the request is sent on it, or just after."""
    upstreams = _three()
    upstreams[0].close_next = 1_000
    async with running_gateway(*upstreams, health={"interval": 0}, ejection={"failures": 0}) as gateway:
        for number in range(9):
            ask = KINDS[kind](b"%d" % number)
            verdict = (await once(gateway.data_port, ask)).verdict(ask)
            assert verdict in (expected, WHOLE)
            assert _arrived(upstreams, ask.id) == (verdict == WHOLE)
        assert upstreams[0].close_next < 1_000


async def test_with_no_node_left_the_client_is_told_and_served_again_when_one_is_back() -> None:
    upstreams = _three()
    ask = KINDS["get"](b"g")
    async with running_gateway(*upstreams, health={"interval": 0}) as gateway:
        for upstream in upstreams:
            await upstream.kill()
        for _ in range(5):
            assert (await once(gateway.data_port, ask)).verdict(ask) == BAD
        back = FaultyUpstream(port=upstreams[2].port)
        async with back:
            assert (await once(gateway.data_port, ask)).verdict(ask) == WHOLE


async def test_probes_take_a_dead_node_out_before_any_request_meets_it() -> None:
    upstreams = _three()
    async with running_gateway(*upstreams, health={"interval": 0.02, "failures": 2, "successes": 1}) as gateway:
        nodes = gateway.upstream.nodes
        await upstreams[1].kill()
        assert await settled(lambda: nodes.available() == 2)
        async with FaultyUpstream(port=upstreams[1].port):
            assert await settled(lambda: nodes.available() == 3)
        assert await settled(lambda: nodes.available() == 2)


async def test_readiness_holds_as_long_as_one_node_answers() -> None:
    upstreams = _three()
    ready = b"GET /health/ready HTTP/1.1\r\nHost: a\r\n\r\n"
    async with running_gateway(*upstreams, health={"interval": 0}) as gateway:
        await upstreams[0].kill()
        await upstreams[1].kill()
        assert msgspec.json.decode((await send_request(gateway.admin_port, ready)).body) == {"status": "ready"}

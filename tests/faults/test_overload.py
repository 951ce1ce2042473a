"""More requests than may run: some wait, the others are refused with Retry-After, and no slot is ever lost."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import msgspec
import pytest

from gateway.app import Gateway
from gateway.proxy.admission import Admission
from tests.faults.client import Ask, Client, once
from tests.faults.deployment import running_gateway
from tests.faults.mix import Mix
from tests.faults.upstream import WHOLE, FaultyUpstream, reset, settled
from tests.wire import PATIENCE, read_message, send_request

PATIENT = {"connect": 60, "header": 0, "idle": 0, "execute": 0}
HELD = Ask(b"held", fault="stalls before the answer")
RUN = Ask(b"run", b"POST", b"/_plugins/_ml/agents/a/_execute", b'{"a":1}' * 50_000, size=300)
PLAIN = Ask(b"plain", size=300)
BULK = Ask(b"bulk", b"POST", b"/_bulk", b'{"index":{}}\n{}\n' * 50_000, chunked=True, size=300)


def _admission(**settings: Any) -> dict[str, Any]:
    return {"admission": settings}


def _desk(gateway: Gateway) -> Admission:
    return gateway._data._data_port._admission


async def _hold(port: int, count: int, upstream: FaultyUpstream) -> list[Client]:
    """So many requests that run and don't end."""
    clients = [Client(port) for _ in range(count)]
    for client in clients:
        _, writer = await client.connected()
        writer.write(HELD.raw())
    assert await settled(lambda: upstream.seen[HELD.id] == count)
    return clients


@pytest.mark.parametrize(
    ("over", "status", "kind"),
    [({"total": 2, "queue": 0}, b"503", "Overloaded"), ({"per_client": 2, "queue": 0}, b"429", "TooManyRequests")],
    ids=["total", "per client"],
)
@pytest.mark.parametrize("ask", [PLAIN, BULK, RUN], ids=["get", "bulk", "execute"])
async def test_one_too_many_is_told_when_to_come_back(ask: Ask, over: dict[str, int], status: bytes, kind: str) -> None:
    upstream = FaultyUpstream()
    async with running_gateway(upstream, over=_admission(**over, retry_after=3), timeouts=PATIENT) as gateway:
        clients = await _hold(gateway.data_port, 2, upstream)
        answer = await send_request(gateway.data_port, ask.raw())
        assert answer.line.split()[1] == status
        assert answer.values("retry-after") == [b"3"]
        document = msgspec.json.decode(answer.body)
        assert (document["status"], document["error"]["type"]) == (int(status), kind)
        assert upstream.seen[ask.id] == 0
        clients.pop().close()  # a client that goes away frees its place
        assert await settled(lambda: _desk(gateway).running == 1)
        assert (await once(gateway.data_port, ask)).verdict(ask) == WHOLE
        for client in clients:
            client.close()


@pytest.mark.parametrize("ask", [PLAIN, BULK, RUN], ids=["get", "bulk", "execute"])
async def test_whoever_waits_gets_its_turn_whole(ask: Ask) -> None:
    upstream = FaultyUpstream()
    over = _admission(total=1, queue=10, queue_seconds=0)
    async with running_gateway(upstream, over=over, timeouts=PATIENT) as gateway:
        [client] = await _hold(gateway.data_port, 1, upstream)
        asks = [dataclasses.replace(ask, id=b"w%d" % number) for number in range(5)]
        waiting = asyncio.gather(*(once(gateway.data_port, one) for one in asks))
        assert await settled(lambda: _desk(gateway).waiting == 5)
        assert set(upstream.seen) == {HELD.id}
        client.close()
        saw = await asyncio.wait_for(waiting, PATIENCE)
        assert [one.verdict(its) for one, its in zip(saw, asks, strict=True)] == [WHOLE] * 5


async def test_the_body_of_a_request_that_waited_is_read_at_once() -> None:
    upstream = FaultyUpstream()
    over = _admission(total=1, queue=1, queue_seconds=0)
    async with running_gateway(upstream, over=over, timeouts=PATIENT) as gateway:
        [client] = await _hold(gateway.data_port, 1, upstream)
        head, end, body = BULK.raw().partition(b"\r\n\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(head + end)
        assert await settled(lambda: _desk(gateway).waiting == 1)
        [waiting] = [one for one in gateway._data._data_port.lifecycle.connections if not one.transport.is_reading()]
        client.close()
        while _desk(gateway).waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert waiting.transport.is_reading()
        writer.write(body)
        assert (await read_message(reader)).line == b"HTTP/1.1 200 OK"
        writer.close()


async def test_waiting_ends_with_its_client() -> None:
    upstream = FaultyUpstream()
    over = _admission(total=1, queue=2, queue_seconds=0)
    async with running_gateway(upstream, over=over, timeouts=PATIENT) as gateway:
        [client] = await _hold(gateway.data_port, 1, upstream)
        for _ in range(5):  # more than the queue is long
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
            writer.write(PLAIN.raw())
            assert await settled(lambda: _desk(gateway).waiting == 1)
            reset(writer.transport)
            assert await settled(lambda: _desk(gateway).waiting == 0)
        client.close()
        assert await settled(lambda: _desk(gateway).running == 0)
        assert (await once(gateway.data_port, PLAIN)).verdict(PLAIN) == WHOLE


async def test_waiting_ends_with_a_refusal_in_the_end() -> None:
    upstream = FaultyUpstream()
    over = _admission(total=1, queue=2, queue_seconds=0.1)
    async with running_gateway(upstream, over=over, timeouts=PATIENT) as gateway:
        [client] = await _hold(gateway.data_port, 1, upstream)
        assert (await once(gateway.data_port, PLAIN)).status == 503
        client.close()
        assert await settled(lambda: _desk(gateway).running == 0)
        assert (await once(gateway.data_port, PLAIN)).verdict(PLAIN) == WHOLE


async def test_clients_are_told_apart_by_the_header_that_is_configured() -> None:
    upstream = FaultyUpstream()
    over = _admission(per_client=2, queue=0, client_header="X-Client")
    named = b"GET / HTTP/1.1\r\nHost: c\r\nx-client: %b\r\nX-Fault: stalls before the answer\r\n\r\n"
    async with running_gateway(upstream, over=over, timeouts=PATIENT) as gateway:
        writers = []
        for _ in range(2):
            writers.append((await asyncio.open_connection("127.0.0.1", gateway.data_port))[1])
            writers[-1].write(named % b"a")
        assert await settled(lambda: upstream.seen[b""] == 2)
        assert (await send_request(gateway.data_port, named % b"a")).line.split()[1] == b"429"
        other = b"GET / HTTP/1.1\r\nHost: c\r\nX-Client: b\r\n\r\n"
        assert (await send_request(gateway.data_port, other)).line.split()[1] == b"200"
        for writer in writers:
            writer.transport.abort()


@pytest.mark.slow
async def test_no_place_is_lost_whatever_becomes_of_requests() -> None:
    upstream = FaultyUpstream()
    limits = {"connect": 60, "header": 5, "idle": 5, "execute": 5}
    over = _admission(total=8, per_client=24, queue=100, queue_seconds=0)
    async with running_gateway(upstream, over=over, timeouts=limits) as gateway:
        mix = Mix(gateway.data_port, upstream, share=0.2)
        await mix.run(1_000)
        assert mix.wrong == []
        admission = _desk(gateway)
        assert await settled(lambda: (admission.running, admission.waiting, admission._clients) == (0, 0, {}))

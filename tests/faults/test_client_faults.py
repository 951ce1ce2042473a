"""Each way a client can fail: the cluster is left alone at once, nothing is left over, the next client is served."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import msgspec
import pytest

from gateway.app import Gateway
from gateway.upstream.outbound import NO_DEADLINE
from tests.faults.client import Ask, once, read
from tests.faults.deployment import UNLIMITED, be_patient, expire, running_gateway, waited_for
from tests.faults.upstream import WHOLE, FaultyUpstream, reset, settled
from tests.wire import PATIENCE

BODY = b"0123456789" * 20_000
RUN = b"/_plugins/_ml/agents/a/_execute"
OVER = {"listen": {"data_port": 0, "admin_port": 0, "timeouts": {**UNLIMITED, "head": 1000, "body": 1000}}}
SILENT = {"listen": {"data_port": 0, "admin_port": 0, "timeouts": {"head": 0.06}}}
SLOW_READER = {"listen": {"data_port": 0, "admin_port": 0, "timeouts": {"send": 0.1}}}
PATIENT = {"connect": 60, "header": 0, "idle": 0, "execute": 0}
PLAIN = Ask(b"next", size=300)

SENT = {
    "some of the head": Ask(b"h", b"POST", body=BODY).raw()[:20],
    "the head alone": Ask(b"a", b"POST", body=BODY).head(),
    "some of the body": Ask(b"b", b"POST", body=BODY).raw()[:-7],
    "some chunks": Ask(b"c", b"POST", body=BODY, chunked=True).head() + b"3\r\nabc\r\n",
    "some of a chunk": Ask(b"d", b"POST", body=BODY, chunked=True).head() + b"9\r\nabc",
    "all but the last line end": Ask(b"e", b"POST", body=BODY, chunked=True).raw()[:-2],
    "some of an execute": Ask(b"x", b"POST", RUN, body=BODY).raw()[:-7],
}


async def _opened(gateway: Gateway, raw: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
    writer.write(raw)
    await writer.drain()
    return reader, writer


async def _begun(gateway: Gateway) -> None:
    """Wait until the gateway has something of a request."""
    assert await settled(lambda: any(not one.idle for one in gateway._data._data_port.lifecycle.connections))


async def _served(gateway: Gateway, upstream: FaultyUpstream) -> None:
    """The next client is, and of the one before nothing is left at the cluster but what is in order."""
    assert (await once(gateway.data_port, PLAIN)).verdict(PLAIN) == WHOLE
    assert await settled(lambda: len(upstream.open) <= 1)
    assert set(upstream.seen) == {PLAIN.id}


ENDS: dict[str, Callable[[asyncio.Transport], None]] = {"reset": reset, "close": lambda transport: transport.close()}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("sent", SENT)
async def test_client_goes_away_while_it_sends(sent: str, end: str) -> None:
    upstream = FaultyUpstream()
    async with running_gateway(upstream) as gateway:
        _, writer = await _opened(gateway, SENT[sent])
        await _begun(gateway)
        ENDS[end](writer.transport)
        await _served(gateway, upstream)


@pytest.mark.parametrize("sent", SENT)
async def test_client_stalls_while_it_sends(sent: str) -> None:
    upstream = FaultyUpstream()
    async with running_gateway(upstream, over=OVER) as gateway:
        reader, writer = await _opened(gateway, SENT[sent])
        expire(gateway, await waited_for(gateway, idle=False))
        async with asyncio.timeout(PATIENCE):
            saw = await read(reader)
            assert (saw.status, msgspec.json.decode(saw.body)["error"]["type"]) == (408, "RequestTimeout")
            assert await reader.read() == b""
        writer.close()
        be_patient(gateway)
        await _served(gateway, upstream)


async def test_a_slow_upload_outlasts_the_time_an_idle_connection_is_kept() -> None:
    """The pool's deadline is the only one there can be, and counts while the connection is idle."""
    upstream = FaultyUpstream()
    ask = Ask(b"slow", b"POST", b"/_bulk", b"x" * 50)
    async with running_gateway(upstream, keepalive=60, timeouts=PATIENT) as gateway:
        assert (await once(gateway.data_port, PLAIN)).verdict(PLAIN) == WHOLE
        [idle] = gateway.upstream._connections
        assert idle.deadline < NO_DEADLINE
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(ask.head())
        assert await settled(lambda: idle.deadline == NO_DEADLINE)
        for byte in ask.body:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
            assert idle.deadline == NO_DEADLINE
        assert (await asyncio.wait_for(read(reader), PATIENCE)).verdict(ask) == WHOLE
        writer.close()
    assert upstream.accepted == 1


async def test_client_that_never_says_a_word_is_let_go() -> None:
    async with running_gateway(FaultyUpstream(), over=SILENT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()


async def test_client_that_does_not_read_its_answer_is_cut() -> None:
    ask = Ask(b"big", size=30_000_000)
    upstream = FaultyUpstream()
    async with running_gateway(upstream, over=SLOW_READER, timeouts=PATIENT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port, limit=1024)
        writer.write(ask.raw())
        assert await settled(lambda: upstream.seen[ask.id] == 1)
        assert await settled(lambda: not upstream.open)
        saw = await asyncio.wait_for(read(reader), PATIENCE)
        assert not saw.whole
        writer.transport.abort()
        assert (await once(gateway.data_port, PLAIN)).verdict(PLAIN) == WHOLE


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("fault", ["stalls before the answer", "stalls within the body", ""])
async def test_client_goes_away_before_its_answer_is_there(fault: str, end: str) -> None:
    """An empty fault is a big answer that is on its way."""
    upstream = FaultyUpstream()
    async with running_gateway(upstream, timeouts=PATIENT) as gateway:
        for ask in (Ask(b"g", size=15_000_000), Ask(b"r", b"POST", RUN, b"{}", size=15_000_000)):
            _, writer = await _opened(gateway, dataclasses.replace(ask, fault=fault).raw())
            assert await settled(lambda id=ask.id: upstream.seen[id] == 1)
            ENDS[end](writer.transport)
            assert await settled(lambda: not upstream.open)
        assert (await once(gateway.data_port, PLAIN)).verdict(PLAIN) == WHOLE


async def test_a_pipeline_that_is_dropped_ends_with_the_request_under_way() -> None:
    upstream = FaultyUpstream()
    async with running_gateway(upstream) as gateway:
        raw = dataclasses.replace(PLAIN, id=b"first", fault="slow bytes").raw() + PLAIN.raw() * 50
        _, writer = await _opened(gateway, raw)
        await _begun(gateway)
        reset(writer.transport)
        assert await settled(lambda: not upstream.open)
        assert upstream.seen[PLAIN.id] <= 1

"""How bytes flow between the two connections: in time, held back, cut short, in other protocols."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from gateway.ports import Forward
from gateway.upstream.outbound import NO_DEADLINE
from tests.conftest import StartGateway
from tests.faults.deployment import UNLIMITED, expire, held_back, waited_for
from tests.faults.upstream import settled
from tests.proxy.use_case import UseCase
from tests.wire import (
    OK,
    PATIENCE,
    RecordingUpstream,
    Script,
    delivered,
    read_message,
    send_request,
    send_until_closed,
)

GET = b"GET / HTTP/1.1\r\nHost: c\r\n\r\n"
EXECUTE = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\n\r\n{}"
BIG = 30_000_000


def _saying(raw: bytes) -> Script:
    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(raw)
        await reader.read()

    return script


async def test_websocket_is_relayed_both_ways_until_one_side_ends(start_gateway: StartGateway) -> None:
    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream.requests.append(await read_message(reader))
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
        assert await reader.readexactly(4) == b"\x81\x00ab"
        writer.write(b"\x88\x00")
        assert await reader.read() == b"bye"
        upstream.gone.set()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(
            b"GET /ws HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head == b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert await reader.readexactly(5) == b"hello"
        writer.write(b"\x81\x00ab")
        assert await reader.readexactly(2) == b"\x88\x00"
        writer.write(b"bye")
        writer.close()
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)
        [request] = upstream.requests
        assert (request.values("upgrade"), request.values("connection")) == ([b"websocket"], [b"Upgrade"])
        assert request.values("sec-websocket-key") == [b"k"]


async def test_tunnel_that_the_cluster_ends_is_ended(start_gateway: StartGateway) -> None:
    raw = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nlast"

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(raw)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        ask = b"GET /ws HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert await asyncio.wait_for(send_until_closed(gateway.data_port, ask), PATIENCE) == raw


async def test_tunnel_that_both_sides_have_ended_is_closed_at_once(start_gateway: StartGateway) -> None:
    raw = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(raw)
        await reader.read()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(b"GET /ws HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        await reader.readexactly(len(raw))
        [client] = gateway._data._data_port.lifecycle.connections
        writer.write_eof()
        assert await reader.read() == b""
        assert client.transport.is_closing()
        writer.close()


async def test_upgrade_that_is_declined_is_an_answer_like_any_other(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        ask = b"GET /ws HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        for _ in range(2):
            writer.write(ask)
            assert (await read_message(reader)).body == b"ok"
        writer.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"


async def test_trailers_reach_the_client(start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=_saying(CHUNKED)) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(GET)
        assert await reader.readexactly(len(CHUNKED)) == CHUNKED
        writer.close()


async def test_trailers_reach_the_cluster_and_extensions_do_not(start_gateway: StartGateway) -> None:
    came = bytearray()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.extend(await reader.readuntil(b"X-T: 1\r\n\r\n"))
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = b"POST / HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n3;a=1\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"
        assert (await send_request(gateway.data_port, raw)).body == b"ok"
    assert came.endswith(b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n")


async def test_chunks_are_undone_for_http_1_0(start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=_saying(CHUNKED)) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        came = await send_until_closed(gateway.data_port, b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert came == b"HTTP/1.1 200 OK\r\nTrailer: X-T\r\n\r\nabc"


async def test_own_answers_end_the_connection_of_an_http_1_0_client(start_gateway: StartGateway) -> None:
    """They do not say that it stays open, and such a client would wait for its end."""
    for ask in (EXECUTE, b"OPTIONS / HTTP/1.1\r\nMax-Forwards: 0\r\n\r\n"):
        gateway = await start_gateway("http://127.0.0.1:1", UseCase(), {"limits": {"body": 1}})
        raw = ask.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n")
        came = await asyncio.wait_for(send_until_closed(gateway.data_port, raw), PATIENCE)
        assert b"\r\nConnection: close\r\n" in came


async def test_interim_answers_are_not_for_http_1_0(start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=_saying(b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK)) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        came = await send_until_closed(gateway.data_port, b"GET / HTTP/1.0\r\n\r\n")
    assert came == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def closing(request: bytes) -> bytes:
    """The request with `Connection: close`."""
    return request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


_HINT = b"HTTP/1.1 103 Early Hints\r\n\r\n"


@pytest.mark.parametrize("hint", [_HINT, b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n"])
async def test_five_interim_answers_are_read_and_no_more(hint: bytes, start_gateway: StartGateway) -> None:
    """For one request: the next one on the connection has five of its own."""

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for count in (5, 5, 6):
            await read_message(reader)
            writer.write(hint * count + OK)
        await reader.read()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        came = await send_until_closed(gateway.data_port, GET * 2 + closing(GET))
        assert upstream.connections == 1
    assert came.startswith((hint * 5 + OK) * 2 + hint * 5 + b"HTTP/1.1 502 ")
    assert b"more than five interim responses" in came


@pytest.mark.parametrize("request_", [GET, EXECUTE], ids=["forwarded", "an agent's run"])
async def test_endless_interim_answers_are_a_502_and_nobody_waits(request_: bytes, start_gateway: StartGateway) -> None:
    """The cluster never stops. Meanwhile another client is answered."""

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/other" in (await read_message(reader)).line:
            writer.write(OK)
            await reader.read()
            return
        with contextlib.suppress(ConnectionError, RuntimeError):  # uvloop's closed transport raises the latter
            while not writer.is_closing():
                writer.write(_HINT * 5_000)
                await writer.drain()
                await asyncio.sleep(0)
        upstream.gone.set()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward()))
        attack = asyncio.create_task(send_until_closed(gateway.data_port, closing(request_)))
        other = await asyncio.wait_for(send_request(gateway.data_port, GET.replace(b"/", b"/other", 1)), PATIENCE)
        assert other.body == b"ok"
        came = await asyncio.wait_for(attack, PATIENCE)
        assert came.removeprefix(_HINT * 5).startswith(b"HTTP/1.1 502 ")
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)


async def test_pipeline_is_answered_in_order_up_to_the_first_fault(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        asks = b"".join(b"GET /%d HTTP/1.1\r\nHost: c\r\n\r\n" % number for number in range(2000))
        came = await send_until_closed(gateway.data_port, asks + b"GET / HTTP/1.1\r\n\r\n" + GET)
        assert came.count(b"HTTP/1.1 200 OK") == 2000
        assert came.count(b"HTTP/1.1 400 Bad Request") == 1
        assert [one.line for one in upstream.requests] == [b"GET /%d HTTP/1.1" % number for number in range(2000)]


LATE = {
    "nothing": (b"", "head", b"", "408"),
    "a part of a head": (b"GET / HTTP/1.1\r\nHo", "head", b"HTTP/1.1 408 ", ""),
    "a part of a body": (EXECUTE[:-1], "body", b"HTTP/1.1 408 ", ""),
    "a part of a body that passes": (
        b"PUT /i HTTP/1.1\r\nHost: c\r\nContent-Length: 9\r\n\r\nabc", "body", b"HTTP/1.1 408 ", "",
    ),
    "no second request": (GET, "keepalive", b"HTTP/1.1 200 OK", "408"),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "limit", "begin", "never"), LATE.values(), ids=LATE.keys())
async def test_clients_that_stop_sending_are_notwaited_for(
    raw: bytes, limit: str, begin: bytes, never: str, start_gateway: StartGateway
) -> None:
    async with RecordingUpstream() as upstream:
        over = {"listen": {"timeouts": {**UNLIMITED, limit: 1000}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        answer = asyncio.create_task(send_until_closed(gateway.data_port, raw))
        expire(gateway, await waited_for(gateway, idle=bool(never)))
        came = await asyncio.wait_for(answer, PATIENCE)
        assert came.startswith(begin)
        assert not never or never.encode() not in came
        assert [one.line for one in upstream.requests] == ([b"GET / HTTP/1.1"] if raw is GET else [])


async def test_head_that_trickles_in_is_notwaited_for(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        over = {"listen": {"timeouts": {**UNLIMITED, "head": 1000}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(b"G")
        client = await waited_for(gateway, idle=False)
        deadline = client.deadline
        for byte in b"ET / HTTP/1.1\r\nX-A: aaaa":
            writer.write(b"%c" % byte)
            await delivered(writer.transport)
            assert client.deadline == deadline
        expire(gateway, client)
        assert (await reader.read(13)) == b"HTTP/1.1 408 "
        writer.close()


async def test_client_that_stops_reading_is_cut_and_holds_the_cluster_back(start_gateway: StartGateway) -> None:
    sent = 0

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_message(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BIG)
        try:
            while sent < BIG:
                writer.write(b"x" * 100_000)
                await writer.drain()
                sent += 100_000
        except ConnectionError:
            upstream.gone.set()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"listen": {"timeouts": {"send": 0.3}}})
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port, limit=1)
        writer.write(GET)
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)
        assert sent < BIG - 1_000_000
        writer.transport.abort()


async def test_cluster_that_stops_reading_holds_the_client_back(start_gateway: StartGateway) -> None:
    go_on = asyncio.Event()
    got = 0

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await reader.readuntil(b"\r\n\r\n")
        await go_on.wait()
        while got < BIG:
            got += len(await reader.read(1_000_000))
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(b"PUT /i HTTP/1.1\r\nHost: c\r\nContent-Length: %d\r\n\r\n" % BIG)
        writer.write(b"x" * BIG)
        sending = asyncio.create_task(writer.drain())
        assert await settled(lambda: held_back(gateway) == 1)
        assert not sending.done()
        go_on.set()
        await sending
        assert (await read_message(reader)).body == b"ok"
        assert got == BIG
        writer.close()


async def test_cluster_that_takes_no_more_than_the_first_piece_holds_the_client_back(
    start_gateway: StartGateway,
) -> None:
    end = asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(OK)
        await end.wait()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(GET)
        await read_message(reader)
        [client] = gateway._data._data_port.lifecycle.connections
        [connection] = gateway.upstream._connections
        _buffer_size(client.transport, socket.SO_RCVBUF, 1_000_000)  # one read has more than the cluster takes
        _buffer_size(connection.transport, socket.SO_SNDBUF, 4096)
        writer.write(b"PUT /i HTTP/1.1\r\nHost: c\r\nContent-Length: %d\r\n\r\n" % BIG + b"x" * 3_000_000)
        while not connection.stalled:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not client.transport.is_reading()
        end.set()
        writer.transport.abort()


def _buffer_size(transport: asyncio.Transport, option: int, size: int) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, size)


@pytest.mark.parametrize("last", [b"", GET.replace(b"/", b"/last", 1)])
async def test_client_that_does_not_read_gets_no_further_responses(last: bytes, start_gateway: StartGateway) -> None:
    """They would pile up in memory."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000
    async with RecordingUpstream([answer]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port, limit=1024)
        writer.write(GET)
        await read_message(reader)
        [client] = gateway._data._data_port.lifecycle.connections
        sent = 1
        while not client.stalled:
            writer.write(GET)
            sent += 1
            while not client.stalled and (len(upstream.requests) < sent or client.exchange is not None):  # noqa: ASYNC110
                await asyncio.sleep(0)
        writer.write(last)
        await delivered(writer.transport)
        assert client.stalled
        assert len(upstream.requests) == sent
        for _ in range(sent if last else sent - 1):
            assert len((await read_message(reader)).body) == 50_000
        assert len(upstream.requests) == sent + bool(last)
        assert not client.stalled
        assert client.deadline < NO_DEADLINE  # of the next request
        writer.close()


@pytest.mark.parametrize("raw", [GET, EXECUTE, EXECUTE.replace(b"/_execute", b"/_execute/stream")])
async def test_client_that_leaves_within_an_answer_ends_the_upstream_request(
    raw: bytes, start_gateway: StartGateway
) -> None:
    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        upstream.gone.set()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(raw)
        await reader.readuntil(b"abc\r\n")
        writer.close()
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)


async def test_client_that_leaves_while_the_use_case_thinks_ends_that(start_gateway: StartGateway) -> None:
    thinking, cancelled = asyncio.Event(), asyncio.Event()

    class Slow(UseCase):
        async def execute(self, call: object) -> Forward:
            thinking.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return Forward()

    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, Slow())
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(EXECUTE)
        await thinking.wait()
        writer.transport.abort()
        await asyncio.wait_for(cancelled.wait(), PATIENCE)
        assert not upstream.requests


async def test_answers_before_the_request_is_whole_end_the_connection(start_gateway: StartGateway) -> None:
    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
        await reader.read()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = b"PUT /i HTTP/1.1\r\nHost: c\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100_000
        came = await send_until_closed(gateway.data_port, raw)
    assert came == b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"

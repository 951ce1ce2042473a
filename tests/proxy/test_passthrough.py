"""Streams, malformed requests and the end of the gateway, in front of an upstream of our own.

That every message passes byte for byte: `tests/exactness`.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.conftest import StartGateway
from tests.proxy.use_case import UseCase
from tests.wire import (
    OK,
    PATIENCE,
    RecordingUpstream,
    read_message,
    refuses_connections,
    send_request,
    send_until_closed,
)


def _request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((line, b"Host: client.example", *headers, b"", body))


def _post(*headers: bytes, body: bytes = b"") -> bytes:
    return _request(b"POST /i/_doc HTTP/1.1", *headers, body=body)


async def test_head_keeps_the_length_and_the_connection(start_gateway: StartGateway) -> None:
    async with RecordingUpstream([b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        for _ in range(3):
            writer.write(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await read_message(reader, bodyless=True)
            assert answer.values("content-length") == [b"1234"]
        writer.close()
        assert upstream.connections == 1


async def test_headers_named_by_connection_end_here_but_never_those_that_frame(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        await send_request(
            gateway.data_port,
            _post(b"Connection: X-Hop, Content-Length, host", b"X-Hop: 1", b"Content-Length: 3", body=b"abc"),
        )
        [received] = upstream.requests
    assert received.headers == ((b"Host", b"127.0.0.1:%d" % upstream.port), (b"Content-Length", b"3"))


async def test_stream_reaches_the_client_piece_by_piece(start_gateway: StartGateway) -> None:
    go_on = asyncio.Event()

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
        await go_on.wait()
        writer.write(b"0\r\n\r\n")

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(_request(b"GET /stream HTTP/1.1"))
        await reader.readuntil(b"9\r\ndata: 1\n\n\r\n")
        go_on.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"
        writer.close()


async def test_request_body_goes_on_while_it_comes(start_gateway: StartGateway) -> None:
    first = asyncio.Event()

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(3) == b"abc"
        first.set()
        assert await reader.readexactly(3) == b"def"
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(_post(b"Content-Length: 6", body=b"abc"))
        await first.wait()
        writer.write(b"def")
        assert (await read_message(reader)).body == b"ok"
        writer.close()


async def test_client_that_goes_away_ends_the_upstream_request(start_gateway: StartGateway) -> None:
    arrived = asyncio.Event()

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()
        upstream.gone.set()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(_request(b"GET /slow HTTP/1.1"))
        await arrived.wait()
        writer.transport.abort()
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)


MALFORMED = {
    "no request": b"\x00\x01\x02\r\n\r\n",
    "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "bad version": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "no version": b"GET /\r\nHost: x\r\n\r\n",
    "space in path": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "control in header": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: a\x00b\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\nHost: x\r\nX-A : 1\r\n\r\n",
    "length and chunked": b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "length no number": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "bad chunk size": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "other coding": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "tunnel": b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "endless header": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n",
    "endless path": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "too many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: 1\r\n" * 2000 + b"\r\n",
}
REFUSALS = {
    MALFORMED["other coding"]: (501, "NotImplemented"),
    MALFORMED["tunnel"]: (501, "NotImplemented"),
    MALFORMED["bad version"]: (505, "VersionNotSupported"),
    MALFORMED["endless path"]: (414, "TargetTooLong"),
    MALFORMED["endless header"]: (431, "HeadTooLarge"),
    MALFORMED["too many headers"]: (431, "HeadTooLarge"),
}
"""Statuses other than 400."""


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
async def test_what_is_no_http_is_refused_in_the_gateways_shape(raw: bytes, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        came = await send_until_closed(gateway.data_port, raw)
        status, kind = REFUSALS.get(raw, (400, "ValidationException"))
        assert came.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(came.partition(b"\r\n\r\n")[2])["error"]["type"] == kind
        assert not upstream.requests
        assert (await send_request(gateway.data_port, _request(b"GET / HTTP/1.1"))).body == b"ok"


async def test_chunked_body_that_turns_bad_on_its_way_cuts_the_upstream_request(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(_post(b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n"))
        while not upstream.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        writer.write(b"nonsense\r\n")
        answer = await read_message(reader, to_end=True)
        assert answer.line.startswith(b"HTTP/1.1 400 ")
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)
        assert not upstream.requests
        writer.close()


async def test_stop_lets_requests_in_flight_finish_and_accepts_no_more(start_gateway: StartGateway) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await go_on.wait()
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"listen": {"shutdown_seconds": PATIENCE}})
        answer = asyncio.create_task(send_request(gateway.data_port, _request(b"GET /slow HTTP/1.1")))
        await arrived.wait()
        stopping = asyncio.create_task(gateway.stop())
        await refuses_connections(gateway.data_port)
        go_on.set()
        assert (await answer).body == b"ok"
        await stopping


async def test_stop_ends_connections_whose_response_had_begun(http: str, start_gateway: StartGateway) -> None:
    if http == "aiohttp":
        pytest.skip("aiohttp closes idle connections after all others")
    go_on = asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        await go_on.wait()
        writer.write(b"cd")

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"listen": {"shutdown_seconds": PATIENCE}})
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(_request(b"GET /slow HTTP/1.1"))
        await reader.readuntil(b"ab")
        stopping = asyncio.create_task(gateway.stop())
        assert await idle.read() == b""
        go_on.set()
        assert await reader.read() == b"cd"
        writer.close()
        idle_writer.close()
        await stopping

"""What the cluster receives and what the client gets, byte for byte but for what ends at each hop."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.conftest import StartGateway
from tests.proxy.use_case import UseCase
from tests.wire import (
    OK,
    PATIENCE,
    Parsed,
    RecordingUpstream,
    read_message,
    refuses_connections,
    send_request,
    send_until_closed,
)

HOST = b"Host: client.example\r\n"


def _request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((line, b"Host: client.example", *headers, b"", body))


def _post(*headers: bytes, body: bytes = b"") -> bytes:
    return _request(b"POST /i/_doc HTTP/1.1", *headers, body=body)


CHUNKED = b"4\r\nabcd\r\n3;ext=1\r\nefg\r\n0\r\nX-Trailer: t\r\n\r\n"

REQUESTS = {
    "plain": _request(b"GET / HTTP/1.1"),
    "no headers of ours": _request(b"GET /_cat HTTP/1.1", b"X-One: 1"),
    "raw path": _request(b"GET /a%2Fb/%7e/%e2%82%ac HTTP/1.1"),
    "double slash": _request(b"GET //a///b HTTP/1.1"),
    "dot segments": _request(b"GET /a/./b/../c HTTP/1.1"),
    "semicolon": _request(b"GET /a;b=c/d HTTP/1.1"),
    "raw query": _request(b"GET /s?q=a%20b+c&q=&&z HTTP/1.1"),
    "empty query": _request(b"GET /s? HTTP/1.1"),
    "question mark in query": _request(b"GET /s?a?b HTTP/1.1"),
    "asterisk": _request(b"OPTIONS * HTTP/1.1"),
    "long path": _request(b"GET /" + b"a" * 40_000 + b" HTTP/1.1"),
    "duplicate headers": _request(b"GET / HTTP/1.1", b"X-A: 1", b"X-B: 2", b"X-A: 3"),
    "duplicates in odd case": _request(b"GET / HTTP/1.1", b"x-A: 1", b"X-a: 2", b"X-A: 3"),
    "obs-text": _request(b"GET / HTTP/1.1", b"X-A: caf\xe9", "X-B: é".encode()),
    "empty header": _request(b"GET / HTTP/1.1", b"X-Empty:"),
    "cookies": _request(b"GET / HTTP/1.1", b"Cookie: a=1", b"Cookie: b=2"),
    "authorization": _request(b"GET / HTTP/1.1", b"Authorization: Basic YTpi"),
    "user agent": _request(b"GET / HTTP/1.1", b"User-Agent: x/1", b"Accept: a/b", b"Accept-Encoding: gzip"),
    "many headers": _request(b"GET / HTTP/1.1", *(b"X-%d: %d" % (n, n) for n in range(400))),
    "long header": _request(b"GET / HTTP/1.1", b"X-Long: " + b"v" * 20_000),
    "hop-by-hop": _request(
        b"GET / HTTP/1.1", b"Keep-Alive: timeout=5", b"TE: trailers", b"Proxy-Connection: x", b"X-End: 1"
    ),
    "head": _request(b"HEAD /i HTTP/1.1"),
    "delete": _request(b"DELETE /i HTTP/1.1"),
    "patch": _request(b"PATCH /i HTTP/1.1", b"Content-Length: 1", body=b"x"),
    "get with body": _request(b"GET /_search HTTP/1.1", b"Content-Length: 7", b"Content-Type: a/b", body=b'{"a":1}'),
    "delete with body": _request(b"DELETE /_search/scroll HTTP/1.1", b"Content-Length: 2", body=b"{}"),
    "body": _post(b"Content-Length: 3", body=b"abc"),
    "length before others": _post(b"Content-Length: 3", b"X-A: 1", body=b"abc"),
    "no length, no body": _post(),
    "length zero": _post(b"Content-Length: 0"),
    "binary body": _post(b"Content-Length: 256", body=bytes(range(256))),
    "body labelled gzip that is not": _post(b"Content-Encoding: gzip", b"Content-Length: 3", body=b"abc"),
    "non-ascii path": _request("GET /é/€ HTTP/1.1".encode()),
    "latin-1 path": _request(b"GET /\xe9 HTTP/1.1"),
    "chunked": _post(b"Transfer-Encoding: chunked", body=CHUNKED),
    "chunked in odd case": _post(b"transfer-encoding: Chunked", body=CHUNKED),
    "chunked and empty": _post(b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunked get": _request(b"GET /_search HTTP/1.1", b"Transfer-Encoding: chunked", body=CHUNKED),
    "http/1.0": b"GET /old HTTP/1.0\r\nHost: client.example\r\nX-A: 1\r\n\r\n",
    "big body": _post(b"Content-Length: 3000000", body=b"0123456789" * 300_000),
    "upgrade": _request(b"GET / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: websocket", b"X-End: 1"),
    "upgrade to h2c": _request(b"GET / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: h2c", b"X-End: 1"),
    "post with upgrade to h2c": _post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 3", body=b"abc"),
}


async def _parse(raw: bytes) -> Parsed:
    reader = asyncio.StreamReader()
    reader.feed_data(raw)
    reader.feed_eof()
    return await read_message(reader)


@pytest.mark.parametrize("raw", REQUESTS.values(), ids=REQUESTS.keys())
async def test_request_arrives_as_it_was_sent(raw: bytes, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        answer = await send_request(gateway.data_port, raw, bodyless=raw.startswith(b"HEAD"))
        assert answer.line in (b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK")
        [received] = upstream.requests
    sent = (await _parse(raw)).end_to_end()
    host = b"127.0.0.1:%d" % upstream.port
    headers = tuple((name, host if name == b"Host" else value) for name, value in sent.headers)
    assert received.end_to_end() == Parsed(sent.line.replace(b"HTTP/1.0", b"HTTP/1.1"), headers, sent.body)
    expected_body = b"transfer-encoding: chunked" in raw.lower()
    assert received.values("transfer-encoding") == ([b"chunked"] if expected_body else [])


ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "reason": b"HTTP/1.1 200 Very Fine Indeed\r\nContent-Length: 0\r\n\r\n",
    "no reason": b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n",
    "unknown status": b"HTTP/1.1 799 Odd\r\nContent-Length: 0\r\n\r\n",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    "chunked with trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
    "chunked and empty": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nto the end",
    "http/1.0": b"HTTP/1.0 200 OK\r\nContent-Type: a/b\r\n\r\nold",
    "204": b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
    "304 with length": b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 100\r\n\r\n",
    "redirect is not followed": b"HTTP/1.1 302 Found\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n",
    "error": b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: a/b\r\ncontent-length: 2\r\n\r\n{}",
    "duplicates and case": b"HTTP/1.1 200 OK\r\nset-cookie: a\r\nSet-Cookie: b\r\nx-A: 1\r\nContent-Length: 0\r\n\r\n",
    "obs-text": b"HTTP/1.1 200 OK\r\nX-A: caf\xe9\r\nContent-Length: 0\r\n\r\n",
    "warnings": b'HTTP/1.1 200 OK\r\nWarning: 299 OS-2.19 "a"\r\nWarning: 299 x "b"\r\nContent-Length: 0\r\n\r\n',
    "gzip left alone": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
    "labelled gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "hop-by-hop": b"HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nKeep-Alive: 1\r\nContent-Length: 1\r\n\r\nx",
    "no date or server of ours": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nServer: os\r\n\r\nx",
    "big": b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"0123456789" * 300_000,
}
BODYLESS = {"204", "304 with length"}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_answer_arrives_as_it_was_sent(name: str, version: bytes, start_gateway: StartGateway) -> None:
    request = b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version
    async with RecordingUpstream([ANSWERS[name]]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        direct = await send_request(upstream.port, request, bodyless=name in BODYLESS)
        proxied = await send_request(gateway.data_port, request, bodyless=name in BODYLESS)
    line = b"HTTP/1.1" + direct.line[8:]
    headers = tuple(pair for pair in direct.end_to_end().headers if pair[0] != b"X-Hop")
    assert proxied.end_to_end() == Parsed(line, headers, direct.body)


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


async def test_pipelined_requests_are_answered_in_order(start_gateway: StartGateway) -> None:
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % n for n in range(3)]
    async with RecordingUpstream(answers) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(3)))
        bodies = [(await read_message(reader)).body for _ in range(3)]
        writer.close()
        assert bodies == [b"0", b"1", b"2"]
        assert [request.line for request in upstream.requests] == [b"GET /%d HTTP/1.1" % n for n in range(3)]


async def test_headers_named_by_connection_end_here_but_never_those_that_frame(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        await send_request(
            gateway.data_port,
            _post(b"Connection: X-Hop, Content-Length, host", b"X-Hop: 1", b"Content-Length: 3", body=b"abc"),
        )
        [received] = upstream.requests
    assert received.headers == ((b"Host", b"127.0.0.1:%d" % upstream.port), (b"Content-Length", b"3"))


async def test_host_of_the_client_goes_on_where_configured(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"upstream": {"host_header": "client"}})
        await send_request(gateway.data_port, _request(b"GET / HTTP/1.1"))
        assert upstream.requests[0].values("host") == [b"client.example"]


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

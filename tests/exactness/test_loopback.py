"""Against an upstream of our own: what it receives is what the client sent, what the client gets is what it sent.

Compared whole: first line, headers in their order, number and spelling, body. Apart are only what RFC 9112 and
9110, 7.6.1 end at each hop (Connection and what it names, Keep-Alive, TE, the chunks), whitespace around a header's
value (RFC 9110, 5.5: no part of it), and Host, which is the cluster's own.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.conftest import StartGateway, mostly_slow
from tests.exactness.table import ANSWERS, HEAD_ANSWERS, REQUESTS, get, post
from tests.proxy.use_case import UseCase
from tests.smuggling.endpoints import Witness, answers_in, byte_by_byte, converse, whole
from tests.wire import HOP_BY_HOP, OK, PATIENCE, Parsed, RecordingUpstream, read_message, send_request

SMALL = 5_000
"""Bytes up to which a message is also sent one by one."""

FEEDS = {"whole": whole, "byte by byte": byte_by_byte}
LAST = b"GET /last HTTP/1.1\r\nHost: client.example\r\nConnection: close\r\n\r\n"


def pairs(table: dict[str, bytes]) -> list[Any]:
    """Each name whole, and byte by byte where it is short; most of the latter are marked slow."""
    short = [(name, "byte by byte") for name, raw in table.items() if len(raw) < SMALL]
    return [*(pytest.param(name, "whole") for name in table), *mostly_slow(short, 3)]


def end_to_end(message: Parsed) -> Parsed:
    """The message without what ends at this hop: the fixed names, and those `Connection` lists (less what frames)."""
    named = {name.strip().lower() for value in message.values("connection") for name in value.split(b",")}
    gone = HOP_BY_HOP | (named - {b"host", b"content-length", b"content-type", b"content-encoding"})
    return Parsed(message.line, tuple(p for p in message.headers if p[0].lower() not in gone), message.body)


def as_cluster_should_see(raw: bytes, sent: Parsed, authority: bytes) -> Parsed:
    headers = tuple((name, authority if name.lower() == b"host" else value) for name, value in sent.headers)
    if not sent.values("host"):
        headers = ((b"Host", authority), *headers)
    return Parsed(sent.line.replace(b" HTTP/1.0", b" HTTP/1.1"), headers, sent.body)


async def parse(raw: bytes, *, bodyless: bool = False) -> Parsed:
    reader = asyncio.StreamReader()
    reader.feed_data(raw)
    reader.feed_eof()
    return await read_message(reader, bodyless=bodyless, to_end=True)


@pytest.mark.parametrize(("name", "feed"), pairs(REQUESTS))
async def test_request_arrives_as_it_was_sent(name: str, feed: str, start_gateway: StartGateway) -> None:
    raw = REQUESTS[name]
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        stays = name == "http/1.0 that keeps alive" or not ("http/1.0" in name or name == "connection close")
        last = LAST if stays else b""
        came, closed = await converse(gateway.data_port, raw + last, FEEDS[feed])
        assert closed
        received, *more = upstream.requests
        assert [request.line for request in more] == ([b"GET /last HTTP/1.1"] if last else [])
    assert end_to_end(received) == as_cluster_should_see(
        raw, end_to_end(await parse(raw.lstrip())), upstream.url[7:].encode()
    )
    chunked = b"transfer-encoding:" in raw.lower()
    assert received.values("transfer-encoding") == ([b"chunked"] if chunked else [])
    assert came.count(b"HTTP/1.") == 1 + bool(last)


def chunked(table: dict[str, bytes]) -> list[Any]:
    return pairs({name: raw for name, raw in table.items() if b"transfer-encoding:" in raw.lower()})


def without_extensions(body: bytes) -> bytes:
    return re.sub(rb"(?m)^([0-9A-Fa-f]+)[ \t]*;[^\r]*", rb"\1", body)


@pytest.mark.parametrize(("name", "feed"), chunked(REQUESTS))
async def test_chunks_arrive_as_they_were_sent(name: str, feed: str, start_gateway: StartGateway) -> None:
    """Trailers, too; extensions are of the hop (RFC 9112, 7.1.1)."""
    raw, witness = REQUESTS[name], Witness()
    async with RecordingUpstream(script=witness) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        await converse(gateway.data_port, raw + LAST, FEEDS[feed])
        body = without_extensions(raw.partition(b"\r\n\r\n")[2])
        assert bytes(witness.seen).partition(b"\r\n\r\n")[2].startswith(body + b"GET /last ")


@pytest.mark.parametrize(("name", "feed"), chunked(ANSWERS))
async def test_chunks_of_an_answer_arrive_as_they_were_sent(name: str, feed: str, start_gateway: StartGateway) -> None:
    raw = ANSWERS[name]

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        for piece in [raw] if feed == "whole" else [raw[n : n + 1] for n in range(len(raw))]:
            writer.write(piece)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await reader.read()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        came, closed = await converse(gateway.data_port, get(b"/", b"Connection: close"), whole)
        assert closed
        assert came.partition(b"\r\n\r\n")[2] == without_extensions(raw.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("name", ["no header but Host", "odd-cased Host", "Host last", "http/1.0"])
async def test_host_of_the_client_goes_on_where_so_configured(name: str, start_gateway: StartGateway) -> None:
    raw = REQUESTS[name]
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"upstream": {"host_header": "client"}})
        assert (await send_request(gateway.data_port, raw)).body == b"ok"
        sent = end_to_end(await parse(raw))
        [received] = upstream.requests
    assert end_to_end(received) == Parsed(sent.line.replace(b" HTTP/1.0", b" HTTP/1.1"), sent.headers, sent.body)


def expected_of(direct: Parsed) -> Parsed:
    """The answer as it should come: in HTTP/1.1, which the gateway speaks (RFC 9110, 2.5)."""
    return end_to_end(Parsed(b"HTTP/1.1" + direct.line[8:], direct.headers, direct.body))


@pytest.mark.parametrize(("name", "feed"), pairs(ANSWERS))
@pytest.mark.parametrize("version", [b"1.1", b"1.0"], ids=["to 1.1", "to 1.0"])
async def test_answer_arrives_as_it_was_sent(name: str, feed: str, version: bytes, start_gateway: StartGateway) -> None:
    raw = ANSWERS[name]

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        pieces = [raw] if feed == "whole" else [raw[n : n + 1] for n in range(len(raw))]
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    bodyless = name.startswith(("204", "304"))
    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        request = b"GET / HTTP/%b\r\nHost: x\r\nConnection: close\r\n\r\n" % version
        came, closed = await converse(gateway.data_port, request, whole)
        assert closed
    [answer] = await answers_in(came, bodyless=bodyless)
    assert end_to_end(answer) == expected_of(await parse(raw, bodyless=bodyless))
    if version == b"1.0":
        assert answer.values("transfer-encoding") == []


@pytest.mark.parametrize("name", HEAD_ANSWERS)
async def test_answer_to_head_arrives_as_it_was_sent(name: str, start_gateway: StartGateway) -> None:
    async with RecordingUpstream([HEAD_ANSWERS[name]]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        head = b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n"
        came, closed = await converse(
            gateway.data_port, head * 2 + head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), whole
        )
        assert closed
        answers = await answers_in(came, bodyless=True)
        assert len(upstream.requests) == 3
    expected = expected_of(await parse(HEAD_ANSWERS[name], bodyless=True))
    assert [end_to_end(answer) for answer in answers] == [expected] * 3


@pytest.mark.parametrize("feed", FEEDS)
async def test_pipelined_requests_are_answered_in_order(feed: str, start_gateway: StartGateway) -> None:
    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_message(reader)
            upstream.requests.append(request)
            content = request.line + b"|" + request.body
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))

    raw = [
        get(b"/1"),
        post(b"Content-Length: 3", body=b"abc"),
        get(b"/2"),
        post(b"Transfer-Encoding: chunked", body=b"3\r\ndef\r\n0\r\nX-T: 1\r\n\r\n"),
        b"\r\n" + get(b"/3"),
        post(b"Content-Length: 0"),
        LAST,
    ]
    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        came, closed = await converse(gateway.data_port, b"".join(raw), FEEDS[feed])
        assert closed
        sent = [await parse(one.lstrip()) for one in raw]
        assert [(one.line, one.body) for one in upstream.requests] == [(one.line, one.body) for one in sent]
        assert [answer.body for answer in await answers_in(came)] == [one.line + b"|" + one.body for one in sent]


async def test_expect_100_continue_waits_for_the_clusters_word(start_gateway: StartGateway) -> None:
    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"\r\nExpect: 100-continue\r\n" in head
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(3) == b"abc"
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(post(b"Expect: 100-continue", b"Content-Length: 3"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await read_message(reader)).body == b"ok"
        writer.close()


async def test_a_final_answer_in_place_of_100_ends_the_wait(start_gateway: StartGateway) -> None:
    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        upstream.gone.set()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        answer = await send_request(gateway.data_port, post(b"Expect: 100-continue", b"Content-Length: 3"))
        assert (answer.line, answer.values("connection")) == (b"HTTP/1.1 417 Expectation Failed", [b"close"])
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)


async def test_interim_answers_never_reach_a_client_of_http_1_0(start_gateway: StartGateway) -> None:
    async with RecordingUpstream([b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        came, closed = await converse(gateway.data_port, b"GET / HTTP/1.0\r\nHost: x\r\n\r\n", whole)
        [answer] = await answers_in(came)
        assert (closed, answer.body) == (True, b"ok")

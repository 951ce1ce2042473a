"""Pieces pass as they come, both ways; what one end gives up, the other end learns at once; nothing piles up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tests.conftest import StartGateway
from tests.exactness.table import get, post
from tests.proxy.use_case import UseCase
from tests.wire import OK, PATIENCE, RecordingUpstream, read_message

Script = Callable[[RecordingUpstream, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
EVENTS = [b"data: %d\n\n" % number for number in range(20)]


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


FRAMINGS: dict[str, tuple[bytes, Callable[[bytes], bytes], bytes]] = {
    "chunks": (b"Transfer-Encoding: chunked\r\n", chunk, b"0\r\n\r\n"),
    "length": (b"Content-Length: %d\r\n" % len(b"".join(EVENTS)), bytes, b""),
    "until the end": (b"Connection: close\r\n", bytes, b""),
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"], ids=["to 1.1", "to 1.0"])
async def test_each_event_arrives_before_the_next_is_sent(
    framing: str, version: bytes, start_gateway: StartGateway
) -> None:
    header, wrapped, end = FRAMINGS[framing]
    arrived = asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + header + b"\r\n")
        for event in EVENTS:
            await arrived.wait()  # the head, then each event, has reached the client
            arrived.clear()
            writer.write(wrapped(event))
        writer.write(end)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        async with connected(gateway.data_port) as (reader, writer), asyncio.timeout(PATIENCE):
            writer.write(b"GET /stream HTTP/%b\r\nHost: x\r\n\r\n" % version)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"text/event-stream" in head
            for event in EVENTS:
                arrived.set()
                assert (await reader.readuntil(event)).endswith(event)


async def test_each_piece_of_a_request_arrives_before_the_next_is_sent(start_gateway: StartGateway) -> None:
    arrived = asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in EVENTS:
            await reader.readuntil(piece)
            arrived.set()
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        async with connected(gateway.data_port) as (reader, writer), asyncio.timeout(PATIENCE):
            writer.write(post(b"Transfer-Encoding: chunked"))
            for piece in EVENTS:
                writer.write(chunk(piece))
                await arrived.wait()
                arrived.clear()
            writer.write(b"0\r\n\r\n")
            assert (await read_message(reader)).body == b"ok"


async def test_both_ways_at_once(start_gateway: StartGateway) -> None:
    """The cluster answers each piece of a request that is still being sent."""

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in EVENTS:
            await reader.readuntil(piece)
            writer.write(chunk(piece))
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        async with connected(gateway.data_port) as (reader, writer), asyncio.timeout(PATIENCE):
            writer.write(post(b"Transfer-Encoding: chunked"))
            await reader.readuntil(b"\r\n\r\n")
            for piece in EVENTS:
                writer.write(chunk(piece))
                await reader.readuntil(piece)
            writer.write(b"0\r\n\r\n")
            assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"0\r\n\r\n")


EXECUTE = b"/_plugins/_ml/agents/a/_execute"
GIVEN_UP = {
    "before the answer": get(b"/slow"),
    "within the answer": get(b"/stream"),
    "within the request": post(b"Content-Length: 10", body=b"abc"),
    "within a chunk": post(b"Transfer-Encoding: chunked", body=b"9\r\nabc"),
    "before the answer to an execute": post(b"Content-Length: 2", body=b"{}", target=EXECUTE),
}


@pytest.mark.parametrize("when", GIVEN_UP)
@pytest.mark.parametrize("how", ["reset", "end"])
async def test_client_that_goes_away_ends_the_upstream_request(
    when: str, how: str, start_gateway: StartGateway
) -> None:
    """At once, with no time limit: the cluster cancels a search when its connection is closed."""
    arrived = asyncio.Event()
    whole: list[object] = []

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if when == "within the answer":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        arrived.set()
        with suppress(ConnectionError):
            whole.append(await reader.read())
        upstream.gone.set()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        async with connected(gateway.data_port) as (reader, writer):
            writer.write(GIVEN_UP[when])
            await asyncio.wait_for(arrived.wait(), PATIENCE)
            if when == "within the answer":
                await reader.readuntil(b"abc")
            if how == "reset":
                writer.transport.abort()
            else:
                writer.close()
            async with asyncio.timeout(PATIENCE):
                await upstream.gone.wait()
    assert all(b"0\r\n\r\n" not in rest for rest in whole if isinstance(rest, bytes)), "a broken body looked whole"


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_answer_that_breaks_off_never_looks_whole(framing: str, start_gateway: StartGateway) -> None:
    header, wrapped, _ = FRAMINGS[framing]

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + header + b"\r\n" + wrapped(EVENTS[0]))

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        async with connected(gateway.data_port) as (reader, writer):
            writer.write(get(b"/"))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await read_message(reader, to_end=True)

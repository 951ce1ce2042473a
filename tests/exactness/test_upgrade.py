"""A connection that switches protocols (RFC 9110, 7.8) becomes a pipe: every byte passes, both ways, at once."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from tests.conftest import StartGateway
from tests.exactness.table import get, post
from tests.proxy.use_case import UseCase
from tests.smuggling.endpoints import converse, whole
from tests.wire import OK, PATIENCE, RecordingUpstream, read_message

UPGRADE = (b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"X-End: 1")
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nX-Got: it\r\n\r\n"


async def echo(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Switches, says hello in the same piece, echoes until the end, says goodbye."""
    upstream.requests.append(await read_message(reader))
    writer.write(SWITCH + b"hello")
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    upstream.gone.set()
    writer.write(b"goodbye")


async def test_both_ends_talk_through_the_pipe(start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=echo) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        async with asyncio.timeout(PATIENCE):
            writer.write(get(b"/socket?x", *UPGRADE))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.lower() == SWITCH.lower()
            assert await reader.readexactly(5) == b"hello"
            for size in (1, 10, 100_000, 2_000_000):
                sent = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
                writer.write(sent)
                assert await reader.readexactly(size) == sent
            writer.close()
            await upstream.gone.wait()
    [request] = upstream.requests
    assert request.line == b"GET /socket?x HTTP/1.1"
    assert [value.lower() for value in request.values("connection")] in ([b"upgrade"], [b"keep-alive, upgrade"])
    assert request.values("upgrade") == [b"websocket"]
    assert request.values("x-end") == [b"1"]


async def test_what_the_client_says_early_is_not_lost(start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=echo) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        async with asyncio.timeout(PATIENCE):
            writer.write(get(b"/socket", *UPGRADE) + b"early")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(10) == b"helloearly"
            writer.close()


async def test_each_direction_ends_by_itself(start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=echo) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        async with asyncio.timeout(PATIENCE):
            writer.write(get(b"/socket", *UPGRADE))
            await reader.readuntil(b"hello")
            writer.write(b"last words")
            writer.write_eof()
            assert await reader.read() == b"last wordsgoodbye"
            writer.close()


async def test_when_the_cluster_goes_the_client_learns_of_it(start_gateway: StartGateway) -> None:
    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(SWITCH + b"hello")

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        async with asyncio.timeout(PATIENCE):
            writer.write(get(b"/socket", *UPGRADE))
            await reader.readuntil(b"hello")
            assert await reader.read() == b""
            writer.close()


async def test_a_cluster_that_does_not_switch_answers_as_ever(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = get(b"/socket", *UPGRADE) + get(b"/after", b"Connection: close")
        came, closed = await converse(gateway.data_port, raw, whole)
        assert closed
        assert came.count(OK[:15]) == 2
        assert [request.line for request in upstream.requests] == [b"GET /socket HTTP/1.1", b"GET /after HTTP/1.1"]


UNASKED = {
    "another protocol": get(b"/", b"Connection: Upgrade", b"Upgrade: echo/1"),
    "one of two protocols": get(b"/", b"Connection: Upgrade", b"Upgrade: echo/1, websocket"),
    "no upgrade": get(b"/", b"Connection: close"),
    "upgrade not named by connection": get(b"/", b"Connection: close", b"Upgrade: websocket"),
    "http/1.0": b"GET / HTTP/1.0\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "upgrade to h2c": get(
        b"/", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQ"
    ),
}


@pytest.mark.parametrize("raw", UNASKED.values(), ids=UNASKED.keys())
async def test_who_asked_for_no_switch_gets_no_pipe(raw: bytes, start_gateway: StartGateway) -> None:
    """RFC 9110, 7.8: in HTTP/1.0 it is ignored; anything but WebSocket, `h2c` above all, would pass every rule."""
    async with RecordingUpstream(script=echo) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        came, closed = await converse(gateway.data_port, raw + b"smuggled\r\n\r\n", whole)
        assert closed  # with the answer, or since what follows is no request
        assert b"hello" not in came
        assert b"101" not in came.partition(b"\r\n")[0]
        assert all(request.values("upgrade") == [] for request in upstream.requests)


async def test_post_with_upgrade_goes_on_with_its_body(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = post(b"Connection: Upgrade, close", b"Upgrade: websocket", b"Content-Length: 3", body=b"abc")
        came, _ = await converse(gateway.data_port, raw, whole)
        assert came.endswith(b"ok")
        assert [request.body for request in upstream.requests] == [b"abc"]


async def _websocket(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=("chat",))
    await socket.prepare(request)
    async for message in socket:
        if message.type is aiohttp.WSMsgType.TEXT:
            await socket.send_str(message.data)
        else:
            await socket.send_bytes(message.data)
    return socket


@pytest.mark.parametrize("compress", [0, 15], ids=["plain", "permessage-deflate"])
async def test_websocket_echo(compress: int, start_gateway: StartGateway) -> None:
    application = web.Application()
    application.router.add_get("/ws", _websocket)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        gateway = await start_gateway(f"http://127.0.0.1:{runner.addresses[0][1]}", UseCase())
        url = f"http://127.0.0.1:{gateway.data_port}/ws"
        async with (
            asyncio.timeout(PATIENCE),
            aiohttp.ClientSession() as session,
            session.ws_connect(url, protocols=("chat",), compress=compress) as socket,
        ):
            assert socket.protocol == "chat"
            for text in ("x", "größe 🙂", "y" * 100_000):
                await socket.send_str(text)
                assert await socket.receive_str() == text
            await socket.ping(b"there?")
            await socket.send_bytes(bytes(range(256)) * 4_000)
            assert await socket.receive_bytes() == bytes(range(256)) * 4_000
            await socket.close(code=1000)
            assert socket.close_code == 1000
    finally:
        await runner.cleanup()

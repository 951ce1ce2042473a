"""No client takes what another needs: connections to the cluster, time of the loop, the end of its answer."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.conftest import StartGateway
from tests.proxy.use_case import UseCase
from tests.smuggling.endpoints import answers_in
from tests.wire import OK, RecordingUpstream, read_message, send_request

GET = b"GET / HTTP/1.1\r\nHost: c\r\n\r\n"
SLOW = b"POST /i HTTP/1.1\r\nHost: c\r\nContent-Length: 100\r\n\r\nx"
OFTEN = {"keepalive": 0.1}
"""A time limit of idle connections, of which there are none here: deadlines are checked four times as often."""
ANSWER = b"0123456789abcdef" * 190_000


async def test_slow_bodies_leave_connections_to_the_cluster_for_others(start_gateway: StartGateway) -> None:
    arrived = asyncio.Semaphore(0)

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            arrived.release()
            if head.startswith(b"POST"):
                await reader.readexactly(100)
            writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        over = {"upstream": {"url": upstream.url, "connections": 4}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        slow = [await asyncio.open_connection("127.0.0.1", gateway.data_port) for _ in range(8)]
        for _, writer in slow:
            writer.write(SLOW)
        for _ in range(2):  # half of the connections
            await arrived.acquire()
        for _ in range(20):
            assert (await send_request(gateway.data_port, GET)).body == b"ok"
        for _, writer in slow:
            writer.write(b"x" * 99)
        for reader, writer in slow:
            assert (await read_message(reader)).body == b"ok"
            writer.close()


async def test_a_body_takes_no_connection_before_there_is_something_to_send(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        over = {"upstream": {"url": upstream.url, "connections": 1}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(SLOW[:-1])
        await writer.drain()
        assert (await send_request(gateway.data_port, GET)).body == b"ok"
        writer.write(b"x" * 100)
        assert (await read_message(reader)).body == b"ok"
        assert upstream.connections == 1
        writer.close()


@pytest.mark.parametrize("path", ["/i", "/_plugins/_ml/agents/a/_execute"])
async def test_a_body_that_comes_too_slowly_is_a_408(path: str, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        timeouts = {"body_rate": 1_000_000, "body_rate_after": 0.1, **OFTEN}
        over = {"listen": {"data_port": 0, "admin_port": 0, "timeouts": timeouts}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(SLOW.replace(b"/i", path.encode()))
        answer = await read_message(reader)
        assert answer.line == b"HTTP/1.1 408 Request Timeout"
        writer.close()


async def test_time_in_which_the_cluster_takes_nothing_is_not_the_clients(start_gateway: StartGateway) -> None:
    """The rate asked for is far above what this upstream takes, and is kept while the gateway reads."""
    taken = asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await taken.wait()
        await reader.readexactly(20_000_000)
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        timeouts = {"body_rate": 1_000, "body_rate_after": 0.3, **OFTEN}
        over = {"listen": {"data_port": 0, "admin_port": 0, "timeouts": timeouts}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(b"POST /i HTTP/1.1\r\nHost: c\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 20_000_000)
        late = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        late[1].write(SLOW)
        assert (await read_message(late[0])).line == b"HTTP/1.1 408 Request Timeout"  # so the time has passed
        taken.set()
        assert (await read_message(reader)).body == b"ok"
        writer.close()
        late[1].close()


async def test_chunks_of_one_byte_are_read_in_turns(start_gateway: StartGateway) -> None:
    """Both reach the cluster whole, as they came or as the data of an execute."""
    handler = UseCase()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, handler)
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in ANSWER[:50_000]) + b"0\r\n\r\n"
        for path in (b"/i", b"/_plugins/_ml/agents/a/_execute"):
            head = b"POST %b HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n" % path
            assert (await send_request(gateway.data_port, head + chunks)).body == b"ok"
        assert [request.body for request in upstream.requests] == [ANSWER[:50_000]] * 2
        assert [call.body for call in handler.calls] == [ANSWER[:50_000]]


async def test_a_request_behind_the_last_answer_does_not_cut_it(start_gateway: StartGateway) -> None:
    """Closing while bytes of the client are unread resets the connection, and the answer with it (RFC 9112, 9.6)."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
    async with RecordingUpstream([answer]) as upstream:
        over = {"listen": {"data_port": 0, "admin_port": 0, "shutdown_seconds": 60}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", gateway.data_port))
            await loop.sock_sendall(sock, GET)
            came = await loop.sock_recv(sock, 1000)
            stopping = asyncio.create_task(gateway.stop())
            sending = asyncio.create_task(loop.sock_sendall(sock, GET * 200_000))  # more than anybody reads ahead
            while piece := await loop.sock_recv(sock, 65536):
                came += piece
            sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await stopping
        answers = await answers_in(came)
        assert {answer.body for answer in answers} == {ANSWER}
        assert answers[-1].values("connection") == [b"close"]

"""A client that goes away while the gateway does not read from it: no time limit is needed to notice."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import ssl
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.proxy import lifecycle
from tests.faults.deployment import held_back, running_gateway
from tests.faults.deployment import in_flight as running
from tests.faults.upstream import settled
from tests.tls.certificates import Pki
from tests.wire import OK, RecordingUpstream, read_message

EMPTY: Mapping[str, Any] = MappingProxyType({})
NO_DEADLINE = {"connect": 0, "header": 0, "idle": 0, "execute": 0}
OVER = {"timeouts": {"head": 0, "body": 0, "send": 0, "keepalive": 0}}
SIZE = 30_000_000
UPLOAD = b"POST /big HTTP/1.1\r\nHost: c\r\nContent-Length: %d\r\n\r\n" % SIZE + bytes(SIZE)
GET = b"GET /small HTTP/1.1\r\nHost: c\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: c\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"

RESET = pytest.param("reset", marks=pytest.mark.slow)
SHORT = 0.05


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often, except in the test of the period."""
    if "second" not in request.function.__name__:
        monkeypatch.setattr(lifecycle, "PERIOD", SHORT)


class Polls:
    """Counts the polls of the gateway."""

    count = 0

    async def more(self, count: int) -> None:
        """Wait for `count` polls that begin from now on."""
        goal = self.count + count
        assert await settled(lambda: self.count >= goal)


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Polls:
    polls, poll = Polls(), lifecycle.DisconnectPoller._poll

    def counted(self: lifecycle.DisconnectPoller) -> None:
        poll(self)
        polls.count += 1

    monkeypatch.setattr(lifecycle.DisconnectPoller, "_poll", counted)
    return polls


SENT = {"an upload": UPLOAD, "a pipeline": GET * 10_000}


@dataclass
class Stuck:
    """A cluster that reads heads and no further until `over`. heard: bytes of bodies; heads, gone: how many."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    heard: int = 0
    heads: int = 0
    gone: int = 0

    async def __call__(self, _: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads += 1
        late = b"/late" in head
        if b"websocket" in head and not late:
            writer.write(SWITCH)
        await self.over.wait()
        if late:
            writer.write(SWITCH)
        try:
            while data := await reader.read(1 << 20):
                self.heard += len(data)
                if self.heard == SIZE and b"POST" in head:
                    writer.write(OK)
        except ConnectionError:
            pass
        self.gone += 1


class Client:
    """A socket that sends until it is held back; with `tls` over TLS."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        sock = socket.create_connection(("127.0.0.1", port))
        self.socket = tls.wrap_socket(sock, server_hostname="127.0.0.1") if tls else sock
        self.socket.setblocking(False)

    async def fill(self, raw: bytes, gateway: Gateway, count: int = 1) -> int:
        """Send until the gateway holds `count` clients back, and say how much: all of it has arrived there."""
        left = memoryview(raw)
        while held_back(gateway) < count:
            with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
                left = left[self.socket.send(left[:32768]) :]
            assert left, "it was never held back"
            while held_back(gateway) < count and self.unsent():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
        assert await settled(lambda: not self.unsent())
        return len(raw) - len(left)

    async def stuff(self, raw: bytes) -> None:
        """Send until nothing more goes: TLS reads on for a while for itself, and would notice an end."""
        refused = 0
        while refused < 5:
            try:
                self.socket.send(raw[: 1 << 16])
                refused = 0
            except (BlockingIOError, ssl.SSLWantWriteError):
                refused += 1
                await asyncio.sleep(0.01)

    def unsent(self) -> int:
        """Bytes that the kernel still has to deliver: an orderly end would come only behind them."""
        return int.from_bytes(fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder)

    def end(self, how: str) -> None:
        if how == "half":
            self.socket.shutdown(socket.SHUT_WR)
            return
        if how == "reset":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@contextlib.asynccontextmanager
async def before(cluster: Stuck, more: Mapping[str, Any] = EMPTY, **over: Any) -> AsyncIterator[Gateway]:
    """A gateway without a single time limit."""
    listen = {"data_port": 0, "admin_port": 0, **OVER, **more}
    async with (
        RecordingUpstream(script=cluster) as upstream,
        running_gateway(url=upstream.url, over={"listen": listen, **over}, timeouts=NO_DEADLINE) as gateway,
    ):
        yield gateway
        cluster.over.set()


async def _goes(sent: bytes, end: str, listen: Mapping[str, Any] = EMPTY, tls: ssl.SSLContext | None = None) -> None:
    cluster = Stuck()
    async with before(cluster, listen) as gateway:
        client = await asyncio.to_thread(Client, gateway.data_port, tls)
        await client.fill(sent, gateway)
        assert await settled(lambda: cluster.heads == 1)
        assert running(gateway) == 1
        if tls is not None:
            await client.stuff(sent)
        client.end(end)
        assert await settled(lambda: running(gateway) == 0)
        cluster.over.set()
        assert await settled(lambda: cluster.gone == 1)
        assert cluster.heard < SIZE
        client.socket.close()


@pytest.mark.parametrize("end", [RESET, "close", "half"])
@pytest.mark.parametrize("sent", SENT)
async def test_a_client_that_is_held_back_goes_away(sent: str, end: str) -> None:
    """One that ends its half counts as gone, as it does while it is read from."""
    await _goes(SENT[sent], end)


@pytest.mark.slow
async def test_it_is_noticed_within_a_second() -> None:
    assert lifecycle.PERIOD < 0.5
    await _goes(UPLOAD, "close")


async def test_it_is_over_tls(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    cert_file, key_file = pki.issue("gateway", "127.0.0.1")
    trusting = ssl.create_default_context(cafile=pki.ca_file)
    await _goes(UPLOAD, "reset", {"tls": {"cert_file": cert_file, "key_file": key_file}}, trusting)


async def test_it_does_while_it_waits_for_its_turn() -> None:
    cluster = Stuck()
    async with before(cluster, admission={"total": 1, "queue_seconds": 0}) as gateway:
        first, second = Client(gateway.data_port), Client(gateway.data_port)
        first.socket.send(GET)
        assert await settled(lambda: cluster.heads == 1)
        await second.fill(UPLOAD, gateway)
        assert running(gateway) == 2
        second.end("close")
        assert await settled(lambda: running(gateway) == 1)
        first.end("close")
        assert await settled(lambda: running(gateway) == 0)
        assert cluster.heads == 1


async def test_a_client_that_is_held_back_and_stays_is_waited_for(polls: Polls) -> None:
    cluster = Stuck()
    async with before(cluster) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(UPLOAD)
        assert await settled(lambda: held_back(gateway) == 1)
        await polls.more(3)
        assert running(gateway) == 1
        cluster.over.set()
        assert (await read_message(reader)).line == b"HTTP/1.1 200 OK"
        assert cluster.heard == SIZE
        writer.close()


@pytest.mark.parametrize("end", [RESET, "half"])
async def test_in_a_tunnel_all_is_passed_on_before_an_orderly_end(end: str, polls: Polls) -> None:
    cluster = Stuck()
    async with before(cluster) as gateway:
        client = Client(gateway.data_port)
        client.socket.send(UPGRADE)
        assert await asyncio.get_running_loop().sock_recv(client.socket, 1 << 16) == SWITCH
        sent = await client.fill(bytes(SIZE), gateway)
        client.end(end)
        if end == "half":
            await polls.more(3)
            assert running(gateway) == 1
            cluster.over.set()
            assert await settled(lambda: cluster.heard == sent)
            client.socket.close()
        assert await settled(lambda: running(gateway) == 0)


async def test_what_is_said_before_the_tunnel_is_there_does_not_stop_it() -> None:
    cluster = Stuck()
    async with before(cluster) as gateway:
        client = Client(gateway.data_port)
        early = await client.fill(UPGRADE.replace(b"/", b"/late", 1) + bytes(SIZE), gateway)
        cluster.over.set()
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(client.socket, 1 << 16) == SWITCH
        await loop.sock_sendall(client.socket, b"more")
        assert await settled(lambda: cluster.heard == early - len(UPGRADE) - len("late") + len("more"))
        client.socket.close()

"""SIGTERM under load: no request is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.app.process import _ECHO
from tests.lifecycle.load import Tally, client, echo, seen
from tests.lifecycle.process import PATIENCE, Process, until
from tests.lifecycle.test_workers import children
from tests.tls.certificates import Pki
from tests.wire import OK, RecordingUpstream, read_message, refuses_connections, send_request

OTHER_SERVERS = [(2, "builtin"), (1, "aiohttp")]


@pytest.mark.parametrize(
    ("workers", "http"), [(1, "builtin"), *(pytest.param(*row, marks=pytest.mark.slow) for row in OTHER_SERVERS)]
)
async def test_no_request_is_lost(tmp_path: Path, workers: int, http: str) -> None:
    async with RecordingUpstream(script=echo) as upstream:
        listen = {"workers": workers, "http": http}
        settings = {"upstream": {"url": upstream.url}, "listen": listen, "logs": {"level": "info"}}
        async with Process(tmp_path, settings) as gateway:
            port, _ = await gateway.ports(workers)
            tally = Tally()
            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as clients:
                for number in range(6):
                    clients.create_task(client(f"quick{number}", port, tally))
                for number in range(4):
                    clients.create_task(client(f"slow{number}", port, tally, "?slow"))
                await until(lambda: len(tally.answered) >= 300)
                gateway.signal(signal.SIGTERM)
            assert await gateway.ended() == 0
    assert tally.lost == []
    assert not seen(upstream) & set(tally.unaccepted)
    assert Counter(tally.answered) == Counter(seen(upstream))
    assert (tally.refused, tally.told_to_close + len(tally.unaccepted) >= 10) == (10, True)
    assert tally.told_to_close
    assert sum(path.startswith("/slow") for path in tally.answered) >= 4


async def test_readiness_goes_first_and_new_connections_are_still_taken_for_a_while(tmp_path: Path) -> None:
    async with RecordingUpstream(script=echo) as upstream:
        settings = {"upstream": {"url": upstream.url}, "listen": {"drain_seconds": 60}}
        async with Process(tmp_path, settings) as gateway:
            port, admin = await gateway.ports()
            ready = b"GET /health/ready HTTP/1.1\r\nHost: a\r\n\r\n"
            assert (await send_request(admin, ready)).line == b"HTTP/1.1 200 OK"
            gateway.signal(signal.SIGTERM)
            while (await send_request(admin, ready)).body != b'{"status":"draining"}':
                pass
            answer = await send_request(port, b"GET /late HTTP/1.1\r\nHost: c\r\n\r\n")
            assert (answer.body, answer.values("Connection")) == (b"/late" * 50, [b"close"])
            assert gateway.process.returncode is None


@pytest.mark.slow
async def test_the_while_ends(tmp_path: Path) -> None:
    async with RecordingUpstream() as upstream:
        settings = {"upstream": {"url": upstream.url}, "listen": {"drain_seconds": 0.2}}
        async with Process(tmp_path, settings) as gateway:
            await gateway.ports()
            gateway.signal(signal.SIGTERM)
            assert await gateway.ended() == 0


@pytest.mark.slow
async def test_an_idle_connection_is_closed_and_one_that_takes_too_long_is_cut(tmp_path: Path) -> None:
    async def silent(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream.record(await read_message(reader))
        await reader.read()

    async with RecordingUpstream(script=silent) as upstream:
        settings = {"upstream": {"url": upstream.url}, "listen": {"shutdown_seconds": 0.5}}
        async with Process(tmp_path, settings) as gateway:
            port, _ = await gateway.ports()
            idle, idle_writer = await asyncio.open_connection("127.0.0.1", port)
            stuck, stuck_writer = await asyncio.open_connection("127.0.0.1", port)
            stuck_writer.write(b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")
            await until(lambda: bool(upstream.requests))
            gateway.signal(signal.SIGTERM)
            assert await gateway.ended() == 0
            assert await idle.read() == b""
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await read_message(stuck)
            idle_writer.close()
            stuck_writer.close()


class Handshake:
    """A TLS client whose handshake goes on step by step, so that it can be half done."""

    def __init__(self, ca_file: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=ca_file)
        self.tls = context.wrap_bio(self._received, self._to_send, server_hostname="127.0.0.1")

    async def begin(self) -> None:
        """Send the first message, and wait for the first bytes of the server's."""
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        self._writer.write(self._to_send.read())
        self._received.write(await self._reader.read(65536))

    def close(self) -> None:
        self._writer.close()

    async def do(self, step: Callable[[], object]) -> object:
        """Repeat a step of TLS until all that it needs has arrived, and send what it made."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._writer.write(self._to_send.read())
                if not (data := await self._reader.read(65536)):
                    raise ConnectionResetError from None
                self._received.write(data)
            finally:
                self._writer.write(self._to_send.read())


def encrypted(tmp_path: Path, url: str, seconds: float) -> tuple[str, dict[str, Any]]:
    """The file of the authority, and the settings of a gateway with a certificate of it."""
    pki = Pki(tmp_path)
    cert, key = pki.issue("gateway", "127.0.0.1")
    listen = {"tls": {"cert_file": cert, "key_file": key}, "shutdown_seconds": seconds}
    return pki.ca_file, {"upstream": {"url": url}, "listen": listen}


@pytest.mark.slow
async def test_a_client_within_its_tls_handshake_is_still_served(tmp_path: Path) -> None:
    async with RecordingUpstream() as upstream:
        ca_file, settings = encrypted(tmp_path, upstream.url, PATIENCE)
        async with Process(tmp_path, settings) as gateway:
            port, _ = await gateway.ports()
            clients = []
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                clients.append(Handshake(ca_file, reader, writer))
                await clients[-1].begin()
            gateway.signal(signal.SIGTERM)
            await refuses_connections(port)
            for client in clients:
                await client.do(client.tls.do_handshake)
                client.tls.write(b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")
                answer = await client.do(lambda tls=client.tls: tls.read(65536))
                assert isinstance(answer, bytes)
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
                assert b"Connection: close\r\n" in answer
                client.close()
            assert await gateway.ended() == 0


@pytest.mark.slow
async def test_a_tls_handshake_that_does_not_end_is_cut_after_the_grace_period(tmp_path: Path) -> None:
    ca_file, settings = encrypted(tmp_path, "http://127.0.0.1:1", 0.1)
    async with Process(tmp_path, settings) as gateway:
        port, _ = await gateway.ports()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await Handshake(ca_file, reader, writer).begin()
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
        writer.close()


@pytest.mark.parametrize("http", ["builtin", "aiohttp"])
@pytest.mark.slow
async def test_a_client_that_does_not_begin_its_tls_handshake_holds_up_nothing(tmp_path: Path, http: str) -> None:
    _, settings = encrypted(tmp_path, "http://127.0.0.1:1", 600)
    settings["listen"]["http"] = http
    async with Process(tmp_path, settings) as gateway:
        port, _ = await gateway.ports()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
        assert await reader.read() == b""
        writer.close()


DRAIN, SHUTDOWN = {"drain_seconds": 60}, {"shutdown_seconds": 60}


@pytest.mark.parametrize(
    ("workers", "settings"),
    [
        pytest.param(1, SHUTDOWN, id="1-shutdown"),
        pytest.param(2, DRAIN, id="2-drain", marks=pytest.mark.slow),
        pytest.param(1, DRAIN, id="1-drain", marks=pytest.mark.slow),
        pytest.param(2, SHUTDOWN, id="2-shutdown", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
async def test_a_second_signal_cuts_it_short(tmp_path: Path, workers: int, settings: dict[str, float]) -> None:
    async def silent(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_message(reader)
        if not request.line.startswith(b"GET /stuck "):  # the question whether the cluster is ready
            writer.write(OK)
            return
        upstream.requests.append(request)
        await reader.read()
        upstream.gone.set()

    async with RecordingUpstream(script=silent) as upstream:
        listen = {"workers": workers, **settings}
        async with Process(tmp_path, {"upstream": {"url": upstream.url}, "listen": listen}) as gateway:
            port, admin = await gateway.ports(workers)
            stuck, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /stuck HTTP/1.1\r\nHost: c\r\n\r\n")
            await until(lambda: bool(upstream.requests))
            # As from a terminal: to all of the group, and from the supervisor to its workers. That is one signal.
            pids = [gateway.process.pid, *children(gateway.process.pid)]
            for pid in pids:
                os.kill(pid, signal.SIGINT)
            ready = b"GET /health/ready HTTP/1.1\r\nHost: a\r\n\r\n"
            while (await send_request(admin, ready)).body != b'{"status":"draining"}':
                pass
            workers_left = 1 if settings is SHUTDOWN else workers  # a worker with nothing to do has ended
            await until(lambda: len(children(gateway.process.pid)) == (workers_left if workers > 1 else 0))
            await asyncio.sleep(2 * _ECHO)  # only then does it count as another signal
            assert gateway.process.returncode is None
            left = [gateway.process.pid, *children(gateway.process.pid)]
            for pid in left:
                os.kill(pid, signal.SIGTERM)
            assert await gateway.ended() == 0
            events = await gateway.event("drain cut short", len(left))
            assert sum(event.get("connections", 0) for event in events) == 1
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await read_message(stuck)
            await asyncio.wait_for(upstream.gone.wait(), PATIENCE)
            writer.close()
    assert not [event for event in gateway.events if event["event"] == "worker killed"]

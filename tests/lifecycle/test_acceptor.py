"""The acceptor of a port: which connections are accepted, and which are refused."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.proxy import acceptor
from gateway.proxy.acceptor import Acceptor, bind
from tests.lifecycle.process import until
from tests.tls.certificates import Pki

Run = Callable[[Coroutine[Any, Any, int]], int]


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        transport.write(b"in")  # type: ignore[attr-defined]


async def accept_queued(clients: int) -> int:
    """Let `clients` connect, then close the port. Each must be served. Return the port, which is closed."""
    acceptor = Acceptor(await bind("127.0.0.1", 0), Greeter, None)
    await acceptor.open()
    # The loop does not run meanwhile, so all of them wait in the kernel's queue.
    queued = [socket.create_connection(("127.0.0.1", acceptor.port)) for _ in range(clients)]
    await acceptor.close()
    for client in queued:
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 9) == b"in"
        client.close()
    return acceptor.port


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_connected_clients_are_accepted_before_the_port_closes(run: Run) -> None:
    port = run(accept_queued(50))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_full_queue_is_accepted_before_the_port_closes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "BACKLOG", 4)
    run(accept_queued(5))  # Linux queues one connection more than the number that `listen` gets


async def test_a_tls_client_that_connects_while_the_port_closes_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*Pki(tmp_path).issue("server", "127.0.0.1"))
    acceptor = Acceptor(await bind("127.0.0.1", 0), Greeter, context)
    await acceptor.open()
    loop, clients = asyncio.get_running_loop(), []
    remove_reader = loop.remove_reader

    def connect_then_remove(one: socket.socket) -> bool:
        clients.append(socket.create_connection(("127.0.0.1", acceptor.port)))
        return remove_reader(one)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "remove_reader", connect_then_remove)
        await acceptor.close()
    assert (len(clients), acceptor.pending) == (1, 1)
    acceptor.cut_handshakes()
    await asyncio.sleep(0)
    clients[0].close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_only_tls_clients_that_have_sent_nothing_are_cut(run: object, tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*Pki(tmp_path).issue("server", "127.0.0.1"))

    async def story() -> None:
        acceptor = Acceptor(await bind("127.0.0.1", 0), Greeter, context)
        await acceptor.open()
        silent, _ = await asyncio.open_connection("127.0.0.1", acceptor.port)
        begun, writer = await asyncio.open_connection("127.0.0.1", acceptor.port)
        writer.write(b"\x16\x03\x01")  # a part of the client's first message
        await until(lambda: (acceptor.pending, len(acceptor._silent)) == (2, 1))
        await acceptor.close()
        acceptor.cut_silent()
        assert await silent.read() == b""
        assert acceptor.pending == 1
        acceptor.cut_handshakes()
        assert await begun.read() == b""

    run(story())  # type: ignore[operator]


class Entered(asyncio.Protocol):
    """Notes in which turn of the loop each connection came in, and whether small writes go out at once."""

    turn = 0
    turns: list[int]
    undelayed: list[int]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.turns.append(Entered.turn)
        own = transport.get_extra_info("socket")
        self.undelayed.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_many_clients_are_accepted_within_a_few_turns_of_the_loop(run: object) -> None:
    """A turn is long under load, so no client may wait for a turn of its own."""

    async def story() -> None:
        Entered.turn, Entered.turns, Entered.undelayed = 0, [], []
        acceptor = Acceptor(await bind("127.0.0.1", 0), Entered, None)
        await acceptor.open()
        clients = [socket.create_connection(("127.0.0.1", acceptor.port)) for _ in range(100)]
        while len(Entered.turns) < len(clients) and Entered.turn < 1000:
            Entered.turn += 1
            await asyncio.sleep(0)
        assert len(Entered.turns) == len(clients)
        assert max(Entered.turns) - min(Entered.turns) < 10
        assert all(Entered.undelayed)
        for client in clients:
            client.close()
        await acceptor.close()

    run(story())  # type: ignore[operator]


class WithoutDescriptors(socket.socket):
    """A listening socket, when the process has reached its limit of descriptors for a moment."""

    failed = False

    def accept(self) -> tuple[socket.socket, object]:
        if not WithoutDescriptors.failed:
            WithoutDescriptors.failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_lack_of_descriptors_delays_tls_clients(run: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_PAUSE", 0.01)
    WithoutDescriptors.failed = False
    pki = Pki(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pki.issue("server", "127.0.0.1"))

    async def connect() -> None:
        [bound] = await bind("127.0.0.1", 0)
        acceptor = Acceptor([WithoutDescriptors(fileno=bound.detach())], Greeter, context)
        await acceptor.open()
        trusted = ssl.create_default_context(cafile=pki.ca_file)
        reader, writer = await asyncio.open_connection("127.0.0.1", acceptor.port, ssl=trusted)
        assert await reader.readexactly(2) == b"in"
        assert WithoutDescriptors.failed
        writer.close()
        await acceptor.close()

    run(connect())  # type: ignore[operator]


async def test_a_port_is_one_process_own_unless_it_is_shared() -> None:
    [own] = await bind("127.0.0.1", 0)
    own.listen()
    port = own.getsockname()[1]
    for shared in (False, True):
        with pytest.raises(OSError, match=f"^127.0.0.1:{port} can't be opened: Address already in use$"):
            await bind("127.0.0.1", port, shared=shared)
    own.close()
    [one] = await bind("127.0.0.1", port, shared=True)
    [other] = await bind("127.0.0.1", port, shared=True)
    one.close()
    other.close()


async def test_every_address_of_a_host_gets_the_same_port() -> None:
    sockets = await bind("", 0)
    assert len({one.getsockname()[1] for one in sockets}) == 1
    for one in sockets:
        one.close()


async def test_a_socket_in_the_file_system_replaces_one_left_behind(tmp_path: Path) -> None:
    for _ in range(2):  # the first is left behind
        acceptor = Acceptor(await bind(f"unix:{tmp_path}/s", 0), Greeter, None)
        await acceptor.open()
        reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
        assert (await reader.readexactly(2), acceptor.port) == (b"in", 0)
        writer.close()
        await acceptor.close()

"""A cluster with TLS that fails: in the handshake, with its certificate, or later like any other."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path

import pytest

from tests.faults.client import Ask, once
from tests.faults.deployment import SHORT, running_gateway
from tests.faults.upstream import BAD, CUT, FAULTS, LATE, WHOLE, Connection, Fault, FaultyUpstream, Request, settled
from tests.tls.certificates import Pki
from tests.wire import RecordingUpstream, send_request

GET = Ask(b"g", size=4000)
RUN = Ask(b"r", b"POST", b"/_plugins/_ml/agents/a/_execute", b"{}", size=400)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def _serving(pki: Pki, *identities: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pki.issue("cluster", *identities))
    return context


async def _verdicts(upstream: FaultyUpstream, ca_file: str) -> set[str]:
    async with running_gateway(upstream, tls={"ca_file": ca_file}) as gateway:
        return {(await once(gateway.data_port, ask)).verdict(ask) for ask in (GET, RUN, GET)}


async def test_a_certificate_in_order_is_taken_and_no_other(pki: Pki) -> None:
    assert await _verdicts(FaultyUpstream(_serving(pki, "127.0.0.1")), pki.ca_file) == {WHOLE}
    assert await _verdicts(FaultyUpstream(_serving(pki, "127.0.0.1")), pki.other_ca_file) == {BAD}
    assert await _verdicts(FaultyUpstream(_serving(pki, "other.example")), pki.ca_file) == {BAD}


async def test_a_cluster_without_tls_and_one_that_breaks_the_handshake() -> None:
    async def resets(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async def nonsense(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x16\x03\x03\xff\xff" + bytes(100))

    for script in (None, resets, nonsense):
        async with RecordingUpstream(script=script) as upstream:
            url = upstream.url.replace("http", "https")
            async with running_gateway(url=url, timeouts={**SHORT, "connect": 0.1}) as gateway:
                assert (await once(gateway.data_port, GET)).verdict(GET) in (BAD, LATE)
                assert (await once(gateway.data_port, RUN)).verdict(RUN) in (BAD, LATE)


async def test_a_handshake_that_never_ends_is_a_504() -> None:
    async def silent(_: RecordingUpstream, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass

    async with (
        RecordingUpstream(script=silent) as upstream,
        running_gateway(url=upstream.url.replace("http", "https"), timeouts={**SHORT, "connect": 0.1}) as gateway,
    ):
        assert (await once(gateway.data_port, GET)).verdict(GET) == LATE


@pytest.mark.slow
async def test_the_other_faults_are_told_as_truly_over_tls(pki: Pki) -> None:
    upstream = FaultyUpstream(_serving(pki, "127.0.0.1"))
    async with running_gateway(upstream, tls={"ca_file": pki.ca_file}) as gateway:
        wrong = {}
        for name, fault in FAULTS.items():
            if fault.lasting:
                continue
            for plain in (GET, RUN):
                ask = Ask(plain.id, plain.method, plain.target, plain.body, name, plain.size)
                verdict = (await once(gateway.data_port, ask)).verdict(ask)
                if verdict not in fault.seen:
                    wrong[name, plain.method] = verdict
                if fault.after:
                    assert await settled(lambda: not upstream.open)
        assert wrong == {}
        assert (await once(gateway.data_port, GET)).verdict(GET) == WHOLE


@pytest.mark.parametrize("goodbye", [True, False])
async def test_the_end_of_a_body_without_a_length_is_one_only_if_tls_says_so(
    goodbye: bool, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9112, 9.8: without a TLS closure alert, the response may have been truncated."""
    if not goodbye and not type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        pytest.skip("asyncio's own TLS tells a missing end as a proper one; the gateway serves on uvloop")

    async def act(c: Connection, r: Request) -> None:
        c.send(b"HTTP/1.1 200 OK\r\n\r\n", r.answer)
        await c.sent()
        if goodbye:
            c.transport.close()
        else:
            with socket.socket(fileno=os.dup(c.transport.get_extra_info("socket").fileno())) as beneath:
                beneath.shutdown(socket.SHUT_WR)

    monkeypatch.setitem(FAULTS, "ends", Fault(act, frozenset()))
    upstream = FaultyUpstream(_serving(pki, "127.0.0.1"))
    async with running_gateway(upstream, tls={"ca_file": pki.ca_file}) as gateway:
        ask = Ask(b"t", fault="ends", size=400)
        assert (await once(gateway.data_port, ask)).verdict(ask) == (WHOLE if goodbye else CUT)


async def test_a_client_that_speaks_tls_to_the_plain_port_is_refused() -> None:
    async with running_gateway(FaultyUpstream()) as gateway:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(
                "127.0.0.1", gateway.data_port, ssl=ssl.create_default_context(), server_hostname="x"
            )
        assert (await send_request(gateway.data_port, GET.raw())).line == b"HTTP/1.1 200 OK"

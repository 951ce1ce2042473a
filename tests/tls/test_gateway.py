"""TLS all the way: client, gateway and cluster, each with a certificate of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from gateway.app import build
from gateway.config.load import ConfigError
from gateway.config.schema import Tls, Upstream
from gateway.observe.logs import configure
from gateway.upstream.client import Prober
from gateway.upstream.nodes import NodeSet
from gateway.upstream.tls import to_cluster
from tests.conftest import StartGateway, settings_for
from tests.proxy.use_case import UseCase
from tests.recording.memory_sink import MemorySink
from tests.tls.certificates import Pki
from tests.wire import PATIENCE, Parsed, RecordingUpstream, read_message, send_request

HOST = "127.0.0.1"


@asynccontextmanager
async def secured(upstream: RecordingUpstream, pki: Pki, name: str = HOST) -> AsyncIterator[str]:
    """`upstream` behind TLS with a certificate for `name`; it asks for certificates of our authority. Its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pki.ca_file)
    context.load_cert_chain(*pki.issue("cluster", name))
    context.verify_mode = ssl.CERT_REQUIRED
    async with upstream, await asyncio.start_server(upstream._serve, HOST, 0, ssl=context) as server:
        yield f"https://{HOST}:{server.sockets[0].getsockname()[1]}"


GET = b"GET /a%2fb?x HTTP/1.1\r\nHost: c\r\n\r\n"


async def ask(port: int, context: ssl.SSLContext, request: bytes = GET) -> Parsed:
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    try:
        writer.write(request)
        return await read_message(reader)
    finally:
        writer.transport.abort()


async def test_both_sides_show_and_check_certificates(start_gateway: StartGateway, pki: Pki) -> None:
    cert, key = pki.issue("gateway", HOST)
    outward_cert, outward_key = pki.issue("outward", "gateway.test")
    tls = {"ca_file": pki.ca_file, "cert_file": outward_cert, "key_file": outward_key}
    context = ssl.create_default_context(cafile=pki.ca_file)
    context.load_cert_chain(*pki.issue("client", "client.test"))
    upstream = RecordingUpstream()
    async with secured(upstream, pki) as url:
        over = {
            "listen": {"tls": {"cert_file": cert, "key_file": key, "client_ca_file": pki.ca_file}},
            "upstream": {"tls": tls},
        }
        gateway = await start_gateway(url, None, over)
        assert (await ask(gateway.data_port, context)).body == b"ok"
        assert upstream.requests[0].line == b"GET /a%2fb?x HTTP/1.1"
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await ask(gateway.data_port, ssl.create_default_context(cafile=pki.ca_file))
        assert len(upstream.requests) == 1


async def test_the_adapters_port_has_the_same_tls(start_gateway: StartGateway, pki: Pki) -> None:
    cert, key = pki.issue("gateway", HOST)
    listen = {"adapters_port": 0, "tls": {"cert_file": cert, "key_file": key, "client_ca_file": pki.ca_file}}
    context = ssl.create_default_context(cafile=pki.ca_file)
    context.load_cert_chain(*pki.issue("client", "client.test"))
    request = b"GET /nosuch HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, None, {"listen": listen})
        assert (await ask(gateway.adapters_port, context, request)).line == b"HTTP/1.1 404 Not Found"
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await ask(gateway.adapters_port, ssl.create_default_context(cafile=pki.ca_file), request)


async def test_exchanges_are_recorded_with_the_scheme_of_the_client(start_gateway: StartGateway, pki: Pki) -> None:
    cert, key = pki.issue("gateway", HOST)
    over = {"listen": {"tls": {"cert_file": cert, "key_file": key}}, "inspector": {"enabled": True}}
    context = ssl.create_default_context(cafile=pki.ca_file)
    execute = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\n\r\n{}"
    sink = MemorySink()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), over, sinks=sink)
        await ask(gateway.data_port, context)
        await ask(gateway.data_port, context, execute)
        records = await sink.wait_for(2)
    assert sorted((record.intent, record.scheme) for record in records) == [
        ("execute", "https"),
        ("passthrough", "https"),
    ]


@pytest.mark.parametrize("wrong", ["authority", "name", "no certificate"])
async def test_a_cluster_that_does_not_check_out_is_a_502(start_gateway: StartGateway, pki: Pki, wrong: str) -> None:
    cert, key = pki.issue("outward", "gateway.test")
    tls = {"ca_file": pki.ca_file, "cert_file": cert, "key_file": key}
    tls |= {"authority": {"ca_file": pki.other_ca_file}, "name": {"server_name": "x.test"}}.get(wrong, {})
    if wrong == "no certificate":
        del tls["cert_file"], tls["key_file"]
    upstream = RecordingUpstream()
    async with secured(upstream, pki) as url:
        gateway = await start_gateway(url, None, {"upstream": {"tls": tls}})
        answer = await send_request(gateway.data_port, b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")
        assert answer.line == b"HTTP/1.1 502 Bad Gateway"
        assert b"UpstreamUnavailable" in answer.body
        assert upstream.requests == []


async def test_each_connection_to_the_cluster_uses_the_current_authorities(
    start_gateway: StartGateway, pki: Pki
) -> None:
    cert, key = pki.issue("outward", "gateway.test")
    trusted = pki.write("trusted.pem", pki.read("other-ca.pem"))
    upstream = RecordingUpstream()
    async with secured(upstream, pki) as url:
        tls = {"ca_file": trusted, "cert_file": cert, "key_file": key}
        gateway = await start_gateway(url, None, {"upstream": {"tls": tls}})
        answer = await send_request(gateway.data_port, b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")
        assert answer.line == b"HTTP/1.1 502 Bad Gateway"
        pki.write("trusted.pem", pki.read("ca.pem"))
        assert gateway.upstream.tls is not None
        assert await asyncio.to_thread(gateway.upstream.tls.refresh)
        answer = await send_request(gateway.data_port, b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")
        assert answer.body == b"ok"


@pytest.mark.parametrize(("server_name", "healthy"), [("cluster.test", True), ("", False)])
async def test_a_probe_checks_the_configured_name(pki: Pki, server_name: str, healthy: bool) -> None:
    upstream = RecordingUpstream()
    async with secured(upstream, pki, "cluster.test") as url:
        cert, key = pki.issue("outward", "gateway.test")
        settings = Upstream(
            url=url, tls=Tls(ca_file=pki.ca_file, cert_file=cert, key_file=key, server_name=server_name)
        )
        source = to_cluster(settings.tls, configure("error", "json"))
        [node] = NodeSet(settings).nodes
        assert await Prober(settings.health, lambda: source)(node) is healthy


async def test_plain_http_on_a_port_with_tls_ends_the_connection(start_gateway: StartGateway, pki: Pki) -> None:
    cert, key = pki.issue("gateway", HOST)
    gateway = await start_gateway("http://127.0.0.1:1", None, {"listen": {"tls": {"cert_file": cert, "key_file": key}}})
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await send_request(gateway.data_port, b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")


async def test_a_connection_whose_handshake_spans_a_reload_is_served_by_the_new_settings(
    http: str, start_gateway: StartGateway, pki: Pki
) -> None:
    cert, key = pki.issue("gateway", HOST)
    listen = {"tls": {"cert_file": cert, "key_file": key}}
    async with RecordingUpstream() as old, RecordingUpstream() as new:
        gateway = await start_gateway(old.url, UseCase(), {"listen": listen})
        reader, writer = await asyncio.open_connection(HOST, gateway.data_port)
        came, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = ssl.create_default_context(cafile=pki.ca_file).wrap_bio(came, sent, server_hostname=HOST)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        writer.write(sent.read())
        while True:  # until only the client's part is missing
            came.write(await reader.read(65536))
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
        await gateway.reload(settings_for(new.url, {"listen": {**listen, "http": http}}), gateway.log)
        client.write(b"GET / HTTP/1.1\r\nHost: c\r\n\r\n")
        writer.write(sent.read())
        while not new.requests and not old.requests:
            assert await asyncio.wait_for(reader.read(65536), PATIENCE)
        assert not old.requests
        writer.transport.abort()


def test_a_gateway_without_its_certificate_is_not_built(pki: Pki) -> None:
    settings = settings_for("http://x", {"listen": {"tls": {"cert_file": str(pki.folder / "none")}}})
    with pytest.raises(ConfigError, match=r"listen\.tls\.cert_file"):
        build(settings, None, configure("error", "json"))

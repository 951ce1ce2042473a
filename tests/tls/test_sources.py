"""Handshakes on loopback between the gateway's two sides of TLS, as the settings and the files say."""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509

from gateway.config.load import ConfigError, ConfigProblem
from gateway.config.schema import ListenTls, Tls
from gateway.observe.logs import configure
from gateway.upstream.tls import TlsSource, on_data_port, to_cluster, watch
from tests.tls.certificates import Pki
from tests.wire import PATIENCE

LOG = configure("error", "json", io.StringIO())
HOST = "127.0.0.1"
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def listening(tls: ListenTls) -> TlsSource:
    source = on_data_port(tls, LOG)
    assert source is not None
    return source


class Server:
    """Sends each client the name in its certificate, "-" when it showed none."""

    def __init__(self, source: TlsSource) -> None:
        self._source = source

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._serve, HOST, 0, ssl=self._source.listener_context())
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.write(((name_in(shown) if shown else "-") + "\n").encode())
        writer.close()


def name_in(certificate: bytes) -> str:
    names = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return ",".join(str(name.value) for name in names.value)


async def meet(client: TlsSource | ssl.SSLContext, port: int) -> tuple[str, str, str]:
    """Who the server saw, whom the client saw, and the version spoken."""
    tls = client.connect_options(HOST) if isinstance(client, TlsSource) else {"ssl": client}
    reader, writer = await asyncio.open_connection(HOST, port, **tls)
    try:
        seen = (await reader.readline()).decode().strip()
        if not seen:
            raise ConnectionResetError("no handshake")
        tls = writer.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True)
        return seen, name_in(shown), tls.version()
    finally:
        writer.transport.abort()


async def refused(client: TlsSource | ssl.SSLContext, port: int) -> bool:
    try:
        await meet(client, port)
    except (ssl.SSLError, ConnectionError):
        return True
    return False


@LOOPS
def test_each_handshake_uses_the_latest_files_on_either_loop(pki: Pki, run: Callable[[Any], None]) -> None:
    async def story() -> None:
        cert, key = pki.issue("server", HOST)
        client_cert, client_key = pki.issue("client", "gateway-1.test")
        server = listening(ListenTls(cert, key, pki.ca_file))
        client = to_cluster(Tls(ca_file=pki.ca_file, cert_file=client_cert, key_file=client_key), LOG)
        async with Server(server) as port:
            assert await meet(client, port) == ("gateway-1.test", HOST, "TLSv1.3")
            pki.issue("server", HOST, "renewed.test")
            pki.issue("client", "gateway-2.test")
            assert await meet(client, port) == ("gateway-1.test", HOST, "TLSv1.3")  # nobody looked yet
            assert (server.refresh(), client.refresh()) == (True, True)
            assert await meet(client, port) == ("gateway-2.test", f"{HOST},renewed.test", "TLSv1.3")
            assert (server.refresh(), client.refresh()) == (False, False)

    run(story())


@LOOPS
@pytest.mark.parametrize("name", ["", "server.test"], ids=["without SNI", "with SNI"])
def test_new_certificates_do_not_depend_on_sni(pki: Pki, run: Callable[[Any], None], name: str) -> None:
    async def names_shown(port: int) -> str:
        context = ssl.create_default_context(cafile=pki.ca_file)
        context.check_hostname = False
        _, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=name)
        try:
            return name_in(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        finally:
            writer.transport.abort()

    async def story() -> None:
        server = listening(ListenTls(*pki.issue("server", "server.test")))
        async with Server(server) as port:
            assert await names_shown(port) == "server.test"
            pki.issue("server", "server.test", "renewed.test")
            assert server.refresh()
            assert await names_shown(port) == "server.test,renewed.test"

    run(story())


def meet_with_session(
    context: ssl.SSLContext, port: int, session: ssl.SSLSession | None
) -> tuple[bool, ssl.SSLSession | None]:
    """Connect and read to the end. Return whether `session` was resumed, and the new session. Blocks.

    Raises:
        OSError: the server refused the connection. ssl.SSLError is one.
    """
    with socket.create_connection((HOST, port)) as tcp:
        tcp.settimeout(PATIENCE)
        with context.wrap_socket(tcp, server_hostname=HOST, session=session) as tls:
            if not tls.recv(100):
                raise ConnectionResetError("no handshake")
            while tls.recv(100):
                pass
            return bool(tls.session_reused), tls.session


@LOOPS
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_replaced_client_authorities_end_sessions_too(
    pki: Pki, run: Callable[[Any], None], version: ssl.TLSVersion
) -> None:
    async def story() -> None:
        context = ssl.create_default_context(cafile=pki.ca_file)
        context.maximum_version = version
        context.load_cert_chain(*pki.issue("client", "client.test"))
        other = ssl.create_default_context(cafile=pki.ca_file)
        other.load_cert_chain(*pki.issue("other-client", "other.test", by=pki.other))
        cert, key = pki.issue("server", HOST)
        clients = pki.write("clients.pem", pki.read("ca.pem"))
        server = listening(ListenTls(cert, key, clients))
        async with Server(server) as port:
            assert await refused(other, port)
            _, session = await asyncio.to_thread(meet_with_session, context, port, None)
            resumed, session = await asyncio.to_thread(meet_with_session, context, port, session)
            assert resumed
            pki.write("clients.pem", pki.read("other-ca.pem"))
            assert server.refresh()
            assert (await meet(other, port))[0] == "other.test"
            with pytest.raises(OSError):
                await asyncio.to_thread(meet_with_session, context, port, session)

    run(story())


@LOOPS
def test_new_settings_apply_to_the_next_handshake(pki: Pki, run: Callable[[Any], None]) -> None:
    async def story() -> None:
        cert, key = pki.issue("server", HOST)
        anonymous = ssl.create_default_context(cafile=pki.ca_file)
        older = ssl.create_default_context(cafile=pki.ca_file)
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        server = listening(ListenTls(cert, key))
        async with Server(server) as port:
            assert await meet(older, port) == ("-", HOST, "TLSv1.2")
            server.replace_with(listening(ListenTls(cert, key, min_version="1.3")))
            assert await refused(older, port)
            assert await meet(anonymous, port) == ("-", HOST, "TLSv1.3")
            server.replace_with(listening(ListenTls(cert, key, pki.ca_file, "required")))
            assert await refused(anonymous, port)
            server.replace_with(listening(ListenTls(cert, key, pki.ca_file, "optional")))
            assert await meet(anonymous, port) == ("-", HOST, "TLSv1.3")

    run(story())


async def test_an_open_connection_lives_on_when_certificates_change(pki: Pki) -> None:
    cert, key = pki.issue("server", HOST)
    server = listening(ListenTls(cert, key))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(echo, HOST, 0, ssl=server.listener_context()) as running:
        port = running.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cafile=pki.ca_file)
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        pki.issue("server", HOST)
        assert server.refresh()
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        writer.transport.abort()


async def test_files_that_make_no_whole_leave_the_old_ones_in_use(pki: Pki) -> None:
    cert, key = pki.issue("server", HOST)
    server = listening(ListenTls(cert, key))
    context = ssl.create_default_context(cafile=pki.ca_file)
    good, another = pki.read("server.pem"), pki.read(Path(pki.issue("x", HOST)[0]).name)
    async with Server(server) as port:
        for broken in (b"", b"not PEM", good[: len(good) // 2], another):
            pki.write("server.pem", broken)
            assert not server.refresh()
            assert await meet(context, port) == ("-", HOST, "TLSv1.3")
        pki.remove("server.pem")
        assert not server.refresh()
        assert await meet(context, port) == ("-", HOST, "TLSv1.3")
        pki.issue("server", HOST, "repaired.test")
        assert server.refresh()
        assert await meet(context, port) == ("-", f"{HOST},repaired.test", "TLSv1.3")


async def test_changes_are_found_without_being_told(pki: Pki) -> None:
    cert, key = pki.issue("server", HOST)
    server = listening(ListenTls(cert, key))
    looking = asyncio.create_task(watch(lambda: [server], 0.01))
    context = ssl.create_default_context(cafile=pki.ca_file)
    async with asyncio.timeout(PATIENCE), Server(server) as port:
        pki.issue("server", HOST, "found.test")
        while (await meet(context, port))[1] != f"{HOST},found.test":
            pass
    looking.cancel()


@pytest.mark.parametrize(
    ("auth", "certificate", "seen"),
    [
        ("required", "ours", "client.test"),
        ("required", "other", None),
        ("required", "", None),
        ("optional", "ours", "client.test"),
        ("optional", "other", None),
        ("optional", "", "-"),
    ],
)
async def test_clients_certificates(pki: Pki, auth: Any, certificate: str, seen: str | None) -> None:
    cert, key = pki.issue("server", HOST)
    context = ssl.create_default_context(cafile=pki.ca_file)
    if certificate:
        context.load_cert_chain(*pki.issue("client", "client.test", by=getattr(pki, certificate)))
    async with Server(listening(ListenTls(cert, key, pki.ca_file, auth))) as port:
        if seen is None:
            assert await refused(context, port)
        else:
            assert (await meet(context, port))[0] == seen


@pytest.mark.parametrize(
    ("identity", "tls", "accepted"),
    [
        (HOST, {"ca": "ours"}, True),
        (HOST, {"ca": "other"}, False),
        (HOST, {}, False),
        ("elsewhere.test", {"ca": "ours"}, False),
        ("elsewhere.test", {"ca": "ours", "server_name": "elsewhere.test"}, True),
        (HOST, {"ca": "ours", "server_name": "elsewhere.test"}, False),
        ("elsewhere.test", {"verify": False}, True),
    ],
)
async def test_the_clusters_certificate(pki: Pki, identity: str, tls: dict[str, Any], accepted: bool) -> None:
    cert, key = pki.issue("server", identity)
    files = {"ours": pki.ca_file, "other": pki.other_ca_file}
    client = to_cluster(Tls(ca_file=files.get(tls.pop("ca", ""), ""), **tls), LOG)
    async with Server(listening(ListenTls(cert, key))) as port:
        assert await refused(client, port) is not accepted


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"),
    [("1.2", "1.2", "TLSv1.3"), ("1.3", "1.2", "TLSv1.3"), ("1.2", "only 1.2", "TLSv1.2"), ("1.3", "only 1.2", None)],
)
async def test_oldest_version(pki: Pki, ours: Any, theirs: str, spoken: str | None) -> None:
    cert, key = pki.issue("server", HOST)
    context = ssl.create_default_context(cafile=pki.ca_file)
    if theirs.startswith("only"):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with Server(listening(ListenTls(cert, key, min_version=ours))) as port:
        if spoken is None:
            assert await refused(context, port)
        else:
            assert (await meet(context, port))[2] == spoken


def test_a_certificate_and_its_key_may_share_a_file(pki: Pki) -> None:
    cert, key = pki.issue("server", HOST)
    Path(cert).write_bytes(Path(cert).read_bytes() + Path(key).read_bytes())
    assert listening(ListenTls(cert)).context


def test_no_certificate_no_tls() -> None:
    assert on_data_port(ListenTls(), LOG) is None


def problems(make: Callable[[], object]) -> list[ConfigProblem]:
    with pytest.raises(ConfigError) as caught:
        make()
    return caught.value.problems


def test_files_that_cant_be_used_are_told_by_their_setting(pki: Pki) -> None:
    cert, key = pki.issue("server", HOST)
    other, _ = pki.issue("other", HOST)
    Path(pki.folder / "text").write_text("text")
    text, gone = str(pki.folder / "text"), str(pki.folder / "gone")
    reported = [
        problems(lambda: on_data_port(ListenTls(gone, key), LOG)),
        problems(lambda: on_data_port(ListenTls(other, key), LOG)),
        problems(lambda: on_data_port(ListenTls(cert), LOG)),
        problems(lambda: on_data_port(ListenTls(cert, key, text), LOG)),
        problems(lambda: to_cluster(Tls(ca_file=gone), LOG)),
        problems(lambda: to_cluster(Tls(cert_file=text), LOG)),
    ]
    assert [(problem.path, problem.reason.partition(": ")[0]) for [problem] in reported] == [
        ("listen.tls.cert_file", f"{gone} and {key} can't be used"),
        ("listen.tls.cert_file", f"{other} and {key} can't be used"),
        ("listen.tls.cert_file", f"{cert} can't be used"),
        ("listen.tls.client_ca_file", f"{text} can't be used"),
        ("upstream.tls.ca_file", f"{gone} can't be used"),
        ("upstream.tls.cert_file", f"{text} can't be used"),
    ]
    assert reported[0][0].reason.endswith(": No such file or directory")
    assert reported[1][0].reason.endswith(": key values mismatch")


def test_an_encrypted_key_is_refused_rather_than_asked_for(pki: Pki) -> None:
    from cryptography.hazmat.primitives import serialization as form

    cert, key = pki.issue("server", HOST)
    plain = form.load_pem_private_key(Path(key).read_bytes(), None)
    sealed = plain.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"x"))
    Path(key).write_bytes(sealed)
    [problem] = problems(lambda: on_data_port(ListenTls(cert, key), LOG))
    assert problem.reason == f"{cert} and {key} can't be used: the key is encrypted"

"""Through the gateway: the cluster gets one set of credentials, and a signature that holds for what it got."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest
import requests
from requests_aws4auth import AWS4Auth

from gateway.ports import ExecuteCall, Forward
from tests.conftest import StartGateway
from tests.proxy.use_case import UseCase
from tests.wire import Parsed, RecordingUpstream, send_request

EXECUTE = "/_plugins/_ml/agents/a1/_execute"
SIGNED = b"AWS4-HMAC-SHA256 Credential=A/20260101/r/es/aws4_request, SignedHeaders=host, Signature=0"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")


def sigv4(service: str = "es", **more: Any) -> dict[str, Any]:
    return {"upstream": {"auth": {"mode": "sigv4", "sigv4": {"service": service, "region": "eu-west-1"}}, **more}}


def request(method: str, target: str, *headers: bytes, body: bytes = b"", chunked: bool = False) -> bytes:
    framing = [b"Transfer-Encoding: chunked"] if chunked else [b"Content-Length: %d" % len(body)] if body else []
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    line = f"{method} {target} HTTP/1.1".encode()
    return b"\r\n".join((line, b"Host: client.example", *headers, *framing, b"", body))


def checked(received: Parsed, service: str = "es", unsigned: bool = False) -> None:
    """What the service does: compute the signature of the received request, and compare."""
    method, target, _ = received.line.decode().split()
    [given] = received.values("Authorization")
    [payload] = received.values("X-Amz-Content-SHA256")
    expected = "UNSIGNED-PAYLOAD" if unsigned else hashlib.sha256(received.body).hexdigest()
    assert payload.decode() == expected
    names = given.decode().partition("SignedHeaders=")[2].partition(",")[0].split(";")
    auth = AWS4Auth("AKIDEXAMPLE", "secret", "eu-west-1", service, session_token="token")
    again: Any = requests.Request(method, "https://x/").prepare()
    again.url = f"https://x{target}"
    again.headers.clear()
    again.headers.update({name: received.values(name)[0].decode() for name in names})
    headers, signed = AWS4Auth.get_canonical_headers(again, names)
    text = "\n".join(
        (method, auth.amz_cano_path(target.partition("?")[0]), auth.amz_cano_querystring(target.partition("?")[2]))
    )
    auth.regenerate_signing_key(date=received.values("X-Amz-Date")[0].decode()[:8])
    whole = auth.get_sig_string(again, f"{text}\n{headers}\n{signed}\n{expected}", auth.signing_key.scope)
    signature = hmac.new(auth.signing_key.key, whole.encode(), hashlib.sha256).hexdigest()
    assert given.decode().endswith(f"Signature={signature}")
    assert set(names) >= {"host", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token"}


@pytest.mark.parametrize(
    "raw",
    [
        request("GET", "/"),
        request("GET", "/a%2Fb//c/../d?q=a+b&pretty&x=*"),
        request("HEAD", "/i"),
        request("POST", "/_bulk", b"Content-Type: application/x-ndjson", body=b'{"index":{}}\n{}\n'),
        request("PUT", "/i/_doc/1", b"content-type: application/json", body=b"{}", chunked=True),
        request("DELETE", "/i", b"Authorization: Basic YTpi", b"authorization: Bearer x", b"x-amz-date: 1"),
        request("GET", "/", b"Authorization: " + SIGNED),
        request("POST", EXECUTE, b"Content-Type: application/json", body=b'{"parameters":{}}'),
    ],
)
async def test_what_reaches_the_service_is_signed_as_it_stands(start_gateway: StartGateway, raw: bytes) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), sigv4())
        assert (await send_request(gateway.data_port, raw, bodyless=raw.startswith(b"HEAD"))).line == b"HTTP/1.1 200 OK"
        [received] = upstream.requests
    assert received.line == raw.partition(b"\r\n")[0]
    assert received.values("Host") == [f"127.0.0.1:{upstream.port}".encode()]
    assert received.body in raw
    checked(received)


async def test_a_rewritten_body_is_what_is_signed(start_gateway: StartGateway) -> None:
    use_case = UseCase(Forward([b'{"parameters":', memoryview(b"{}}")]))
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case, sigv4())
        raw = request("POST", EXECUTE, b"Authorization: " + SIGNED, body=b'{"input":"x"}')
        assert (await send_request(gateway.data_port, raw)).line == b"HTTP/1.1 200 OK"
        [received] = upstream.requests
    assert received.body == b'{"parameters":{}}'
    checked(received)


async def test_serverless_streams_bodies_unsigned(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), sigv4("aoss"))
        await send_request(gateway.data_port, request("POST", "/_bulk", body=b"{}\n", chunked=True))
        await send_request(gateway.data_port, request("GET", "/"))
    streamed, empty = upstream.requests
    checked(streamed, "aoss", unsigned=True)
    checked(empty, "aoss")


async def test_a_body_the_signature_needs_is_limited(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {**sigv4(), "limits": {"body": 10}})
        answer = await send_request(gateway.data_port, request("POST", "/_bulk", body=b"x" * 11))
        assert answer.line == b"HTTP/1.1 413 Request Entity Too Large"
        assert upstream.requests == []


async def test_lookups_of_the_gateways_own_are_signed_too(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), sigv4())
        await gateway.upstream.get_json("/_plugins/_ml/agents/a1", {"Authorization": "Basic YTpi"})
        [received] = upstream.requests
    checked(received)


async def test_without_credentials_requests_are_refused_with_503(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), sigv4())
        answer = await send_request(gateway.data_port, request("GET", "/"))
        assert answer.line == b"HTTP/1.1 503 Service Unavailable"
        assert b"CredentialsUnavailable" in answer.body
        assert b"secret" not in answer.body
        assert upstream.requests == []


async def test_basic_takes_the_place_of_the_clients_own(start_gateway: StartGateway, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p\n")
    account = {"username": "u", "password": {"file": str(tmp_path / "password")}}
    async with RecordingUpstream() as upstream:
        over = {"upstream": {"auth": {"mode": "basic", "basic": account}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        await send_request(gateway.data_port, request("POST", "/i", b"Authorization: Bearer x", body=b"{}"))
        [received] = upstream.requests
    assert received.values("Authorization") == [b"Basic " + base64.b64encode(b"u:p")]


async def test_a_signature_in_the_query_is_refused_where_the_gateway_puts_its_own(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), sigv4())
        answer = await send_request(gateway.data_port, request("GET", "/?X-Amz-Signature=ab"))
        assert answer.line == b"HTTP/1.1 400 Bad Request"
        assert b'"type":"SignatureConflict"' in answer.body
        assert (await send_request(gateway.data_port, request("GET", "/"))).line == b"HTTP/1.1 200 OK"
        assert len(upstream.requests) == 1


async def test_a_clients_signature_passes_where_nothing_changes(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"upstream": {"host_header": "client"}})
        raw = request("POST", EXECUTE, b"X-Amz-Date: 1", b"Authorization: " + SIGNED, body=b"{}")
        assert (await send_request(gateway.data_port, raw)).line == b"HTTP/1.1 200 OK"
        [received] = upstream.requests
    assert received.values("Host") == [b"client.example"]
    assert received.values("Authorization") == [SIGNED]


@pytest.mark.parametrize(
    ("target", "headers"),
    [(EXECUTE, [b"Authorization: " + SIGNED]), (f"{EXECUTE}?X-Amz-Signature=ab", [])],
    ids=["header", "query"],
)
async def test_a_clients_signature_on_a_rewritten_request_is_refused(
    start_gateway: StartGateway, target: str, headers: list[bytes]
) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"])))
        answer = await send_request(gateway.data_port, request("POST", target, *headers, body=b'{"input":"x"}'))
        assert answer.line == b"HTTP/1.1 400 Bad Request"
        assert b'"type":"SignatureConflict"' in answer.body
        assert b"the signature would not be valid for that" in answer.body
        assert upstream.requests == []


class Eager:
    """A use case that knows at once what to send."""

    async def __call__(self, call: ExecuteCall) -> Forward:
        return Forward([b"{}"])

    def invalidate(self, kind: str, id: str | None) -> None: ...


@pytest.mark.parametrize(("over", "status"), [({}, b"400 Bad Request"), (sigv4(), b"200 OK")], ids=["pass", "sigv4"])
async def test_what_is_known_at_once_is_no_way_around(
    start_gateway: StartGateway, over: dict[str, Any], status: bytes
) -> None:
    use_case = Eager()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, lambda *_: (use_case, use_case), over)
        raw = request("POST", EXECUTE, b"Authorization: " + SIGNED, body=b'{"input":"x"}')
        assert (await send_request(gateway.data_port, raw)).line == b"HTTP/1.1 " + status
        assert len(upstream.requests) == (status == b"200 OK")


async def test_an_agent_that_a_clients_signature_cant_read_is_told_as_that(start_gateway: StartGateway) -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    async with RecordingUpstream([refusal]) as upstream:
        gateway = await start_gateway(upstream.url)
        headers = [b"Content-Type: application/json", b"Authorization: " + SIGNED]
        answer = await send_request(gateway.data_port, request("POST", EXECUTE, *headers, body=b'{"input":"x"}'))
        assert answer.line == b"HTTP/1.1 400 Bad Request"
        assert b'"type":"SignatureConflict"' in answer.body
        assert {sent.line.split()[0] for sent in upstream.requests} == {b"GET"}


async def test_a_search_for_a_session_is_answered_though_its_body_would_be_signed(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    settings = {**sigv4(), "memory": {"sqlite": {"path": str(tmp_path / "sessions.sqlite3")}}}
    target = "/_plugins/_ml/memory_containers/c/memories/working/_search"
    for_session = b'{"query": {"term": {"namespace.session_id": "gws-a-0123456789abcdef01234567"}}}'
    other = b'{"query": {"match_all": {}}}'
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, None, settings)
        shown = await send_request(gateway.data_port, request("POST", target, body=for_session))
        passed = await send_request(gateway.data_port, request("POST", target, body=other))
    assert b'"hits":[]' in shown.body
    assert passed.body == b"ok"
    assert [sent.body for sent in upstream.requests] == [b"", other]
    checked(upstream.requests[1])


@pytest.mark.parametrize("service", ["es", "aoss"])
@pytest.mark.parametrize("raw", [b"POST " + EXECUTE.encode(), b"POST /_bulk", b"GET /"])
async def test_a_request_that_moves_to_another_node_is_signed_for_that_node(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch, service: str, raw: bytes
) -> None:
    body = b"" if raw.startswith(b"GET") else b"{}\n"
    async with RecordingUpstream() as one, RecordingUpstream() as other:
        over = sigv4(service, nodes=[one.url, other.url], health={"interval": 0})
        gateway = await start_gateway(one.url, UseCase(), over)
        auth = gateway.upstream.auth
        assert auth is not None
        sign = auth.sign
        ended: list[RecordingUpstream] = []

        async def end_node(method: bytes, target: bytes, headers: Any, body: Any) -> Any:
            """Sign, while the node ends for which the request is signed."""
            if not ended:
                ended.append(one if (b"Host", f"127.0.0.1:{one.port}".encode()) in headers else other)
                await ended[0].__aexit__()
                while gateway.upstream._connections:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            return await sign(method, target, headers, body)

        monkeypatch.setattr(auth, "sign", end_node)
        head = raw + b" HTTP/1.1\r\nHost: client.example\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert (await send_request(gateway.data_port, head + body)).line == b"HTTP/1.1 200 OK"
        [left] = {one.port, other.port} - {ended[0].port}
        [received] = one.requests + other.requests
    assert received.values("Host") == [f"127.0.0.1:{left}".encode()]
    assert received.body == body
    checked(received, service)


async def test_a_reload_reads_the_credentials_again(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that never expire are read once, until SIGHUP."""
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), sigv4())
        await send_request(gateway.data_port, request("GET", "/"))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDROTATED")
        await send_request(gateway.data_port, request("GET", "/"))
        await gateway.reload(gateway.settings, gateway.log)
        await send_request(gateway.data_port, request("GET", "/"))
        keys = [
            seen.values("Authorization")[0].partition(b"Credential=")[2].partition(b"/")[0]
            for seen in upstream.requests
        ]
    assert keys == [b"AKIDEXAMPLE", b"AKIDEXAMPLE", b"AKIDROTATED"]

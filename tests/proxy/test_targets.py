"""How far a request goes, and under which target: absolute targets, ids in raw bytes, Max-Forwards."""

from __future__ import annotations

import json

import pytest

from gateway.ports import Forward
from tests.conftest import StartGateway
from tests.proxy.use_case import UseCase
from tests.wire import RecordingUpstream, send_request, send_until_closed

ML = b"/_plugins/_ml"
EXECUTE = ML + b"/agents/a/_execute"


def _request(first: bytes, *lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((first, b"Host: c.example:92", *lines, b"", body))


def _post(target: bytes) -> bytes:
    return _request(b"POST %b HTTP/1.1" % target, b"Content-Length: 2", body=b"{}")


@pytest.mark.parametrize(
    ("first", "sent", "host"),
    [
        (b"GET http://c.example:92/x?y HTTP/1.1", b"GET /x?y HTTP/1.1", b"c.example:92"),
        (b"GET HTTPS://C.example:92 HTTP/1.1", b"GET / HTTP/1.1", b"C.example:92"),
        (b"GET http://c.example:92?y HTTP/1.1", b"GET /?y HTTP/1.1", b"c.example:92"),
        (b"OPTIONS http://c.example:92 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"c.example:92"),
        (b"GET http://c.example:92/x HTTP/1.0", b"GET /x HTTP/1.1", b"c.example:92"),
        (b"GET http://other.example/x HTTP/1.1", b"GET /x HTTP/1.1", b"other.example"),
        (b"GET http://c.example:93/x HTTP/1.0", b"GET /x HTTP/1.1", b"c.example:93"),
    ],
)
@pytest.mark.parametrize("http", ["builtin", "aiohttp"])
async def test_an_absolute_target_goes_on_as_a_path_with_its_host(
    first: bytes, sent: bytes, host: bytes, http: str, start_gateway: StartGateway
) -> None:
    """RFC 9112, 3.2.2: the target's host replaces `Host`, also in what the gateway says of it."""
    overrides = {"upstream": {"host_header": "client"}, "listen": {"http": http, "forwarded": "append"}}
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), overrides)
        assert (await send_request(gateway.data_port, _request(first))).body == b"ok"
        [request] = upstream.requests
        assert (request.line, request.values("host"), request.values("x-forwarded-host")) == (sent, [host], [host])


async def test_an_absolute_target_is_intercepted_like_a_path(start_gateway: StartGateway) -> None:
    use_case = UseCase(Forward([b"rewritten"]))
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        for host in (b"c.example:92", b"C.EXAMPLE:92"):
            await send_request(gateway.data_port, _post(b"http://" + host + EXECUTE))
        await send_request(gateway.data_port, _request(b"DELETE http://c.example:92%b/models/m HTTP/1.1" % ML))
        assert [call.agent_id for call in use_case.calls] == ["a", "a"]
        assert use_case.calls[0].raw_target == EXECUTE.decode()
        assert use_case.forgotten == [("models", "m")]
        assert [(request.line, request.body) for request in upstream.requests] == [
            *[(b"POST %b HTTP/1.1" % EXECUTE, b"rewritten")] * 2,
            (b"DELETE %b/models/m HTTP/1.1" % ML, b""),
        ]


async def test_an_id_in_raw_bytes_is_the_one_that_the_cluster_reads(start_gateway: StartGateway) -> None:
    use_case = UseCase(Forward())
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        for raw in (b"\xe9", b"\xc3\xa9", b"\xe8", b"%c3%a9"):
            await send_request(gateway.data_port, _post(EXECUTE.replace(b"/a/", b"/%b/" % raw)))
        assert [call.agent_id for call in use_case.calls] == ["\xe9", "\xc3\xa9", "\xe8", "é"]
        ids = [request.line.split(b"/")[4] for request in upstream.requests]
        assert ids == [b"\xe9", b"\xc3\xa9", b"\xe8", b"%c3%a9"]


HOPS = [
    (b"OPTIONS", b"1", b"0"),
    (b"TRACE", b"5", b"4"),
    (b"OPTIONS", b"010", b"9"),
    (b"TRACE", b"9" * 5000, b"999999999"),
    (b"GET", b"0", b"0"),
    (b"POST", b"7", b"7"),
    (b"options", b"3", b"3"),  # methods have their own case
]


@pytest.mark.parametrize(("method", "came", "sent"), HOPS)
async def test_max_forwards_is_counted_down(
    method: bytes, came: bytes, sent: bytes, start_gateway: StartGateway
) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"listen": {"forwarded": "append"}})
        raw = _request(method + b" /x HTTP/1.1", b"X-A: 1", b"max-FORWARDS:" + came, b"X-B: 2")
        assert (await send_request(gateway.data_port, raw)).body == b"ok"
        [request] = upstream.requests
        forwarded = [pair for pair in request.headers if not pair[0].lower().startswith((b"host", b"x-f"))]
        assert forwarded == [(b"X-A", b"1"), (b"max-FORWARDS", sent), (b"X-B", b"2")]


@pytest.mark.parametrize("target", [b"*", b"/x?y", b"http://c.example:92/x", EXECUTE])
async def test_options_with_no_forwards_left_are_answered_here(target: bytes, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"admission": {"total": 1}})
        raw = _request(b"OPTIONS %b HTTP/1.1" % target, b"Max-Forwards: 00")
        follower = _request(b"GET /x HTTP/1.1", b"Connection: close")
        came = await send_until_closed(gateway.data_port, raw + follower)
        head, _, rest = came.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n")
        assert b"\r\nAllow: DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, TRACE" in head
        assert rest.endswith(b"ok")
        assert [request.line for request in upstream.requests] == [b"GET /x HTTP/1.1"]
        assert b"mlc_gateway_in_flight 0.0" in gateway.metrics.render().splitlines()


async def test_trace_with_no_forwards_left_reflects_what_is_no_secret(start_gateway: StartGateway) -> None:
    secret = [
        b"Authorization: Basic s3cret", b"Proxy-Authorization: s3cret", b"Cookie: s3cret",
        b"X-Amz-Security-Token: s3cret", b"x-api-KEY: s3cret", b"X-Proxy-User: s3cret", b"X-Vault-Token: s3cret",
    ]  # fmt: skip
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = _request(b"TRACE /x?y HTTP/1.1", b"X-A: caf\xe9", *secret, b"Max-Forwards: 0")
        answer = await send_request(gateway.data_port, raw)
        assert answer.line == b"HTTP/1.1 200 OK"
        assert answer.values("content-type") == [b"message/http"]
        assert answer.body == _request(b"TRACE /x?y HTTP/1.1", b"X-A: caf\xe9", b"Max-Forwards: 0")
        assert upstream.requests == []


async def test_a_body_behind_the_last_hop_is_not_read_as_a_request(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        inner = _request(b"GET /inner HTTP/1.1")
        for lines, body in (
            ((b"Content-Length: %d" % len(inner),), inner),
            ((b"Content-Length: %d" % (len(inner) + 1),), inner),
            ((b"Transfer-Encoding: chunked",), b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)),
        ):
            raw = _request(b"OPTIONS * HTTP/1.1", b"Max-Forwards: 0", b"Connection: close", *lines, body=body)
            came = await send_until_closed(gateway.data_port, raw)
            assert came.startswith(b"HTTP/1.1 200 OK")
            assert came.count(b"HTTP/1.1 ") == 1
        assert upstream.requests == []


@pytest.mark.parametrize(
    "raw",
    [
        b"CONNECT c.example:92 HTTP/1.1\r\nHost: c.example:92\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_what_is_not_implemented_is_told_and_ends_the_connection(raw: bytes, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        came = await send_until_closed(gateway.data_port, raw + _request(b"GET /follower HTTP/1.1"))
        head, _, body = came.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 501 Not Implemented\r\n")
        assert b"\r\nConnection: close" in head
        error = json.loads(body)["error"]
        assert (error["type"], error["reason"][:23]) == ("NotImplemented", "The request can't be se")
        assert upstream.requests == []

"""What the edge does around the execute use case: reads, asks, forwards, answers."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest

from gateway.errors import InvalidInput, Problem, UndeliverableContent
from gateway.ports import Forward
from tests.conftest import StartGateway
from tests.proxy.use_case import UseCase
from tests.wire import Parsed, RecordingUpstream, read_message, send_request, send_until_closed

PATH = b"/_plugins/_ml/agents/a1/_execute"


def _call(*headers: bytes, body: bytes = b"", path: bytes = PATH, sized: bool = True) -> bytes:
    length = (b"Content-Length: %d" % len(body),) if sized else ()
    return b"\r\n".join((b"POST %b HTTP/1.1" % path, b"Host: c", *headers, *length, b"", body))


async def test_untouched_request_arrives_as_it_was_sent(start_gateway: StartGateway) -> None:
    use_case = UseCase()
    packed = gzip.compress(b'{"parameters":{"question":"hi"}}')
    raw = _call(b"Authorization: Basic YTpi", b"x-A: 1", b"Content-Encoding: gzip", b"X-a: 2", body=packed)
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        answer = await send_request(gateway.data_port, raw)
        [received] = upstream.requests
        host = b"127.0.0.1:%d" % upstream.port
    assert answer == Parsed(b"HTTP/1.1 200 OK", ((b"Content-Length", b"2"),), b"ok")
    headers = (
        (b"Host", host),
        (b"Authorization", b"Basic YTpi"),
        (b"x-A", b"1"),
        (b"Content-Encoding", b"gzip"),
        (b"X-a", b"2"),
        (b"Content-Length", b"%d" % len(packed)),
    )
    assert received == Parsed(b"POST %b HTTP/1.1" % PATH, headers, packed)
    [call] = use_case.calls
    assert (call.agent_id, call.method, call.raw_target) == ("a1", "POST", PATH.decode())
    assert call.body == b'{"parameters":{"question":"hi"}}'
    assert call.headers.getall("X-A") == ["1", "2"]
    assert not call.streaming


async def test_rewritten_request_carries_the_new_body_and_all_other_headers(start_gateway: StartGateway) -> None:
    use_case = UseCase(Forward([b'{"a":', memoryview(b'"b"}')], {"X-MLC-Gateway-Delivery": "strategy=x"}))
    raw = _call(
        b"Authorization: Basic YTpi", b"Content-Encoding: gzip", b"Content-Type: application/json",
        b"X-Opaque-Id: o", body=gzip.compress(b"{}"),
    )  # fmt: skip
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        answer = await send_request(gateway.data_port, raw)
        [received] = upstream.requests
    assert received.headers[1:] == (
        (b"Authorization", b"Basic YTpi"),
        (b"Content-Type", b"application/json"),
        (b"X-Opaque-Id", b"o"),
        (b"Content-Length", b"9"),
    )
    assert received.body == b'{"a":"b"}'
    assert answer.headers == ((b"Content-Length", b"2"), (b"X-MLC-Gateway-Delivery", b"strategy=x"))


async def test_big_rewritten_body_arrives_whole(start_gateway: StartGateway) -> None:
    pieces = [b"x" * 3_000_000, memoryview(b"y" * 1_000_001)]
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward(pieces)))
        await send_request(gateway.data_port, _call(body=b"{}"))
        assert upstream.requests[0].body == b"".join(pieces)


async def test_chunked_call_is_read_whole(start_gateway: StartGateway) -> None:
    use_case = UseCase()
    body = b"2\r\n{}\r\n0\r\n\r\n"
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        await send_request(gateway.data_port, _call(b"Transfer-Encoding: chunked", body=body, sized=False))
        [received] = upstream.requests
    assert use_case.calls[0].body == received.body == b"{}"
    assert received.values("content-length") == [b"2"]


async def test_stream_route_and_encoded_id(start_gateway: StartGateway) -> None:
    use_case = UseCase()
    target = b"/_plugins/_ml/agents/%61%2F1/_execute/stream?x=1"
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        await send_request(gateway.data_port, _call(path=target))
        assert upstream.requests[0].line == b"POST %b HTTP/1.1" % target
    assert (use_case.calls[0].agent_id, use_case.calls[0].streaming) == ("a/1", True)


async def test_client_that_waits_for_100_is_told_to_go_on_and_the_cluster_is_not_asked(
    start_gateway: StartGateway,
) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(_call(b"Expect: 100-continue", b"Content-Length: 2", sized=False))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await read_message(reader)).body == b"ok"
        writer.close()
        assert upstream.requests[0].values("expect") == []


REFUSAL = b"HTTP/1.1 400 Bad Request\r\nX-First: 1\r\nContent-Length: 3\r\n\r\noff"


async def test_retry_is_asked_with_the_refusal_and_sent_once(start_gateway: StartGateway) -> None:
    asked: list[tuple[int, bytes]] = []

    def retry(status: int, body: bytes) -> Forward:
        asked.append((status, body))
        return Forward([b"second"], {"X-Two": "2"}, retry)

    async with RecordingUpstream([REFUSAL]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward(None, {"X-One": "1"}, retry)))
        answer = await send_request(gateway.data_port, _call(body=b"first"))
        assert [request.body for request in upstream.requests] == [b"first", b"second"]
    assert asked == [(400, b"off")]
    assert answer == Parsed(
        b"HTTP/1.1 400 Bad Request", ((b"X-First", b"1"), (b"Content-Length", b"3"), (b"X-Two", b"2")), b"off"
    )


async def test_retry_that_declines_leaves_the_answer_whole(start_gateway: StartGateway) -> None:
    async with RecordingUpstream([REFUSAL]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward(None, {"X-One": "1"}, lambda *_: None)))
        answer = await send_request(gateway.data_port, _call(body=b"first"))
        assert len(upstream.requests) == 1
    assert (answer.body, answer.values("x-one")) == (b"off", [b"1"])


async def test_big_error_answer_is_not_shown_to_retry_and_arrives_whole(start_gateway: StartGateway) -> None:
    big = b"e" * 500_000
    refusal = b"HTTP/1.1 500 Bad\r\nContent-Length: %d\r\n\r\n%b" % (len(big), big)

    def retry(*_: object) -> Forward:
        raise AssertionError("asked")

    async with RecordingUpstream([refusal]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward(retry=retry)))
        answer = await send_request(gateway.data_port, _call(body=b"x"))
    assert answer.body == big


async def test_refusal_has_the_gateways_shape_and_nothing_is_sent(start_gateway: StartGateway) -> None:
    problem = Problem("input[0]", "no", expected="text", received="image", code="X", help="upgrade")
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(UndeliverableContent.of([problem])))
        answer = await send_request(gateway.data_port, _call(body=b"{}"))
        assert not upstream.requests
    assert answer.line == b"HTTP/1.1 400 Bad Request"
    assert answer.values("content-type") == [b"application/json; charset=UTF-8"]
    assert json.loads(answer.body) == UndeliverableContent.of([problem]).body()


async def test_fault_of_our_own_is_a_clean_500_and_the_next_request_works(start_gateway: StartGateway) -> None:
    use_case = UseCase(RuntimeError("secret detail"))
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        answer = await send_request(gateway.data_port, _call(body=b"{}"))
        use_case.answer = Forward()
        assert (await send_request(gateway.data_port, _call(body=b"{}"))).body == b"ok"
    document = json.loads(answer.body)
    [request_id] = answer.values("x-request-id")
    assert (document["status"], document["error"]["type"]) == (500, "InternalError")
    assert request_id.decode() in document["error"]["reason"]
    assert b"secret detail" not in answer.body


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


DECODED = {
    "identity": (b"identity", b"abc", b"abc"),
    "gzip": (b"gzip", gzip.compress(b"abc"), b"abc"),
    "x-gzip in odd case": (b"X-GZip", gzip.compress(b"abc"), b"abc"),
    "gzip of two members": (b"gzip", gzip.compress(b"ab") + gzip.compress(b"c"), b"abc"),
    "deflate": (b"deflate", zlib.compress(b"abc"), b"abc"),
    "deflate without its wrapper": (b"deflate", _raw_deflate(b"abc"), b"abc"),
    "twice": (b"deflate, gzip", gzip.compress(zlib.compress(b"abc")), b"abc"),
    "big": (b"gzip", gzip.compress(bytes(range(256)) * 4000, 0), bytes(range(256)) * 4000),
    "empty": (b"gzip", b"", b""),
}


@pytest.mark.parametrize(("coding", "body", "decoded"), DECODED.values(), ids=DECODED.keys())
async def test_content_encodings(coding: bytes, body: bytes, decoded: bytes, start_gateway: StartGateway) -> None:
    use_case = UseCase()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        await send_request(gateway.data_port, _call(b"Content-Encoding: %b" % coding, body=body))
        assert upstream.requests[0].body == body
    assert use_case.calls[0].body == decoded


LIMIT = 100_000
REFUSED = {
    "too long, announced": (413, (), b"x" * (LIMIT + 1)),
    "bomb": (413, (b"Content-Encoding: gzip",), gzip.compress(b"\0" * 5_000_000)),
    "bomb of many members": (413, (b"Content-Encoding: gzip",), gzip.compress(b"\0" * 1000) * 200),
    "bomb in a bomb": (413, (b"Content-Encoding: gzip, gzip",), gzip.compress(gzip.compress(b"\0" * 9_000_000))),
    "unknown coding": (415, (b"Content-Encoding: br",), b"x"),
    "many codings": (415, (b"Content-Encoding: gzip, gzip, gzip, gzip, gzip",), b"x"),
    "no gzip": (400, (b"Content-Encoding: gzip",), b"plain"),
    "cut gzip": (400, (b"Content-Encoding: gzip",), gzip.compress(b"abc" * 1000)[:-9]),
    "gzip with a tail": (400, (b"Content-Encoding: gzip",), gzip.compress(b"abc") + b"tail"),
    "deflate with a tail": (400, (b"Content-Encoding: deflate",), zlib.compress(b"abc") + b"tail"),
    "no deflate": (400, (b"Content-Encoding: deflate",), b"\xff\xff\xff"),
}


@pytest.mark.parametrize(("status", "headers", "body"), REFUSED.values(), ids=REFUSED.keys())
async def test_bodies_that_are_refused(
    status: int, headers: tuple[bytes, ...], body: bytes, start_gateway: StartGateway
) -> None:
    async with RecordingUpstream() as upstream:
        limits = {"limits": {"body": LIMIT, "decompressed": LIMIT}}
        gateway = await start_gateway(upstream.url, UseCase(), limits)
        answer = await send_request(gateway.data_port, _call(*headers, body=body))
        assert answer.line.split()[1] == b"%d" % status
        assert json.loads(answer.body)["status"] == status
        assert not upstream.requests


async def test_endless_chunked_body_is_refused(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"limits": {"body": LIMIT}})
        raw = _call(b"Transfer-Encoding: chunked", body=b"ffff\r\n" + b"x" * 65535 + b"\r\n", sized=False)
        answer = await send_request(gateway.data_port, raw + b"ffff\r\n" + b"x" * 65535 + b"\r\n")
        assert answer.line.split()[1] == b"413"
        assert not upstream.requests


async def test_body_that_breaks_off_asks_nobody(start_gateway: StartGateway) -> None:
    use_case = UseCase()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        came = await send_until_closed(
            gateway.data_port, _call(b"Transfer-Encoding: chunked", body=b"2\r\n{}\r\nnonsense\r\n", sized=False)
        )
        assert came.startswith(b"HTTP/1.1 400 ") or came.startswith(b"HTTP/1.0 400 ")
        assert not use_case.calls
        assert not upstream.requests


async def test_refusals_are_counted(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(InvalidInput("bad")))
        assert (await send_request(gateway.data_port, _call(body=b"{}"))).line.split()[1] == b"400"
        rendered = gateway.metrics.render().decode()
    assert 'mlc_gateway_requests_total{intent="execute",status="400"} 1.0' in rendered


WRITES = {
    b"POST /_plugins/_ml/agents/_register": ("agents", None),
    b"PUT /_plugins/_ml/agents/a%201/": ("agents", "a 1"),
    b"DELETE /_plugins/_ml/agents/a1?x": ("agents", "a1"),
    b"PUT /_plugins/_ml/models/m1": ("models", "m1"),
    b"DELETE /_plugins/_ml/connectors/c1": ("connectors", "c1"),
    b"PUT /_cluster/settings": ("cluster", None),
}


@pytest.mark.parametrize("line", WRITES)
async def test_writes_pass_and_the_cache_forgets(line: bytes, start_gateway: StartGateway) -> None:
    use_case = UseCase()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        answer = await send_request(gateway.data_port, line + b" HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\n\r\n{}")
        assert (answer.body, upstream.requests[0].body) == (b"ok", b"{}")
        assert upstream.requests[0].line == line + b" HTTP/1.1"
    assert use_case.forgotten == [WRITES[line]]

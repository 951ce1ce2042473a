"""The connection to the cluster, and the errors that a client gets when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from multidict import CIMultiDict

from gateway.errors import AnswerTooLarge, UpstreamTimeout, UpstreamUnavailable
from gateway.upstream.client import Upstream
from tests.conftest import StartGateway, settings_for
from tests.proxy.use_case import UseCase
from tests.wire import OK, RecordingUpstream, Script, delivered, read_message, reserved, send_request, send_until_closed

GET = b"GET / HTTP/1.1\r\nHost: c\r\n\r\n"
EXECUTE = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\n\r\n{}"


def _after_head(raw: bytes, *, then: bytes = b"", reset: bool = False, wait: bool = False) -> Script:
    """An upstream that reads a request, sends `raw`, later `then`, and hangs up, resets or falls silent."""

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(raw)
        await writer.drain()
        if then:
            await delivered(writer.transport)
            writer.write(then)
        if wait or then:
            await reader.read()
        if reset:
            await delivered(writer.transport)  # a reset may overtake what was sent just before
            writer.transport.abort()

    return script


BEFORE_THE_ANSWER = {
    "hangs up": _after_head(b""),
    "resets": _after_head(b"", reset=True),
    "hangs up within the head": _after_head(b"HTTP/1.1 200 OK\r\nContent-"),
    "resets within the head": _after_head(b"HTTP/1.1 200 OK\r\nContent-", reset=True),
    "garbage": _after_head(b"\x00\xff nonsense\r\n\r\n"),
    "not http": _after_head(b"SSH-2.0-x\r\n"),
    "two lengths": _after_head(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "switches protocols unasked": _after_head(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
}


@pytest.mark.parametrize("raw", [GET, EXECUTE], ids=["get", "execute"])
@pytest.mark.parametrize("script", BEFORE_THE_ANSWER.values(), ids=BEFORE_THE_ANSWER.keys())
async def test_fault_before_the_answer_is_a_502(script: Script, raw: bytes, start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        answer = await send_request(gateway.data_port, raw)
        assert answer.line == b"HTTP/1.1 502 Bad Gateway"
        assert json.loads(answer.body)["error"]["type"] == "UpstreamUnavailable"
        assert str(upstream.port).encode() not in answer.body
        upstream.script = None
        assert (await send_request(gateway.data_port, raw)).body == b"ok"


async def test_refused_connection_is_a_502(start_gateway: StartGateway) -> None:
    with reserved() as port:
        gateway = await start_gateway(f"http://127.0.0.1:{port}", UseCase())
        answer = await send_request(gateway.data_port, GET)
    assert answer.line == b"HTTP/1.1 502 Bad Gateway"


async def test_tls_to_a_plain_port_is_a_502(start_gateway: StartGateway) -> None:
    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url.replace("http", "https"), UseCase())
        assert (await send_request(gateway.data_port, GET)).line == b"HTTP/1.1 502 Bad Gateway"


async def test_silence_is_a_504(start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=_after_head(b"", wait=True)) as upstream:
        over = {"upstream": {"url": upstream.url, "timeouts": {"header": 0.05, "execute": 0.05}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        for raw in (GET, EXECUTE):
            answer = await send_request(gateway.data_port, raw)
            assert answer.line == b"HTTP/1.1 504 Gateway Timeout"
            assert json.loads(answer.body)["error"]["type"] == "UpstreamTimeout"


async def test_execute_has_a_patience_of_its_own(start_gateway: StartGateway) -> None:
    runs, goes_on = asyncio.Event(), asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_message(reader)
        if request.line.startswith(b"GET "):
            await reader.read()
            return
        runs.set()
        await goes_on.wait()
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        over = {"upstream": {"url": upstream.url, "timeouts": {"header": 0.05, "idle": 0.05}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        running = asyncio.create_task(send_request(gateway.data_port, EXECUTE))
        await runs.wait()
        # It began later, and its time is over.
        assert (await send_request(gateway.data_port, GET)).line == b"HTTP/1.1 504 Gateway Timeout"
        goes_on.set()
        assert (await running).body == b"ok"


async def test_wait_for_the_uploads_of_others_is_no_fault_of_the_node(start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=_after_head(b"", wait=True)) as upstream:
        over = {"upstream": {"url": upstream.url, "connections": 2, "timeouts": {"idle": 0.05}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        part = b"PUT /i HTTP/1.1\r\nHost: c\r\nContent-Length: 9\r\n\r\nabc"
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(part)
        while not upstream.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        answer = await send_request(gateway.data_port, part)
        assert answer.line == b"HTTP/1.1 504 Gateway Timeout"
        assert json.loads(answer.body)["error"]["reason"].startswith("All connections to the cluster that")
        [state] = gateway.upstream.nodes.states()
        assert state.failures["connect"] == 0
        writer.transport.abort()


WITHIN_THE_BODY = {
    "length, hangs up": _after_head(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
    "length, resets": _after_head(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", reset=True),
    "chunks, hangs up": _after_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
    "chunks, bad size": _after_head(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", then=b"zz\r\n"
    ),
    "length, stalls": _after_head(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", wait=True),
    "chunks, stall": _after_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", wait=True),
}


@pytest.mark.parametrize("script", WITHIN_THE_BODY.values(), ids=WITHIN_THE_BODY.keys())
async def test_fault_within_the_body_cuts_the_client(script: Script, start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=script) as upstream:
        over = {"upstream": {"url": upstream.url, "timeouts": {"idle": 0.1}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        came = await send_until_closed(gateway.data_port, GET)
        assert not came.endswith((b"0\r\n\r\n", b"}"))
        assert 'status="0"} 1.0' in gateway.metrics.render().decode()
        upstream.script = None
        assert (await send_request(gateway.data_port, GET)).body == b"ok"


def _closing_after(requests: int) -> Script:
    """Keeps a connection for so many requests, then closes it where it would have read the next."""

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(requests):
            upstream.requests.append(await read_message(reader))
            writer.write(OK)
        await reader.readexactly(1)
        writer.transport.abort()

    return script


async def test_safe_request_is_sent_again_on_a_stale_connection_and_no_other(start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=_closing_after(1)) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        assert [(await send_request(gateway.data_port, GET)).body for _ in range(3)] == [b"ok"] * 3
        assert upstream.connections == 3
        post = b"POST /i HTTP/1.1\r\nHost: c\r\nContent-Length: 1\r\n\r\nx"
        assert (await send_request(gateway.data_port, post)).line == b"HTTP/1.1 502 Bad Gateway"


async def test_early_answer_reaches_a_client_that_is_still_sending(start_gateway: StartGateway) -> None:
    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = b"POST /_bulk HTTP/1.1\r\nHost: c\r\nContent-Length: 100\r\n\r\nonly some"
        answer = await send_request(gateway.data_port, raw)
        assert (answer.line, answer.body) == (b"HTTP/1.1 413 Too Large", b"big")


@pytest.fixture
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Upstream, RecordingUpstream]]:
    """A parameter is the time limit of lookups."""
    async with RecordingUpstream() as recording:
        timeouts = {"lookup": getattr(request, "param", 60)}
        settings = settings_for(recording.url, {"upstream": {"url": recording.url, "timeouts": timeouts}})
        upstream = Upstream(settings.upstream, settings.limits)
        await upstream.start()
        yield upstream, recording
        await upstream.close()


async def test_get_json_sends_the_callers_headers(cluster: tuple[Upstream, RecordingUpstream]) -> None:
    upstream, recording = cluster
    recording.answers = [b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a":"b"}']
    headers = CIMultiDict([("Authorization", "Basic x"), ("Cookie", "é"), ("Content-Length", "7"), ("Host", "other")])
    assert await upstream.get_json("/_plugins/_ml/agents/a%20b", headers) == (200, {"a": "b"})
    [request] = recording.requests
    assert request.line == b"GET /_plugins/_ml/agents/a%20b HTTP/1.1"
    assert request.headers == (
        (b"Host", b"127.0.0.1:%d" % recording.port),
        (b"Authorization", b"Basic x"),
        (b"Cookie", "é".encode()),
    )


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"no", b"\xff", b"[" * 100_000], ids=["empty", "list", "text", "ff", "deep"]
)
async def test_get_json_of_no_object_is_none(body: bytes, cluster: tuple[Upstream, RecordingUpstream]) -> None:
    upstream, recording = cluster
    recording.answers = [b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)]
    assert await upstream.get_json("/x", {}) == (404, None)


async def test_exchange_sends_a_body(cluster: tuple[Upstream, RecordingUpstream]) -> None:
    upstream, recording = cluster
    recording.answers = [b"HTTP/1.1 201 Created\r\nX-A: 1\r\nX-a: 2\r\nContent-Length: 2\r\n\r\nok"]
    response = await upstream.exchange("POST", "/x?y", {"Content-Type": "a/b"}, [b"ab", memoryview(b"c")])
    assert (response.status, response.body, response.headers.getall("x-a")) == (201, b"ok", ["1", "2"])
    assert recording.requests[0].body == b"abc"


@pytest.mark.parametrize("cluster", [0.2], indirect=True)
async def test_exchange_has_an_end(cluster: tuple[Upstream, RecordingUpstream]) -> None:
    upstream, recording = cluster
    recording.script = _after_head(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", wait=True)
    with pytest.raises(UpstreamTimeout, match=r"GET /x within 0\.2 s"):
        await upstream.exchange("GET", "/x", {})


async def test_exchange_that_breaks_off_is_told(cluster: tuple[Upstream, RecordingUpstream]) -> None:
    upstream, recording = cluster
    recording.script = _after_head(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    with pytest.raises(UpstreamUnavailable):
        await upstream.exchange("GET", "/x", {})


async def _endless(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_message(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
            await writer.drain()


LONG = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"


@pytest.mark.parametrize(
    "script",
    [_endless, _after_head(LONG % (10_000_000, b" " * 10_000_000), wait=True)],
    ids=["endless", "long"],
)
async def test_an_answer_is_read_up_to_a_limit(script: Script, cluster: tuple[Upstream, RecordingUpstream]) -> None:
    upstream, recording = cluster
    recording.script = script
    with pytest.raises(AnswerTooLarge, match=r"/x is longer than 1000 bytes") as error:
        await upstream.exchange("GET", "/x?y", {}, most=1000)
    assert "limits.text" in error.value.hint
    with pytest.raises(AnswerTooLarge, match="longer than 8388608 bytes"):
        await upstream.get_json("/x", {})
    recording.script = None
    recording.answers = [OK]
    assert (await upstream.exchange("GET", "/x", {})).status == 200


@pytest.mark.parametrize(("values", "large"), [(99_999, False), (100_001, True)])
async def test_a_document_has_so_many_values_at_most(
    values: int, large: bool, cluster: tuple[Upstream, RecordingUpstream]
) -> None:
    upstream, recording = cluster
    body = b'{"a":[' + b"1," * (values - 2) + b"1]}"
    recording.answers = [LONG % (len(body), body)]
    if not large:
        status, document = await upstream.get_json("/x", {})
        assert (status, len(document["a"]) if document else 0) == (200, values - 1)
        return
    with pytest.raises(AnswerTooLarge, match="/x has more than 100000 values"):
        await upstream.get_json("/x", {})

"""A response that the use case finishes: it is held, changed and sent whole; an event stream is relayed as it comes."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass, field

import pytest

from gateway.ports import Answer, Forward
from gateway.proxy import run as run_module
from tests.conftest import StartGateway
from tests.proxy.use_case import Stage, UseCase
from tests.wire import PATIENCE, RecordingUpstream, read_message, send_request, send_until_closed

REQUEST = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
STREAM = REQUEST.replace(b"_execute", b"_execute/stream")
OLD = REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0")
COMPRESSED = gzip.compress(b'{"a": 1}')


def response(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), lines, body)


def chunked(*pieces: bytes, kind: bytes = b"application/json") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % (kind, body)


@dataclass
class Finisher:
    """Finishes responses. answer: what it returns. seen: what it was given. abandoned: how often it was."""

    answer: Answer | None = None
    seen: list[tuple[int, bytes]] = field(default_factory=list)
    abandoned: int = 0

    async def finish(self, status: int, body: bytes) -> Answer | None:
        self.seen.append((status, body))
        await asyncio.sleep(0)
        return self.answer

    def abandon(self) -> None:
        self.abandoned += 1

    def forward(self) -> Forward:
        stage = Stage(self.finish, lambda piece: piece.replace(b"old", b"new id"), {"X-Unread": "3"}, self.abandon)
        return Forward([b"{}"], {"X-Own": "1"}, stages=(stage,))


@pytest.mark.parametrize("request_bytes", [REQUEST, OLD], ids=["1.1", "1.0"])
@pytest.mark.parametrize(
    ("came", "seen"),
    [
        (response(b'{"a": 1}', b"X-Dup: 1", b"X-Dup: 2", b'ETag: "1"'), b'{"a": 1}'),
        (chunked(b'{"a"', b": 1}"), b'{"a": 1}'),
        (response(COMPRESSED, b"Content-Encoding: gzip"), b'{"a": 1}'),
        (response(b""), b""),
    ],
    ids=["length", "chunks", "gzip", "empty"],
)
async def test_the_answer_replaces_the_body(
    start_gateway: StartGateway, request_bytes: bytes, came: bytes, seen: bytes
) -> None:
    finisher = Finisher(Answer(200, {"X-Added": "2"}, b'{"other": 2}'))
    async with RecordingUpstream([came]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(finisher.forward()))
        answer = await send_request(gateway.data_port, request_bytes)
    assert finisher.seen == [(200, seen)]
    assert answer.body == b'{"other": 2}'
    assert answer.values("Content-Length") == [b"12"]
    assert answer.values("Content-Encoding") == answer.values("ETag") == answer.values("Transfer-Encoding") == []
    assert (answer.values("X-Own"), answer.values("X-Added")) == ([b"1"], [b"2"])
    assert len(answer.values("X-Dup")) == 2 * came.count(b"X-Dup: 2")


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found", b"500 Oops"])
async def test_without_an_answer_the_response_is_sent_as_it_came(start_gateway: StartGateway, status: bytes) -> None:
    finisher = Finisher()
    came = response(COMPRESSED, b"Content-Encoding: gzip", b'ETag: "1"', status=status)
    async with RecordingUpstream([came]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(finisher.forward()))
        answer = await send_request(gateway.data_port, REQUEST)
    assert finisher.seen == [(int(status[:3]), b'{"a": 1}')]
    assert answer.body == COMPRESSED
    assert answer.line == b"HTTP/1.1 " + status
    assert (answer.values("Content-Encoding"), answer.values("ETag")) == ([b"gzip"], [b'"1"'])


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"],
    ids=["204", "304"],
)
async def test_a_response_without_a_body_keeps_its_length(start_gateway: StartGateway, head: bytes) -> None:
    finisher = Finisher()
    async with RecordingUpstream([head]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(finisher.forward()))
        answer = await send_until_closed(gateway.data_port, REQUEST.replace(b"Host", b"Connection: close\r\nHost"))
    assert finisher.seen == [(int(head[9:12]), b"")]
    expected = head[:-2] + b"X-Own: 1\r\n"
    assert answer.replace(b"Connection: close\r\n", b"") == expected + b"\r\n"


async def test_a_response_with_as_many_headers_as_allowed_gets_a_length(start_gateway: StartGateway) -> None:
    finisher = Finisher(Answer(200, {}, b'{"other": 2}'))
    came = b'HTTP/1.1 200 OK\r\nX-A: 1\r\nX-B: 2\r\nX-C: 3\r\nX-D: 4\r\n\r\n{"a": 1}'
    async with RecordingUpstream([came]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(finisher.forward()), {"limits": {"headers": 4}})
        answer = await send_request(gateway.data_port, REQUEST)
    assert finisher.seen == [(200, b'{"a": 1}')]
    assert (answer.body, answer.values("Content-Length")) == (b'{"other": 2}', [b"12"])


@pytest.mark.parametrize("frames", [response, chunked])
async def test_a_response_that_is_too_large_passes(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch, frames: object
) -> None:
    monkeypatch.setattr(run_module, "HELD_ANSWER", 100_000)
    body = b"x" * 300_000
    finisher = Finisher(Answer(200, {}, b"never"))
    came = response(body) if frames is response else chunked(body)
    async with RecordingUpstream([came]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(finisher.forward()))
        answer = await send_request(gateway.data_port, REQUEST)
    assert answer.body == body
    assert answer.values("X-Unread") == [b"3"]
    assert finisher.seen == []
    assert finisher.abandoned


@pytest.mark.parametrize(
    ("body", "coding"),
    [(b"\x00", b"gzip"), (b"\x28\xb5\x2f\xfd", b"zstd"), (gzip.compress(bytes(100_001), mtime=0), b"gzip")],
    ids=["not gzip", "unknown", "too large"],
)
async def test_a_response_that_can_not_be_decoded_passes(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch, body: bytes, coding: bytes
) -> None:
    monkeypatch.setattr(run_module, "HELD_ANSWER", 100_000)
    finisher = Finisher(Answer(200, {}, b"never"))
    ok = response(body, b"Content-Encoding: " + coding)
    error = response(body, b"Content-Encoding: " + coding, status=b"401 Unauthorized")
    async with RecordingUpstream([ok, error]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(finisher.forward()))
        answer = await send_request(gateway.data_port, REQUEST)
        assert (answer.body, answer.values("Content-Encoding")) == (body, [coding])
        assert answer.values("X-Unread") == [b"3"]
        assert finisher.seen == []
        assert finisher.abandoned
        finisher.answer = None
        refused = await send_request(gateway.data_port, REQUEST)
    assert (refused.body, refused.values("X-Unread")) == (body, [])
    assert finisher.seen == [(401, b"")]


async def test_a_response_to_finish_has_no_content_coding(start_gateway: StartGateway) -> None:
    coded = REQUEST.replace(b"Host: x", b"Host: x\r\nAccept-Encoding: gzip, zstd")
    async with RecordingUpstream([response(b"{}")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Finisher().forward()))
        await send_request(gateway.data_port, coded)
        plain = await start_gateway(upstream.url, UseCase(Forward([b"{}"])))
        await send_request(plain.data_port, coded)
    assert [sent.values("Accept-Encoding") for sent in upstream.requests] == [[b"identity"], [b"gzip, zstd"]]


async def test_no_response_abandons(start_gateway: StartGateway) -> None:
    async def break_off(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    finisher = Finisher()
    async with RecordingUpstream(script=break_off) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(finisher.forward()))
        answer = await send_request(gateway.data_port, REQUEST)
    assert answer.line.startswith(b"HTTP/1.1 502")
    assert finisher.seen == []
    assert finisher.abandoned


async def test_a_fault_of_the_use_case_is_an_internal_error(start_gateway: StartGateway) -> None:
    async def fail(status: int, body: bytes) -> Answer | None:
        raise RuntimeError("fault")

    async with RecordingUpstream([response(b"{}")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"], stages=(Stage(fail),))))
        answer = await send_request(gateway.data_port, REQUEST)
    assert answer.line.startswith(b"HTTP/1.1 500")


async def test_a_retry_is_decided_before_the_response_is_finished(start_gateway: StartGateway) -> None:
    finisher = Finisher(Answer(200, {}, b"finished"))
    again = Forward([b"{}"])
    first = Forward([b"1"], retry=lambda status, body: again if body == b"again" else None)
    first = first.through(Stage(finisher.finish))
    async with RecordingUpstream([response(b"again", status=b"400 Bad"), response(b"{}")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(first))
        answer = await send_request(gateway.data_port, REQUEST)
    assert answer.body == b"finished"
    assert finisher.seen == [(200, b"{}")]


@pytest.mark.parametrize("request_bytes", [STREAM, STREAM.replace(b"HTTP/1.1", b"HTTP/1.0")], ids=["1.1", "1.0"])
async def test_an_event_stream_is_relayed_and_finished(start_gateway: StartGateway, request_bytes: bytes) -> None:
    finisher = Finisher(Answer(200, {}, b"data: end\n\n"))
    came = chunked(b"data: old\n\n", b"data: 2\n\n", kind=b"text/event-stream; charset=utf-8")
    async with RecordingUpstream([came]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(finisher.forward()))
        answer = await send_request(gateway.data_port, request_bytes)
    assert answer.body == b"data: new id\n\ndata: 2\n\ndata: end\n\n"
    assert finisher.seen == [(200, b"")]


async def test_events_arrive_before_the_stream_ends(start_gateway: StartGateway) -> None:
    finisher = Finisher(Answer(200, {}, b""))
    ends = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        first, _, rest = chunked(b"data: old\n\n", b"data: 2\n\n", kind=b"text/event-stream").partition(b"data: 2")
        writer.write(first)
        await ends.wait()
        writer.write(b"data: 2" + rest)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENCE):
        port = server.sockets[0].getsockname()[1]
        gateway = await start_gateway(f"http://127.0.0.1:{port}", UseCase(finisher.forward()))
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(STREAM)
        await reader.readuntil(b"data: new id\n\n")
        assert finisher.seen == []
        ends.set()
        await reader.readuntil(b"0\r\n\r\n")
        assert finisher.seen == [(200, b"")]
        writer.close()


async def test_an_error_in_place_of_a_stream_is_held(start_gateway: StartGateway) -> None:
    finisher = Finisher()
    async with RecordingUpstream([response(b"{}", status=b"400 Bad")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(finisher.forward()))
        answer = await send_request(gateway.data_port, STREAM)
    assert (answer.line, answer.body) == (b"HTTP/1.1 400 Bad", b"{}")
    assert finisher.seen == [(400, b"{}")]


BAD_HEADERS = {"X-Own": "\ud800"}
"""Can't be sent."""


async def _fail(*_: object) -> Answer:
    raise RuntimeError("fault")


def _fail_at_once(*_: object) -> None:
    raise RuntimeError("fault")


def through(stage: Stage) -> Forward:
    return Forward([b"{}"], stages=(stage,))


FAULTS: dict[str, tuple[Forward, str]] = {
    "finish": (through(Stage(_fail)), "RuntimeError"),
    "headers of the finished answer": (
        through(Stage(Finisher(Answer(200, BAD_HEADERS, b"{}")).finish)),
        "UnicodeEncodeError",
    ),
    "headers of the response": (Forward([b"{}"], BAD_HEADERS), "UnicodeEncodeError"),
    "headers of an unread response": (
        through(Stage(_fail, left=BAD_HEADERS, abandon=_fail_at_once)),
        "UnicodeEncodeError",
    ),
    "retry": (Forward([b"{}"], retry=_fail_at_once), "RuntimeError"),
    "answer of a retry": (Forward([b"{}"], retry=lambda *_: Answer(200, BAD_HEADERS, b"")), "UnicodeEncodeError"),
    "awaited answer of a retry": (Forward([b"{}"], retry=_fail), "RuntimeError"),
    "body of a retry": (Forward([b"{}"], retry=lambda *_: Forward([7])), "TypeError"),  # type: ignore[list-item]
    "piece of a stream": (through(Stage(_fail, _fail_at_once)), "RuntimeError"),  # type: ignore[arg-type]
    "end of a stream": (through(Stage(_fail)), "RuntimeError"),
    "last piece of a stream": (through(Stage(Finisher(Answer(200, {}, 7)).finish)), "TypeError"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", FAULTS)
async def test_every_fault_ends_the_exchange_and_is_logged(
    start_gateway: StartGateway,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> None:
    forward, kind = FAULTS[name]
    came = response(b"{}", status=b"400 Bad" if forward.retry is not None else b"200 OK")
    request = REQUEST
    if name.endswith("of a stream"):
        request = STREAM
        came = chunked(b"data: 1\n\n", kind=b"text/event-stream")
    elif name.endswith("an unread response"):
        monkeypatch.setattr(run_module, "HELD_ANSWER", 10)
        came = response(b"x" * 300_000)
    async with RecordingUpstream([came]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(forward))
        close = request.replace(b"Host: x", b"Host: x\r\nConnection: close")
        async with asyncio.timeout(PATIENCE):
            answer = await send_until_closed(gateway.data_port, close)
        assert not gateway._now.port.lifecycle.running
    assert answer.startswith(b"HTTP/1.1 500") or not answer.endswith(b"0\r\n\r\n")
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert any(kind in event["exception"] for event in events if event["event"] == "internal error")

"""`AnswerStage.report`: a stage is shown the cluster's response after it was sent on."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gateway.ports import Answer, Forward
from gateway.proxy import run as run_module
from tests.conftest import StartGateway
from tests.proxy.test_finish import COMPRESSED, REQUEST, STREAM, chunked, response
from tests.proxy.use_case import Stage, UseCase
from tests.wire import PATIENCE, RecordingUpstream, read_message, send_request


@dataclass
class Listener:
    """Notes what `answered` was called with; `heard` after the first call."""

    calls: list[tuple[int, bytes]] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def answered(self, status: int, body: bytes) -> None:
        self.calls.append((status, body))
        self.heard.set()

    async def first(self) -> tuple[int, bytes]:
        async with asyncio.timeout(PATIENCE):
            await self.heard.wait()
        await asyncio.sleep(0)
        assert len(self.calls) == 1
        return self.calls[0]


LARGE = b"x" * 300_000


def heard_by(listener: Listener) -> UseCase:
    return UseCase(Forward([b"{}"], stages=(Stage(report=listener.answered),)))


@pytest.mark.parametrize(
    ("came", "body", "seen"),
    [
        (response(b'{"a": 1}'), b'{"a": 1}', (200, b'{"a": 1}')),
        (response(b"oops", status=b"500 Oops"), b"oops", (500, b"oops")),
        (response(b""), b"", (200, b"")),
        (response(LARGE), LARGE, (200, LARGE)),
        (response(COMPRESSED, b"Content-Encoding: gzip"), COMPRESSED, (200, b'{"a": 1}')),
        (response(b"\x00", b"Content-Encoding: gzip"), b"\x00", (200, b"")),
        (chunked(b'{"a"', b": 1}"), b'{"a": 1}', (200, b'{"a": 1}')),
        (
            chunked(b"data: 1\n\n", b"data: 2\n\n", kind=b"text/event-stream"),
            b"data: 1\n\ndata: 2\n\n",
            (200, b"data: 1\n\ndata: 2\n\n"),
        ),
    ],
    ids=["length", "error", "empty", "large", "gzip", "not gzip", "chunks", "events"],
)
async def test_the_response_is_shown_and_sent_unchanged(
    start_gateway: StartGateway, came: bytes, body: bytes, seen: tuple[int, bytes]
) -> None:
    listener = Listener()
    async with RecordingUpstream([came]) as upstream:
        gateway = await start_gateway(upstream.url, heard_by(listener))
        answer = await send_request(gateway.data_port, STREAM if b"event-stream" in came else REQUEST)
        assert answer.body == body
        assert await listener.first() == seen


async def test_a_response_over_the_limit_is_not_kept(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "HELD_ANSWER", 100_000)
    listener = Listener()
    async with RecordingUpstream([response(LARGE)]) as upstream:
        gateway = await start_gateway(upstream.url, heard_by(listener))
        answer = await send_request(gateway.data_port, REQUEST)
        assert answer.body == LARGE
        assert await listener.first() == (200, b"")


async def test_a_content_over_the_limit_is_not_shown(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "HELD_ANSWER", 100_000)
    listener = Listener()
    body = gzip.compress(LARGE)
    async with RecordingUpstream([response(body, b"Content-Encoding: gzip")]) as upstream:
        gateway = await start_gateway(upstream.url, heard_by(listener))
        assert (await send_request(gateway.data_port, REQUEST)).body == body
        assert await listener.first() == (200, b"")


async def test_events_are_not_held(start_gateway: StartGateway) -> None:
    listener = Listener()
    ends = asyncio.Event()
    whole = chunked(b"data: 1\n\n", b"data: 2\n\n", kind=b"text/event-stream")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        first, _, rest = whole.partition(b"data: 2")
        writer.write(first)
        await ends.wait()
        writer.write(b"data: 2" + rest)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENCE):
        port = server.sockets[0].getsockname()[1]
        use_case = heard_by(listener)
        gateway = await start_gateway(f"http://127.0.0.1:{port}", use_case)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(STREAM)
        await reader.readuntil(b"data: 1\n\n")
        assert listener.calls == []
        ends.set()
        await reader.readuntil(b"0\r\n\r\n")
        assert await listener.first() == (200, b"data: 1\n\ndata: 2\n\n")
        writer.close()


@pytest.mark.parametrize(("begins", "status"), [(b"", 0), (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", 200)])
async def test_an_incomplete_response_has_no_body(start_gateway: StartGateway, begins: bytes, status: int) -> None:
    async def break_off(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(begins)

    listener = Listener()
    async with RecordingUpstream(script=break_off) as upstream:
        gateway = await start_gateway(upstream.url, heard_by(listener))
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(REQUEST)
        assert await listener.first() == (status, b"")
        writer.close()


async def test_a_finished_response_is_shown_as_the_cluster_sent_it(start_gateway: StartGateway) -> None:
    async def finish(status: int, body: bytes) -> Answer:
        return Answer(status, {}, b"another")

    listener = Listener()
    async with RecordingUpstream([chunked(b"as it ", b"came")]) as upstream:
        forward = Forward([b"{}"], stages=(Stage(finish, report=listener.answered),))
        gateway = await start_gateway(upstream.url, UseCase(forward))
        assert (await send_request(gateway.data_port, REQUEST)).body == b"another"
        assert await listener.first() == (200, b"as it came")


async def test_of_a_retry_the_last_response_is_shown(start_gateway: StartGateway) -> None:
    listener = Listener()
    forward = Forward([b"1"], retry=lambda status, body: Forward([b"2"])).through(Stage(report=listener.answered))
    async with RecordingUpstream([response(b"again", status=b"400 Bad"), response(b"{}")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(forward))
        assert (await send_request(gateway.data_port, REQUEST)).body == b"{}"
        assert await listener.first() == (200, b"{}")


async def test_a_fault_of_the_use_case_does_not_reach_the_client(start_gateway: StartGateway) -> None:
    def fail(status: int, body: bytes) -> None:
        raise RuntimeError("fault")

    async with RecordingUpstream([response(b"{}")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"], stages=(Stage(report=fail),))))
        for _ in range(2):
            assert (await send_request(gateway.data_port, REQUEST)).line == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("body", [b"{}", LARGE], ids=["small", "large"])
async def test_a_gateway_that_stops_waits_for_the_work_that_is_left(start_gateway: StartGateway, body: bytes) -> None:
    may_end, ends = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        ends.set()
        await may_end.wait()
        raise RuntimeError("which is logged")

    async with RecordingUpstream([response(body)]) as upstream:
        gateway = await start_gateway(
            upstream.url, UseCase(Forward([b"{}"], stages=(Stage(report=lambda *_: work()),)))
        )
        assert (await send_request(gateway.data_port, REQUEST)).body == body
        async with asyncio.timeout(PATIENCE):
            await ends.wait()
            ended = asyncio.create_task(gateway._now.ended())
            await asyncio.sleep(0.01)
            assert not ended.done()
            may_end.set()
            await ended


async def test_a_gateway_that_stops_waits_for_the_report_of_a_large_response(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_read = asyncio.Event(), asyncio.Event()

    class Reading:
        async def run(self, function: Callable[[], bytes]) -> bytes:
            began.set()
            await may_read.wait()
            return function()

    monkeypatch.setattr(run_module, "READING", Reading())
    listener = Listener()
    async with RecordingUpstream([response(LARGE)]) as upstream:
        gateway = await start_gateway(upstream.url, heard_by(listener))
        assert (await send_request(gateway.data_port, REQUEST)).body == LARGE
        async with asyncio.timeout(PATIENCE):
            await began.wait()
            ended = asyncio.create_task(gateway._now.ended())
            for _ in range(20):  # turns of the loop
                await asyncio.sleep(0)
            assert not ended.done()
            may_read.set()
            await ended
    assert listener.calls == [(200, LARGE)]

"""What is sent of a cluster's stream that breaks: an error as its last event, and never a clean end."""

from __future__ import annotations

import asyncio
import io
import json

import aiohttp
import aiohttp.web
import pytest
from aiohttp.test_utils import TestServer

from gateway.errors import UpstreamUnavailable
from gateway.execute import run_answer, run_events, streams
from gateway.execute.deliveries import Reporter
from gateway.execute.run_events import MOST, NOT_READ, AnswerReader, RunEnded, RunFailed, StreamReader, TextDelta
from gateway.execute.streams import StreamWatch, error_event
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from gateway.ports import Answer
from tests.conftest import StartGateway, settings_for
from tests.execute.stub_cluster import ML, V1, Cluster
from tests.execute.test_session_stream import event

STREAM = b": hello\n\n" + b"".join(
    one + b"\r\n\r\n" for one in (event("It is ", False, "m"), event("größer.", False, "m"), event("", True, "m"))
)


class Watched:
    """A watch over one stream, and what it counts."""

    def __init__(self, payloads: bool = False, profile: AgentProfile = NOT_READ) -> None:
        self.written, self.metrics = io.StringIO(), Metrics()
        settings = settings_for("http://127.0.0.1:1", {"logs": {"payloads": payloads}})
        log = configure("info", "json", self.written)
        self.watch = StreamWatch(profile, Reporter(settings, log, self.metrics))

    async def send(self, *pieces: bytes) -> bytes:
        shown = b"".join(map(self.watch.feed, pieces))
        return shown + (await self.watch.finish(Answer(200, {}, b""), True)).body

    @property
    def counted(self) -> dict[str, int]:
        return {kind: count for kind, count in self.metrics.traffic.stream_errors.items() if count}


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_a_stream_that_is_cut_at_any_byte_ends_with_an_error() -> None:
    for size in range(len(STREAM) + 1):
        watched = Watched()
        shown = await watched.send(STREAM[:size])
        reader = AnswerReader(NOT_READ)
        said = reader.feed(shown)
        if size < len(STREAM) - 4:  # the last event is whole without the lines that end it
            assert isinstance(said[-1], RunFailed), size
            assert reader.answer().failed
            assert watched.counted == {"cut": 1}
        else:
            assert isinstance(said[-1], RunEnded)
            assert (reader.answer().text, watched.counted) == ("It is größer.", {})


async def test_a_whole_stream_keeps_its_bytes(watched: Watched) -> None:
    assert await watched.send(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == STREAM
    assert watched.counted == {}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (rb'{"error": "no \d in \"x\"\nC:\temp"}', 'no \\d in "x"\nC:\\temp'),
        (b'{"error": "a\tb\r"}', "a\tb\r"),
        (b'{"error":"plain"}', "plain"),
    ],
)
async def test_an_error_that_the_cluster_does_not_escape_is_repaired(
    watched: Watched, written: bytes, meant: str
) -> None:
    shown = await watched.send(b"data: " + written + b"\n\n")
    assert json.loads(shown.removeprefix(b"data: ")) == {"error": meant}
    assert watched.counted == {"reported": 1}


@pytest.mark.parametrize("data", [b'{"inference_results":[{"outp', b"{'a':1}", b"\xff"])
async def test_an_event_that_is_no_json_becomes_an_error(watched: Watched, data: bytes) -> None:
    shown = await watched.send(b"data: " + data + b"\n\n")
    assert shown == error_event("The cluster sent an event that is not valid JSON")
    assert watched.counted == {"broken": 1}


LARGE = event("x" * (2 << 20), False, "m")


async def test_each_event_is_decoded_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def decode(data: bytes) -> object:
        decoded.append(data)
        return run_answer.decode(data)

    monkeypatch.setattr(run_events, "decode", decode)
    monkeypatch.setattr(streams, "decode", decode)
    assert await watched.send(STREAM) == STREAM
    documents = [data for data in decoded if data.startswith(b"{")]
    assert len(documents) == len(set(documents)) == 3


@pytest.mark.parametrize("size", [1000, 100_000, (1 << 20) - 1, 3 << 20])
async def test_a_large_event_is_relayed_as_it_comes(watched: Watched, size: int) -> None:
    body = LARGE + b"\n\n" + STREAM
    pieces = [body[begin : begin + size] for begin in range(0, len(body), size)]
    assert await watched.send(*pieces) == body
    assert watched.counted == {}


@pytest.mark.parametrize(
    ("end", "kind"),
    [(b"", "cut"), (b"x\n\n", "broken"), (b"x\r\n\r\n" + STREAM, "broken")],
    ids=["cut", "broken", "more"],
)
async def test_a_large_event_that_breaks_ends_before_the_error(watched: Watched, end: bytes, kind: str) -> None:
    body = LARGE[:-10] + end
    shown = await watched.send(*(body[begin : begin + 70_000] for begin in range(0, len(body), 70_000)))
    assert watched.counted == {kind: 1}
    errors = [line for line in shown.split(b"\n") if line.startswith(b'data: {"error"')]
    assert len(errors) == 1
    said = StreamReader(NOT_READ).feed(shown)
    assert [one.broken for one in said if isinstance(one, RunFailed)] == [True, False]


async def test_an_event_that_is_too_large_to_be_read_is_relayed_and_counted(watched: Watched) -> None:
    body = event("x" * (MOST + (2 << 20)), False, "m") + b"\n\n" + STREAM
    assert await watched.send(*(body[begin : begin + (1 << 20)] for begin in range(0, len(body), 1 << 20))) == body
    assert watched.counted == {"broken": 1}


async def test_a_stream_of_any_length_is_watched(watched: Watched) -> None:
    long = [LARGE + b"\n\n"] * (MOST // len(LARGE) + 1)
    shown = await watched.send(*long, STREAM[:-9])
    assert shown.endswith(
        error_event("The cluster's answer ended before the run did; what was sent of it is not the whole answer")
    )
    assert watched.counted == {"cut": 1}


@pytest.mark.parametrize(
    "text", ['[{"function": {"name": "f"}}]', '{"choices":[{"message":{"tool_calls":[]}}]}', "[", "{{", ""]
)
def test_a_text_that_looks_like_a_call_is_a_text(text: str) -> None:
    """As the stream that is made of a whole answer brings it."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    call_text = json.dumps({"choices": [{"finish_reason": "tool_calls", "message": {"tool_calls": [call]}}]})
    for one in (text, call_text, f"[{call_text}", f"{{{call_text}", f"[{{{call_text}"):
        sent = b"".join(streams.write_events([TextDelta(one), RunEnded()]))
        said = AnswerReader(NOT_READ)
        events = said.feed(sent)
        assert {type(event) for event in events} <= {TextDelta, RunEnded}
        assert said.answer().text == one


async def test_a_stream_that_has_failed_gets_no_second_error(watched: Watched) -> None:
    watched.watch.feed(error_event("no"))
    assert watched.watch.cut(UpstreamUnavailable("gone")) == b""
    assert watched.counted == {"reported": 1}


@pytest.mark.parametrize("payloads", [False, True])
async def test_the_log_repeats_the_cluster_s_message_only_where_payloads_are_logged(payloads: bool) -> None:
    watched = Watched(payloads)
    watched.watch.feed(error_event("Error from remote service: no 'blue' whales"))
    line = json.loads(watched.written.getvalue())
    assert (line["event"], line["kind"]) == ("stream failed", "reported")
    shown = "Error from remote service: no 'blue' whales" if payloads else "Error from remote service"
    assert line["reason"] == shown


@pytest.mark.parametrize("held", [False, True], ids=["relayed", "with a length"])
async def test_a_connection_that_breaks_within_a_stream(start_gateway: StartGateway, held: bool) -> None:
    """The event of the error comes, and then the response breaks off as the cluster's did."""

    async def stream(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.method == "GET":
            return await cluster.answer(request)
        if held:
            return aiohttp.web.Response(body=STREAM[:300], content_type="text/event-stream")
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(STREAM[:300])
        await seen.wait()
        assert request.transport is not None
        request.transport.abort()
        return response

    cluster, seen = Cluster(), asyncio.Event()
    app = aiohttp.web.Application()
    app.router.add_route("*", "/{tail:.*}", stream)
    async with TestServer(app) as server:
        gateway = await start_gateway(f"http://127.0.0.1:{server.port}")
        path = f"http://127.0.0.1:{gateway.data_port}{ML}agents/{V1}/_execute/stream"
        async with aiohttp.ClientSession() as client, client.post(path, json={"input": "hi"}) as response:
            received = b""
            try:
                async for piece in response.content.iter_any():
                    received += piece
                    seen.set()
                is_whole = True
            except aiohttp.ClientPayloadError:
                is_whole = False
    said = StreamReader(NOT_READ).feed(received)
    assert isinstance(said[-1], RunFailed)
    assert is_whole is held

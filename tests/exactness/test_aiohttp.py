"""The data port on aiohttp's server against the tables of this folder: `DIFFERENCES` lists all that is not the same.

Each case is expected to pass as on the built-in server, changed as its differences say. So a new difference fails, and
so does one that is gone. `docs/reference/embedding.md` shows the table.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from _pytest.mark import ParameterSet

from gateway.app import build
from gateway.errors import InvalidInput, Problem
from gateway.observe.logs import configure
from gateway.ports import Forward
from gateway.proxy.application import RUNNER_OPTIONS
from tests.conftest import StartGateway, settings_for
from tests.exactness.table import ANSWERS, HEAD_ANSWERS, REQUESTS, get, post
from tests.exactness.test_loopback import FEEDS, LAST, SMALL, as_cluster_should_see, end_to_end, expected_of, parse
from tests.faults.deployment import expire, waited_for
from tests.http1.reading import read_h11, read_ours
from tests.proxy.use_case import UseCase
from tests.smuggling.endpoints import Witness, answers_in, byte_by_byte, converse, whole
from tests.smuggling.table import HEADER_LINE, HEADERS, REFUSED, ROWS, SECTIONS, SOUND, Row
from tests.wire import OK, PATIENCE, Parsed, RecordingUpstream, delivered, read_message, send_request

AIOHTTP = {"listen": {"http": "aiohttp", "timeouts": {"body": PATIENCE}}}
IMPATIENT = {"listen": {"http": "aiohttp", "timeouts": {"body": 0.5}}}
"""For requests that aiohttp may wait for until the time limit ends them."""


def status_line_of_http_1_0(answer: Parsed) -> Parsed:
    return replace(answer, line=b"HTTP/1.0" + answer.line[8:])


def only_utf_8(answer: Parsed) -> Parsed:
    headers = ((name, value.decode("utf-8", "replace").encode()) for name, value in answer.headers)
    return replace(answer, headers=tuple(headers))


@dataclass(frozen=True)
class Difference:
    """What aiohttp's server does otherwise; `builtin` and `aiohttp` are cells of the page's table.

    requests: cases of `REQUESTS` that it answers with 400. answers: cases of `ANSWERS` that `change` changes. test: the
    function of this module that shows it, where no case does.
    """

    topic: str
    builtin: str
    aiohttp: str
    requests: Sequence[str] = ()
    answers: Sequence[str] = ()
    change: Callable[[Parsed], Parsed] = lambda answer: answer
    test: str = ""


DIFFERENCES = [
    Difference(
        "Status line for HTTP/1.0 clients",
        "`HTTP/1.1`",
        "`HTTP/1.0`",
        answers=[f"to 1.0: {name}" for name in ANSWERS],
        change=status_line_of_http_1_0,
    ),
    Difference(
        "Bytes of response headers that are not UTF-8",
        "Relayed",
        "Replaced by U+FFFD",
        answers=["to 1.0: obs-text", "to 1.1: obs-text"],
        change=only_utf_8,
    ),
    Difference(
        "Targets with bytes beyond ASCII",
        "Relayed",
        "Refused with 400; percent-encoded ones are relayed",
        requests=["target: UTF-8 path", "target: Latin-1 path", "target: UTF-8 query"],
    ),
    Difference(
        "Methods that HTTP's registry does not list",
        "Relayed",
        "Refused with 400",
        requests=["a method of our own", "a method in lower case"],
    ),
    Difference(
        "Whitespace in chunk extensions and after `chunked`",
        "Accepted, as RFC 9112 says",
        "Refused with 400",
        requests=["chunks with extensions", "chunked, whitespace behind it"],
    ),
    Difference(
        "Chunk boundaries, either way", "Kept", "The data is split into other chunks", test="test_chunks_are_made_anew"
    ),
    Difference("Trailers, either way", "Relayed", "Dropped", test="test_trailers_are_dropped"),
    Difference(
        "Interim responses (1xx)",
        "Relayed; `100 Continue` is the cluster's",
        "Dropped; aiohttp sends `100 Continue` itself, at once",
        test="test_interim_responses_are_dropped",
    ),
    Difference(
        "Expectations other than `100-continue`",
        "The cluster decides",
        "Refused with 417",
        test="test_other_expectations_are_refused",
    ),
    Difference(
        "Protocol upgrades (WebSocket)",
        "Relayed",
        "The cluster sees a request without `Upgrade`",
        test="test_upgrades_are_not_relayed",
    ),
    Difference(
        "Error pages for malformed requests",
        "OpenSearch's JSON; 400, 414, 431, 501 or 505",
        "`text/plain` by aiohttp, mostly 400, with an `HTTP/1.0` status line, without `X-Request-Id`",
        test="test_error_pages_for_malformed_requests_are_aiohttps",
    ),
    Difference(
        "Malformed chunks after the head has been read",
        "400 at once, and the cluster's request is cut",
        "408 after `listen.timeouts.body`, and the cluster's request is cut",
        test="test_malformed_chunks_end_with_the_time_limit",
    ),
    Difference(
        "Time for a request's head",
        "`listen.timeouts.head`",
        "`listen.timeouts.keepalive`",
        test="test_the_time_for_a_head_is_that_between_requests",
    ),
    Difference(
        "`limits.head`",
        "Applied while the head arrives",
        "Applied once the head has been read; `limits.header_line` and `limits.headers` apply to each part of it",
        test="test_limits_of_the_head_apply",
    ),
]
"""Everything else is as in `test_loopback.py`."""


def _params(table: dict[str, bytes]) -> list[ParameterSet]:
    """Each name whole, and byte by byte where it is short. Only every third name, whole, is not marked slow."""
    return [
        pytest.param(name, feed, marks=() if feed == "whole" and index % 3 == 0 else pytest.mark.slow)
        for index, (name, raw) in enumerate(table.items())
        for feed in FEEDS
        if feed == "whole" or len(raw) < SMALL
    ]


def test_each_difference_is_shown_by_a_case_or_a_test() -> None:
    for difference in DIFFERENCES:
        assert difference.requests or difference.answers or callable(globals()[difference.test]), difference.topic
        assert set(difference.requests) <= set(REQUESTS)


@pytest.mark.parametrize(("name", "feed"), _params(REQUESTS))
async def test_request(name: str, feed: str, start_gateway: StartGateway) -> None:
    raw = REQUESTS[name]
    closes = name == "connection close" or ("http/1.0" in name and name != "http/1.0 that keeps alive")
    differs = any(name in difference.requests for difference in DIFFERENCES)
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), IMPATIENT if differs else AIOHTTP)
        came, closed = await converse(gateway.data_port, raw + (b"" if closes else LAST), FEEDS[feed])
    assert closed
    if differs:
        assert (came[9:12], upstream.requests) in ((b"400", []), (b"408", []))
        return
    assert came.count(b"HTTP/1.") == len(upstream.requests) == 2 - closes
    expected = as_cluster_should_see(raw, end_to_end(await parse(raw.lstrip())), upstream.url[7:].encode())
    assert end_to_end(upstream.requests[0]) == expected


@pytest.mark.parametrize(("name", "feed"), _params(ANSWERS))
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_answer(name: str, feed: str, version: str, start_gateway: StartGateway) -> None:
    raw = ANSWERS[name]

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        for piece in [raw] if feed == "whole" else [raw[n : n + 1] for n in range(len(raw))]:
            writer.write(piece)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    bodyless = name.startswith(("204", "304"))
    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), AIOHTTP)
        request = f"GET / HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        came, closed = await converse(gateway.data_port, request, whole)
    assert closed
    expected = expected_of(await parse(raw, bodyless=bodyless))
    for difference in DIFFERENCES:
        if f"to {version}: {name}" in difference.answers:
            assert difference.change(expected) != expected, "no difference"
            expected = difference.change(expected)
    [answer] = await answers_in(came, bodyless=bodyless)
    assert end_to_end(answer) == expected


@pytest.mark.parametrize("name", HEAD_ANSWERS)
async def test_answer_to_head(name: str, start_gateway: StartGateway) -> None:
    async with RecordingUpstream([HEAD_ANSWERS[name]]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), AIOHTTP)
        head = b"HEAD /x HTTP/1.1\r\nHost: x\r\n"
        came, closed = await converse(
            gateway.data_port, (head + b"\r\n") * 2 + head + b"Connection: close\r\n\r\n", whole
        )
    assert closed
    expected = expected_of(await parse(HEAD_ANSWERS[name], bodyless=True))
    assert [end_to_end(answer) for answer in await answers_in(came, bodyless=True)] == [expected] * 3


CHUNKED = b"Transfer-Encoding: chunked"


async def test_chunks_are_made_anew(start_gateway: StartGateway) -> None:
    witness = Witness()
    async with RecordingUpstream(script=witness) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), AIOHTTP)
        raw = post(CHUNKED, b"Connection: close", body=b"1\r\nx\r\n" * 200 + b"0\r\n\r\n")
        await converse(gateway.data_port, raw, whole)
    assert [request.body for request in witness.requests] == [b"x" * 200]
    assert witness.seen.count(b"\r\nx") < 200


async def test_trailers_are_dropped(start_gateway: StartGateway) -> None:
    body = b"4\r\nabcd\r\n0\r\nX-Trailer: 1\r\n\r\n"
    witness = Witness()
    async with RecordingUpstream(script=witness) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), AIOHTTP)
        await converse(gateway.data_port, post(CHUNKED, b"Connection: close", body=body), whole)
        assert ([request.body for request in witness.requests], b"X-Trailer" in witness.seen) == ([b"abcd"], False)
    async with RecordingUpstream([b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n" + body]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), AIOHTTP)
        came, _ = await converse(gateway.data_port, get(b"/", b"Connection: close"), whole)
    [answer] = await answers_in(came)
    assert (answer.body, b"X-Trailer" in came) == (b"abcd", False)


async def test_interim_responses_are_dropped(start_gateway: StartGateway) -> None:
    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"\r\nExpect: 100-continue\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(3) == b"abc"
        writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), AIOHTTP)
        raw = post(b"Expect: 100-continue", b"Content-Length: 3", b"Connection: close", body=b"abc")
        came, _ = await converse(gateway.data_port, raw, whole)
    assert came.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


async def test_other_expectations_are_refused(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), AIOHTTP)
        raw = post(b"Expect: more", b"Content-Length: 3", b"Connection: close", body=b"abc")
        came, closed = await converse(gateway.data_port, raw, whole)
    assert (came[:13], closed, upstream.requests) == (b"HTTP/1.1 417 ", True, [])


async def test_upgrades_are_not_relayed(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), AIOHTTP)
        raw = get(b"/", b"Connection: Upgrade", b"Upgrade: websocket", b"X-End: 1")
        answer = await send_request(gateway.data_port, raw)
    [request] = upstream.requests
    assert answer.body == b"ok"
    assert [name for name, _ in request.headers] == [b"Host", b"X-End"]


async def test_error_pages_for_malformed_requests_are_aiohttps(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), AIOHTTP)
        [answer] = await answers_in((await converse(gateway.data_port, get(b"/", b"X A: 1"), whole))[0])
        assert answer.line == b"HTTP/1.0 400 Bad Request"
        assert answer.values("content-type") == [b"text/plain; charset=utf-8"]
        assert answer.values("x-request-id") == []
        # What aiohttp accepts and the gateway's own rules refuse is refused as on the built-in server.
        with_user = get(b"http://me@other.example/", b"Connection: close")
        [answer] = await answers_in((await converse(gateway.data_port, with_user, whole))[0])
        assert answer.line == b"HTTP/1.1 400 Bad Request"
        assert json.loads(answer.body)["error"]["type"] == "ValidationException"
    assert upstream.requests == []


@pytest.mark.parametrize("data", [get(b"/", b"X A: 1"), b"\x16\x03\x01 / HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_malformed_requests_are_logged_with_the_clients_address(data: bytes) -> None:
    stream = io.StringIO()
    gateway = build(settings_for("http://127.0.0.1:9", AIOHTTP), UseCase(), configure("info", "json", stream))
    await gateway.start()
    await converse(gateway.data_port, data, whole)
    await gateway.stop()
    [refused] = [line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == "refused"]
    assert refused["client"] == "127.0.0.1"


async def test_malformed_chunks_end_with_the_time_limit(start_gateway: StartGateway) -> None:
    witness = Witness()
    async with RecordingUpstream(script=witness) as upstream:
        over = {"listen": {"http": "aiohttp", "timeouts": {"body": 1000}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(post(CHUNKED, body=b"3\r\nabc\r\n"))
        while b"abc" not in witness.seen:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        writer.write(b"nonsense\r\n")
        await delivered(writer.transport)
        expire(gateway, await waited_for(gateway, idle=False))
        assert (await read_message(reader)).line == b"HTTP/1.1 408 Request Timeout"
        await asyncio.wait_for(witness.idle.wait(), PATIENCE)
        writer.close()
    assert witness.requests == []


async def test_the_time_for_a_head_is_that_between_requests(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        over = {"listen": {"http": "aiohttp", "timeouts": {"head": 100, "keepalive": 0.2}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        assert await converse(gateway.data_port, b"GET / HTTP/1.1\r\nHo", whole) == (b"", True)


async def test_limits_of_the_head_apply(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        limits = {**LIMITS, "head": 2 * HEADER_LINE}
        gateway = await start_gateway(upstream.url, UseCase(), {**AIOHTTP, "limits": limits})
        for raw, status in {
            get(b"/", *[b"X-A: 1"] * 2 * HEADERS): b"HTTP/1.0 400",
            get(b"/", b"X-A: " + b"a" * 2 * HEADER_LINE): b"HTTP/1.0 400",
            get(b"/", *[b"X-A: " + b"a" * (HEADER_LINE - 100)] * 3): b"HTTP/1.1 431",
        }.items():
            assert (await converse(gateway.data_port, raw, whole))[0].startswith(status)
    assert upstream.requests == []


# Requests that two parsers may read differently

LIMITS = {"header_line": HEADER_LINE, "headers": HEADERS}
TIMES = {"whole": 0.2, "byte by byte": 5.0}
"""`listen.timeouts.body`: malformed chunks that come in pieces are waited for as long."""
FOLLOWER = b"GET /follower HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
ACCEPTED = {
    "two spaces before the target": b"",
    "two spaces before the version": b"",
    "an extension too long": b"abcde",
}
"""Rows that aiohttp accepts, and the body that it reads: they reach the cluster as one sound request."""
ACCEPTED_IN_PIECES = {"another protocol of version 1.0": b"", "Host in a trailer": b"abcde"}
"""Those that it accepts only if they come in pieces. The trailer is dropped.

The connection ends with them: the first is read as HTTP/1.0, and after the second aiohttp refuses the next request.
"""


@pytest.fixture
def short_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let aiohttp close a refused connection soon: it waits for the rest of a chunk that never ends."""
    monkeypatch.setitem(RUNNER_OPTIONS, "lingering_time", 0.1)


async def _check(row: Row, feed: str, start_gateway: StartGateway) -> None:
    witness = Witness()
    accepted = ACCEPTED if feed == "whole" else {**ACCEPTED, **ACCEPTED_IN_PIECES}
    async with RecordingUpstream(script=witness) as upstream:
        body = PATIENCE if row.id in accepted else TIMES[feed]
        over = {"limits": LIMITS, "listen": {"http": "aiohttp", "timeouts": {"body": body}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        came, closed = await converse(gateway.data_port, row.raw + FOLLOWER, FEEDS[feed])
        assert closed, row.id
        if witness.open and row.id not in accepted:  # a request that had begun is cut
            await asyncio.wait_for(witness.idle.wait(), PATIENCE)
    statuses = [int(answer.line.split()[1]) for answer in await answers_in(came)]
    if row.id not in accepted:
        assert witness.requests == [], row.id
        assert row.phase == "body" or not witness.seen, row.id
        assert set(statuses) <= REFUSED | {408}, row.id
        assert len(statuses) == 1, row.id
        return
    first, *more = witness.requests
    assert (first.line.split()[1:], first.body) == ([b"/row", b"HTTP/1.1"], accepted[row.id]), row.id
    assert [request.line.split()[1] for request in more] == [b"/follower"] * (row.id in ACCEPTED), row.id
    assert statuses[: len(witness.requests)] == [200] * len(witness.requests), row.id
    assert set(statuses) <= {200, 400}, row.id
    seen = bytes(witness.seen)
    reading = read_ours(seen)
    assert reading is not None
    assert reading == read_h11(seen[: reading.size])
    assert seen[reading.size :].startswith(b"GET /follower " if more else b""), row.id


@pytest.mark.usefixtures("short_lingering")
@pytest.mark.parametrize("section", SECTIONS)
async def test_nothing_ambiguous_reaches_the_cluster(section: str, start_gateway: StartGateway) -> None:
    await asyncio.gather(*(_check(row, "whole", start_gateway) for row in SECTIONS[section]))


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
async def test_nothing_ambiguous_reaches_the_cluster_byte_by_byte(section: str, start_gateway: StartGateway) -> None:
    await asyncio.gather(*(_check(row, "byte by byte", start_gateway) for row in SECTIONS[section]))


def test_what_is_accepted_is_in_the_table() -> None:
    assert {*ACCEPTED, *ACCEPTED_IN_PIECES} <= {row.id for row in ROWS}


@pytest.mark.parametrize("name", SOUND)
async def test_sound_request_is_not_refused(name: str, start_gateway: StartGateway) -> None:
    witness = Witness()
    async with RecordingUpstream(script=witness) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {**AIOHTTP, "limits": LIMITS})
        came, closed = await converse(gateway.data_port, SOUND[name] + FOLLOWER, byte_by_byte)
    assert closed
    assert [answer.body for answer in await answers_in(came)] == [b"ok", b"ok"]
    assert len(witness.requests) == 2


# What the use case decides is the same on both servers

CALL = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1"
FAILURE = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno"
DECISIONS = {
    "untouched": (Forward(), [OK]),
    "rewritten": (Forward([b'{"a":', memoryview(b"1}")], {"X-MLC-Gateway-Delivery": "strategy=x"}), [OK]),
    "refused": (InvalidInput("bad", [Problem("input", "REQUIRED", "an input is required")]), [OK]),
    "sent again": (Forward([b"1"], retry=lambda status, body: Forward([b"%d%b" % (status, body)])), [FAILURE, OK]),
    "failed": (Forward([b"1"], retry=lambda status, body: None), [FAILURE]),
}


def _comparable(message: Parsed) -> Parsed:
    skipped = (b"x-request-id", b"host")
    return replace(message, headers=tuple(pair for pair in message.headers if pair[0].lower() not in skipped))


@pytest.mark.parametrize("name", DECISIONS)
async def test_decisions_are_the_same(name: str, start_gateway: StartGateway) -> None:
    decision, answers = DECISIONS[name]
    came = []
    for server in ("builtin", "aiohttp"):
        handler = UseCase(decision)
        async with RecordingUpstream(answers) as upstream:
            gateway = await start_gateway(upstream.url, handler, {"listen": {"http": server}})
            raw = b"\r\n".join((CALL, b"Host: x", b"X-A: 1", b"Content-Length: 2", b"", b"{}"))
            answer = _comparable(await send_request(gateway.data_port, raw))
            came.append((answer, [_comparable(request) for request in upstream.requests], len(handler.calls)))
    assert came[0] == came[1]
    assert came[0][0].line.startswith(b"HTTP/1.1 4" if name in ("refused", "failed") else b"HTTP/1.1 2")

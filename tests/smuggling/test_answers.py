"""No malformed answer of the cluster reaches a client, and no connection that carried one is used again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.conftest import StartGateway
from tests.proxy.use_case import UseCase
from tests.smuggling.answers import ANSWER_SECTIONS, ANSWERS, MARK, READ_IN_MEMORY, Answer
from tests.smuggling.endpoints import answers_in, converse, whole
from tests.smuggling.table import HEADER_LINE, HEADERS
from tests.wire import OK, PATIENCE, RecordingUpstream, read_message

OVER = {"limits": {"header_line": HEADER_LINE, "headers": HEADERS}}
Write = Callable[[asyncio.StreamWriter, bytes], object]


async def whole_at_once(writer: asyncio.StreamWriter, raw: bytes) -> None:
    writer.write(raw)


async def byte_by_byte(writer: asyncio.StreamWriter, raw: bytes) -> None:
    for index in range(len(raw)):
        writer.write(raw[index : index + 1])
        await asyncio.sleep(0)
        await asyncio.sleep(0)


FEEDS = {"whole": whole_at_once, "byte by byte": byte_by_byte}


def request(method: bytes, target: bytes, *headers: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in (method + b" " + target + b" HTTP/1.1", b"Host: x", *headers)) + b"\r\n"


def spoiled(answer: Answer, feed: str) -> Callable[..., object]:
    """A cluster whose first connection answers its first request so, and any other request soundly."""

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = upstream.connections == 1
        # A closed transport of uvloop refuses to write with a RuntimeError.
        with suppress(asyncio.IncompleteReadError, ConnectionError, RuntimeError):
            while True:
                upstream.requests.append(await read_message(reader))
                if first and len(upstream.requests) == 1:
                    await FEEDS[feed](writer, answer.raw)
                else:
                    writer.write(OK)
        if first:
            upstream.gone.set()

    return script


SOCKET_ANSWERS = [
    *(answers[0] for answers in ANSWER_SECTIONS.values()),
    *(answer for answer in ANSWERS if answer not in READ_IN_MEMORY),
]
"""Responses that every run sends over sockets. The others are `slow`: every run reads them in memory."""


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            answer, id=f"{answer.phase}: {answer.id}", marks=() if answer in SOCKET_ANSWERS else pytest.mark.slow
        )
        for answer in ANSWERS
    ],
)
async def test_malformed_answer_stops_here(answer: Answer, feed: str, start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=spoiled(answer, feed)) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), OVER)
        raw = request(answer.method, b"/first", b"Connection: close")
        came, closed = await converse(gateway.data_port, raw, whole)
        assert closed
        match answer.phase:
            case "head":
                [error] = await answers_in(came)
                assert error.line.startswith(b"HTTP/1.1 502 ")
                assert json.loads(error.body)["status"] == 502
                assert MARK not in came
            case "body":
                if came.startswith(b"HTTP/1.1 502 "):
                    assert MARK not in came
                else:
                    with pytest.raises(asyncio.IncompleteReadError):
                        await answers_in(came)
            case "behind":
                [sound] = await answers_in(
                    came, bodyless=answer.method == b"HEAD" or b"HTTP/1.1 200" not in answer.raw[:12]
                )
                assert MARK not in came
                assert sound.line == answer.raw.partition(b"\r\n")[0]

        # Bytes that come behind an answer may be late; only once that connection is cut can nothing get them.
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)
        assert (await answers_in((await converse(gateway.data_port, raw_after(), whole))[0]))[0].body == b"ok"
        assert upstream.connections == 2, "a connection that carried a malformed answer was used again"


def raw_after() -> bytes:
    return request(b"GET", b"/second", b"Connection: close")


async def test_an_answer_on_an_idle_connection_is_nobodys(start_gateway: StartGateway) -> None:
    """RFC 9112, 9.2: an answer without a request belongs to none; the next request must not get it."""
    unasked = asyncio.Event()

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = upstream.connections == 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                upstream.requests.append(await read_message(reader))
                writer.write(OK)
                if first:
                    await unasked.wait()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
                    await reader.read()
                    upstream.gone.set()
                    return

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), OVER)
        came, _ = await converse(gateway.data_port, raw_after(), whole)
        assert came.endswith(b"ok")
        unasked.set()
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)
        came, _ = await converse(gateway.data_port, raw_after(), whole)
        assert came.endswith(b"ok")
        assert MARK not in came


async def test_an_interim_answer_does_not_hide_what_follows(start_gateway: StartGateway) -> None:
    """The table's interim row would hold, too, if interim answers were always refused."""

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nX-A: 1\r\n\r\n" + OK)
        await reader.read()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), OVER)
        came, _ = await converse(gateway.data_port, raw_after(), whole)
        assert came.startswith(b"HTTP/1.1 103 Early Hints\r\nX-A: 1\r\n\r\nHTTP/1.1 200 OK\r\n")

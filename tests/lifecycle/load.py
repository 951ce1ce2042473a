"""Clients that never stop asking, and an upstream that knows what reached it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tests.wire import RecordingUpstream, read_message


@dataclass
class Tally:
    """What became of each request. answered, lost: their paths. refused: connections that were not to be had.

    unaccepted: paths of requests whose connection ended before a byte came back: a connection may end just as a
    request sets out on it, and its client asks again (RFC 9112, 9.3.1); such a request must not have reached the
    cluster.
    """

    answered: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unaccepted: list[str] = field(default_factory=list)
    told_to_close: int = 0
    refused: int = 0


async def client(name: str, port: int, tally: Tally, target: str = "") -> None:
    """Ask on kept connections, one request after the other, until no connection is to be had."""
    number = 0
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            tally.refused += 1
            return
        try:
            while True:
                number += 1
                path = f"/{name}/{number}{target}"
                writer.write(f"GET {path} HTTP/1.1\r\nHost: c\r\n\r\n".encode())
                try:
                    answer = await read_message(reader)
                except (ConnectionError, asyncio.IncompleteReadError) as exc:
                    nothing = not getattr(exc, "partial", b"")
                    (tally.unaccepted if nothing else tally.lost).append(path)
                    break
                assert (answer.line, answer.body) == (b"HTTP/1.1 200 OK", path.encode() * 50), answer
                tally.answered.append(path)
                if answer.values("Connection") == [b"close"]:
                    tally.told_to_close += 1
                    break
        finally:
            writer.close()


async def echo(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request with its path, fifty times; slowly, in pieces, where the path says so."""
    while True:
        request = await read_message(reader)
        upstream.record(request)
        path = request.line.split()[1]
        body = path * 50
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        if path.endswith(b"?slow"):
            writer.write(body[:10])
            await asyncio.sleep(0.3)
            body = body[10:]
        writer.write(body)
        await writer.drain()


def seen(upstream: RecordingUpstream) -> set[str]:
    """The paths of the requests that reached it."""
    return {request.line.split()[1].decode() for request in upstream.requests}

"""A request read in memory: by `gateway.http1`, and by two independent parsers, httptools and h11."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import h11
import httptools

from gateway.http1.head_buffer import RequestHeadBuffer, ResponseHeadBuffer
from gateway.http1.request_heads import RequestReader
from gateway.http1.response_heads import ResponseReader
from gateway.http1.rules import HeadLimits
from tests.smuggling.table import HEADER_LINE, HEADERS

LIMITS = HeadLimits(line=HEADER_LINE, fields=HEADERS)


@dataclass(frozen=True)
class Reading:
    """A request as one parser reads it. headers: names in lower case, values without whitespace around them.

    size: the bytes that belong to the request.
    """

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    size: int = field(compare=False)


@dataclass(frozen=True)
class Response:
    """A response as we read it. complete: the end of its body was found."""

    status: int
    body: bytes
    complete: bool


def read_ours(raw: bytes, pieces: int = 1) -> Reading | None:
    """Read the first request of `raw`; None if it is incomplete. pieces: bytes that are fed at a time, all if 0.

    Raises:
        Malformed: it breaks a rule.
    """
    buffer, reader = RequestHeadBuffer(), RequestReader(LIMITS)
    parts = [raw[at : at + pieces] for at in range(0, len(raw), pieces)] if pieces else [raw]
    while parts:
        found = buffer.feed(parts.pop(0), LIMITS)
        if found is None:
            continue
        head, rest = found
        request = reader.read(head)
        reads = request.fields.body(decode=True)
        body = b""
        if reads is not None:
            body = reads.feed(rest)
            while not reads.done and parts:
                body += reads.feed(parts.pop(0))
            if not reads.done:
                return None
            rest = reads.rest
        headers = tuple((name.lower(), value) for name, value in request.fields.pairs())
        return Reading(request.method, request.target, headers, body, len(raw) - len(rest) - sum(map(len, parts)))
    return None


class _Events:
    """What httptools reports. ended: the requests that were complete."""

    def __init__(self) -> None:
        self.target = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.trailers = False
        self.begun = self.ended = 0

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.trailers:
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.trailers = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1


class Refused(Exception):
    """Another parser does not read the bytes as exactly one request."""


def read_httptools(raw: bytes) -> Reading:
    """Read `raw`, which must be one request.

    Raises:
        Refused: it is none, or not all of it, or more than one.
    """
    events = _Events()
    parser: Any = httptools.HttpRequestParser(events)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade as exc:
        if exc.args[0] != len(raw):
            raise Refused("upgraded before the end") from exc
    except httptools.HttpParserError as exc:
        raise Refused(str(exc)) from exc
    if (events.begun, events.ended) != (1, 1):
        raise Refused(f"{events.begun} requests begun, {events.ended} complete")
    return Reading(parser.get_method(), events.target, tuple(events.headers), events.body, len(raw))


def read_h11(raw: bytes) -> Reading:
    """Read `raw`, which must be one request.

    Raises:
        Refused: it is none, or not all of it, or more than one.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(raw)
    request, body = None, b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as exc:
            raise Refused(str(exc)) from exc
        if isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            break
        else:
            raise Refused(f"{event} before the end")
    if request is None or connection.trailing_data[0]:
        raise Refused("bytes follow the request")
    return Reading(request.method, request.target, tuple(request.headers), body, len(raw))


def read_response(raw: bytes, method: bytes, pieces: int) -> Response:
    """Read the final response to a request with `method` as far as `raw` goes. pieces: as for `read_ours`.

    Raises:
        Malformed: it breaks a rule.
    """
    buffer, reader = ResponseHeadBuffer(), ResponseReader(LIMITS)
    parts = [raw[at : at + pieces] for at in range(0, len(raw), pieces)] if pieces else [raw]
    head, reads, body = None, None, b""
    while parts:
        data = parts.pop(0)
        if reads is not None:
            body += reads.feed(data)
            continue
        while (found := buffer.feed(data, LIMITS)) is not None:
            head, data = reader.read(found[0]), found[1]
            if head.status >= 200:
                reads = head.body(method, decode=True)
                body = reads.feed(data)
                break
    assert head is not None
    return Response(head.status, body, reads is not None and reads.done)

from __future__ import annotations

import pytest

from gateway.http1.bodies import Chunked, Length, ToEnd
from gateway.http1.response_heads import ResponseHead, ResponseReader
from gateway.http1.rules import HeadLimits, Malformed

LIMITS = HeadLimits()


def _head(*lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> ResponseHead:
    return ResponseHead(b"\r\n".join((first, *lines, b"", b"")), LIMITS)


def test_a_head_is_read_whole() -> None:
    head = _head(b"Content-Length: 3", b"x-A:\t caf\xe9 ", b"X-a:", b"Connection: close, X-Hop", b"X-Hop: 1")
    assert (head.status, head.minor, head.length, head.chunked, head.persistent) == (200, 1, 3, False, False)
    assert head.pairs()[1:3] == [(b"x-A", b"caf\xe9"), (b"X-a", b"")]
    assert head.end_to_end() == [b"Content-Length: 3", b"x-A:\t caf\xe9 ", b"X-a:"]


BODIES = {
    "length": (b"GET", b"HTTP/1.1 200 OK", b"Content-Length: 3", Length),
    "chunked": (b"GET", b"HTTP/1.1 200 OK", b"Transfer-Encoding: Chunked", Chunked),
    "neither": (b"GET", b"HTTP/1.1 200 OK", b"X-A: 1", ToEnd),
    "head": (b"HEAD", b"HTTP/1.1 200 OK", b"Content-Length: 3", None),
    "head of a chunked one": (b"HEAD", b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", None),
    "204": (b"GET", b"HTTP/1.1 204 No Content", b"X-A: 1", None),
    "304": (b"GET", b"HTTP/1.1 304 Not Modified", b"Content-Length: 3", None),
    "empty": (b"GET", b"HTTP/1.1 200", b"Content-Length: 0", None),
}


@pytest.mark.parametrize(("method", "first", "line", "kind"), BODIES.values(), ids=BODIES.keys())
def test_what_reads_the_body(method: bytes, first: bytes, line: bytes, kind: type | None) -> None:
    body = _head(line, first=first).body(method, decode=False)
    assert body.done if kind is None else isinstance(body, kind)


PERSISTENT = {
    "1.1": (b"HTTP/1.1 200 OK", b"X-A: 1", True),
    "1.1, close": (b"HTTP/1.1 200 OK", b"Connection: Close", False),
    "1.0": (b"HTTP/1.0 200 OK", b"X-A: 1", False),
    "1.0, keep-alive": (b"HTTP/1.0 200 OK", b"Connection: keep-alive", True),
}


@pytest.mark.parametrize(("first", "line", "persistent"), PERSISTENT.values(), ids=PERSISTENT.keys())
def test_whether_the_connection_lasts(first: bytes, line: bytes, persistent: bool) -> None:
    assert _head(line, first=first).persistent is persistent


BROKEN = {
    "status-line": [b"HTTP/1.1 20 OK\r\n\r\n", b"HTTP/2.0 200 OK\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"x\r\n\r\n"],
    "length": [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"],
    "length-twice": [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"],
    "length-and-coding": [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"],
    "coding-unknown": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"],
    "coding": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n"],
    "coding-twice": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"],
    "coding-in-1.0": [b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
    "coding-without-body": [b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n"],
    "fold": [b"HTTP/1.1 200 OK\r\nX-A: 1\r\n 2\r\n\r\n"],
    "bare-lf": [b"HTTP/1.1 200 OK\r\nX-A: 1\nX-B: 2\r\n\r\n"],
}


@pytest.mark.parametrize(("code", "raw"), [(code, raw) for code, raws in BROKEN.items() for raw in raws])
def test_broken_heads_are_named(code: str, raw: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        ResponseHead(raw, LIMITS)
    assert caught.value.code == code


def test_like_heads_are_read_once() -> None:
    heads = ResponseReader(LIMITS)
    raw = b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n"
    assert heads.read(raw) is heads.read(bytes(bytearray(raw)))
    for number in range(1000):
        assert heads.read(b"HTTP/1.1 200 OK\r\nX-A: %d\r\n\r\n" % number).pairs() == [(b"X-A", b"%d" % number)]

from __future__ import annotations

import pytest

from gateway.http1.request_heads import Request, RequestReader
from gateway.http1.rules import RULES, HeadLimits, Malformed

READER = RequestReader(HeadLimits(line=1000, head=4000, fields=20))


def _read(*lines: bytes, first: bytes = b"GET / HTTP/1.1", host: bytes = b"Host: a:9200") -> Request:
    return READER.read(b"\r\n".join((first, *((host,) if host else ()), *lines, b"", b"")))


def test_lines_go_on_as_they_stand_but_those_that_end_here() -> None:
    request = _read(
        b"x-A:1", b"X-a:  2 ", b"Connection: X-Hop, Content-Length", b"X-Hop: 1", b"Keep-Alive: 5",
        b"Content-Length: 3", b"X-B: caf\xe9", first=b"POST /a%2F//b?c HTTP/1.1",
    )  # fmt: skip
    assert (request.method, request.target, request.minor) == (b"POST", b"/a%2F//b?c", 1)
    expected_lines = b"x-A:1\r\nX-a:  2 \r\nContent-Length: 3\r\nX-B: caf\xe9\r\n\r\n"
    assert request.fields.lines_for(b"up:1") == b"Host: up:1\r\n" + expected_lines
    assert request.fields.lines_for(b"") == b"Host: a:9200\r\n" + expected_lines
    assert request.fields.pairs()[2] == (b"X-a", b"2")


def test_host_stands_where_it_stood_and_first_where_there_was_none() -> None:
    request = _read(b"X-A: 1", b"HOST: a", b"X-B: 2", host=b"")
    assert request.fields.lines_for(b"up") == b"X-A: 1\r\nHOST: up\r\nX-B: 2\r\n\r\n"
    old = _read(b"X-A: 1", first=b"GET / HTTP/1.0", host=b"")
    assert old.fields.lines_for(b"up") == b"Host: up\r\nX-A: 1\r\n\r\n"


HELD = {
    "its own length": ((b"X-A: 1", b"content-length:  7", b"Digest: d", b"X-B: 2"),
        b"X-A: 1\r\ncontent-length: %d\r\nDigest: d\r\nX-B: 2", b"X-A: 1\r\ncontent-length: %d\r\nX-B: 2"),
    "the length first and last": ((b"Content-Length: 7",), b"Content-Length: %d", b"Content-Length: %d"),
    "chunks": ((b"Content-MD5: m", b"Transfer-Encoding: chunked", b"X-A: 1"),
        b"Content-MD5: m\r\nX-A: 1\r\nContent-Length: %d", b"X-A: 1\r\nContent-Length: %d"),
    "an Expect and a coding": ((b"Expect: 100-continue", b"Content-Encoding: gzip", b"Content-Length: 7"),
        b"Content-Encoding: gzip\r\nContent-Length: %d", b"Content-Length: %d"),
    "none": ((b"X-A: 1",), b"X-A: 1\r\nContent-Length: %d", b"X-A: 1\r\nContent-Length: %d"),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "own", "another"), HELD.values(), ids=HELD.keys())
def test_the_lines_of_a_body_that_the_gateway_holds(lines: tuple[bytes, ...], own: bytes, another: bytes) -> None:
    fields = _read(*lines).fields
    for host, replaced, expected in 2 * ((b"", False, own), (b"up:1", False, own), (b"up:1", True, another)):
        before, behind = fields.around_length(host, replaced=replaced)
        assert b"%b12%b" % (before, behind) == b"Host: %b\r\n%b\r\n" % (host or b"a:9200", expected % 12)


KEPT = {
    "1.1": (b"GET / HTTP/1.1", b"X-A: 1", True),
    "1.1, close": (b"GET / HTTP/1.1", b"Connection: Close", False),
    "1.0": (b"GET / HTTP/1.0", b"X-A: 1", False),
    "1.0, keep-alive": (b"GET / HTTP/1.0", b"connection: Keep-Alive", True),
    "1.0, both": (b"GET / HTTP/1.0", b"Connection: keep-alive, close", False),
}


@pytest.mark.parametrize(("first", "line", "keep"), KEPT.values(), ids=KEPT.keys())
def test_whether_the_client_wants_to_go_on(first: bytes, line: bytes, keep: bool) -> None:
    assert _read(line, first=first).fields.keep_alive is keep


UPGRADES = {
    "websocket": ((b"Connection: keep-alive, Upgrade", b"Upgrade: WebSocket"), True),
    "not listed": ((b"Upgrade: websocket",), False),
    "h2c": ((b"Connection: Upgrade", b"Upgrade: h2c"), False),
    "with a body": ((b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 1"), False),
}


@pytest.mark.parametrize(("lines", "upgrade"), UPGRADES.values(), ids=UPGRADES.keys())
def test_only_websockets_are_asked_for(lines: tuple[bytes, ...], upgrade: bool) -> None:
    fields = _read(*lines).fields
    assert fields.upgrade is upgrade
    assert (b"pgrade" in fields.lines_for(b"up")) is upgrade


BROKEN = {
    "request-line": [b"GET /", b"GET  / HTTP/1.1", b"GET / HTTP/1.1 ", b"", b" GET / HTTP/1.1"],
    "method": [b"G(T / HTTP/1.1"],
    "connect": [b"CONNECT a:9200 HTTP/1.1"],
    "target": [b"GET /a\x7f HTTP/1.1", b"GET /a#b HTTP/1.1"],
    "target-form": [b"GET * HTTP/1.1", b"GET a HTTP/1.1", b"GET ftp://a/ HTTP/1.1"],
    "version-syntax": [b"GET / HTTP/1.10", b"GET / http/1.1"],
    "version": [b"GET / HTTP/1.2", b"GET / HTTP/2.0", b"GET / HTTP/0.9"],
    "target-size": [b"GET /%b HTTP/1.1" % (b"a" * 1000)],
}
FIELDS: dict[str, list[bytes]] = {
    "field-size": [b"X-A: " + b"a" * 1000],
    "fields": [b"\r\n".join([b"X-A: 1"] * 20)],
    "bare-lf": [b"X-A: 1\nX-B: 2"],
    "bare-cr": [b"X-A: 1\rX-B: 2"],
    "fold": [b"X-A: 1\r\n 2"],
    "space-in-name": [b"X-A : 1"],
    "field-name": [b": 1", b"X A: 1", b"X-A"],
    "field-value": [b"X-A: \x00"],
    "host-twice": [b"Host: a:9200"],
    "length": [b"Content-Length: +1", b"Content-Length: 1,1", b"Content-Length:"],
    "length-twice": [b"Content-Length: 1\r\nContent-Length: 1"],
    "length-and-coding": [b"Content-Length: 1\r\nTransfer-Encoding: chunked"],
    "coding": [
        b"Transfer-Encoding: chunked, chunked",
        b"Transfer-Encoding: chunked, gzip",
        b"Transfer-Encoding: chunked;q=1",
        b"Transfer-Encoding: gzip, chunked;q=1",
        b"Transfer-Encoding:",
        b"Transfer-Encoding: , chunked",
        b"Transfer-Encoding: chunked,",
        b'Transfer-Encoding: "chunked"',
        b"Transfer-Encoding: gzip gzip",
    ],
    "coding-unknown": [
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: gzip;level=1 , Chunked",
        b"Transfer-Encoding: identity",
    ],
    "coding-twice": [b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"],
}


@pytest.mark.parametrize(("code", "first"), [(code, first) for code, firsts in BROKEN.items() for first in firsts])
def test_broken_request_lines_are_named(code: str, first: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        _read(first=first)
    assert caught.value.code == code


@pytest.mark.parametrize(("code", "line"), [(code, line) for code, lines in FIELDS.items() for line in lines])
def test_broken_fields_are_named(code: str, line: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        _read(line)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "host", [b"Host: a b", b"Host: u@a", b"Host: a:b", b"Host: [::1", b"Host: a,b", b"Host: a:99999"]
)
def test_broken_hosts_are_named(host: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        _read(host=host)
    assert caught.value.code == "host"
    for first in (b"GET / HTTP/1.1", b"GET http://a/ HTTP/1.1"):
        with pytest.raises(Malformed) as caught:
            _read(host=b"", first=first)
        assert caught.value.code == "host-missing"


ABSOLUTE = {
    b"GET http://a:9200/x?y HTTP/1.1": b"/x?y",
    b"GET HTTP://A:9200/x HTTP/1.1": b"/x",
    b"GET https://a:9200/ HTTP/1.1": b"/",
    b"GET http://a:9200 HTTP/1.1": b"/",
    b"GET http://a:9200?y HTTP/1.1": b"/?y",
    b"GET http://a:9200//x/../y%2F HTTP/1.1": b"//x/../y%2F",
    b"OPTIONS http://a:9200 HTTP/1.1": b"*",
    b"OPTIONS http://a:9200/ HTTP/1.1": b"/",
    b"OPTIONS http://a:9200?y HTTP/1.1": b"/?y",
    b"OPTIONS * HTTP/1.1": b"*",
}


@pytest.mark.parametrize(("first", "target"), ABSOLUTE.items())
def test_an_absolute_target_becomes_a_path(first: bytes, target: bytes) -> None:
    assert _read(first=first).target == target


@pytest.mark.parametrize("first", [b"GET http://b:92/x HTTP/1.1", b"GET http://A:9200/x HTTP/1.1"])
def test_the_host_of_an_absolute_target_replaces_host(first: bytes) -> None:
    """RFC 9112, 3.2.2: a proxy ignores the received Host."""
    authority = first.split(b"/")[2]
    fields = _read(b"X-A: 1", b"hOsT-x: 1", first=first).fields
    assert fields.host == authority
    assert fields.pairs() == ((b"Host", authority), (b"X-A", b"1"), (b"hOsT-x", b"1"))
    assert fields.lines_for(b"") == b"Host: %b\r\nX-A: 1\r\nhOsT-x: 1\r\n\r\n" % authority
    assert _read(b"X-A: 1", b"hOsT-x: 1").fields.host == b"a:9200"  # what is cached is not changed
    old = _read(first=first.replace(b"/1.1", b"/1.0"), host=b"")
    assert old.fields.pairs() == ((b"Host", authority),)


@pytest.mark.parametrize("line", [b"", b"x", b"-1", b"+1", b"1, 2", b"1\r\nMax-Forwards: 1", b"1.0"])
def test_max_forwards_that_is_no_number_is_refused_where_it_counts(line: bytes) -> None:
    for method in (b"OPTIONS", b"TRACE"):
        with pytest.raises(Malformed) as caught:
            _read(b"Max-Forwards: " + line, first=method + b" / HTTP/1.1")
        assert caught.value.code == "max-forwards"
    assert _read(b"Max-Forwards: " + line).method == b"GET"


def test_fields_that_repeat_are_read_once_and_never_mixed_up() -> None:
    assert _read(b"X-A: 1").fields is _read(b"X-A: 1", first=b"POST /other HTTP/1.1").fields
    assert _read(b"X-A: 1").fields is not _read(b"X-A: 1", first=b"GET / HTTP/1.0").fields
    for number in range(1000):
        assert _read(b"X-A: %d" % number).fields.pairs()[1] == (b"X-A", b"%d" % number)


def test_heads_that_repeat_are_read_once_and_never_mixed_up() -> None:
    assert _read(b"X-A: 1") is _read(b"X-A: 1")
    assert _read(b"X-A: 1") is not _read(b"X-A: 2")
    for number in range(1000):
        assert _read(b"X-A: 1", first=b"GET /%d HTTP/1.1" % number).target == b"/%d" % number


def test_every_rule_says_where_it_is_written() -> None:
    for rule in RULES.values():
        assert 400 <= rule.status <= 505
        assert "RFC" in rule.clause

"""The readers of bodies: one table, fed whole and byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http1.bodies import MAX_LINE, MAX_TRAILERS, Chunked, Length, ToEnd
from gateway.http1.rules import HeadLimits, Malformed

Feed = Callable[[Chunked | Length, bytes], bytes]


def _whole(reader: Chunked | Length, raw: bytes) -> bytes:
    return reader.feed(raw)


def _bytewise(reader: Chunked | Length, raw: bytes) -> bytes:
    """Feed byte by byte; the first part of a long body in pieces of 101, as each byte costs a look at a whole line."""
    came = b""
    long = max(0, len(raw) - 2_000)
    for at in (*range(0, long, 101), *range(long, len(raw))):
        if reader.done:
            reader.rest += raw[at:]
            break
        came += reader.feed(raw[at : min(at + 101, long) if at < long else at + 1])
    return came


FEEDS = [_whole, _bytewise]

SOUND = {
    "one chunk": (b"3\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
    "two chunks": (b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde"),
    "empty": (b"0\r\n\r\n", b"0\r\n\r\n", b""),
    "hexadecimal": (b"0A\r\n0123456789\r\n000\r\n\r\n", b"0A\r\n0123456789\r\n000\r\n\r\n", b"0123456789"),
    "extensions go": (b'3;a=1;b;c="d;\\" e"\r\nabc\r\n0;z\r\n\r\n', b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
    "data like chunks": (b"5\r\n0\r\n\r\n\r\n0\r\n\r\n", b"5\r\n0\r\n\r\n\r\n0\r\n\r\n", b"0\r\n\r\n"),
    "trailers stay": (b"1\r\na\r\n0\r\nX-T: 1\r\nX-U:\r\n\r\n", b"1\r\na\r\n0\r\nX-T: 1\r\nX-U:\r\n\r\n", b"a"),
    "listed trailers go": (b"1\r\na\r\n0\r\nX-Hop: 1\r\nX-U: 2\r\n\r\n", b"1\r\na\r\n0\r\nX-U: 2\r\n\r\n", b"a"),
}


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(("raw", "onward", "data"), SOUND.values(), ids=SOUND.keys())
def test_chunks_are_passed_on_or_undone(raw: bytes, onward: bytes, data: bytes, feed: Feed) -> None:
    for decode, expected in ((False, onward), (True, data)):
        reader = Chunked(decode, {b"x-hop"})
        assert feed(reader, raw + b"NEXT") == expected
        assert (reader.done, reader.rest) == (True, b"NEXT")


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(1, 30), max_size=30))
def test_any_split_gives_the_same(pieces: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nX-T: 1\r\n\r\n"
    plain, decoding = Chunked(), Chunked(decode=True)
    onward = data = b""
    start = 0
    for cut in [*cuts, len(raw)]:
        part = raw[start : start + cut]
        start += cut
        if part:
            onward += plain.feed(part)
            data += decoding.feed(part)
    assert (onward, data, plain.done, decoding.done) == (raw, b"".join(pieces), True, True)


BROKEN = {
    "no number": (b"zz\r\nabc\r\n", "chunk-size"),
    "0x": (b"0x3\r\nabc\r\n", "chunk-size"),
    "sign": (b"+3\r\nabc\r\n", "chunk-size"),
    "space before": (b" 3\r\nabc\r\n", "chunk-size"),
    "space behind": (b"3 \r\nabc\r\n", "chunk-extension"),
    "bare LF": (b"3\nabc\r\n", "chunk-size"),
    "63 bits and more": (b"8000000000000000\r\n", "chunk-size"),
    "bare LF in an extension": (b"3;a\nb\r\nabc\r\n", "chunk-extension"),
    "extension without a name": (b"3;\r\nabc\r\n", "chunk-extension"),
    "endless line": (b"3;" + b"a" * MAX_LINE, "chunk-line"),
    "more data": (b"3\r\nabcd\r\n", "chunk-end"),
    "LF behind data": (b"3\r\nabc\n0\r\n\r\n", "chunk-end"),
    "trailer without a colon": (b"0\r\nX-T\r\n\r\n", "trailer"),
    "trailer folded": (b"0\r\nX-T: 1\r\n 2\r\n\r\n", "trailer"),
    "trailer with bare LF": (b"0\r\nX-T: 1\n\r\n", "trailer"),
    "trailer that frames": (b"0\r\nContent-Length: 1\r\n\r\n", "trailer-name"),
    "endless trailers": (b"0\r\n" + b"X-T: 1\r\n" * (MAX_TRAILERS // 8), "trailer-size"),
    "many trailers": (b"0\r\n" + b"X-T: 1\r\n" * 9 + b"\r\n", "trailer-size"),
    "long trailer": (b"0\r\nX-T: " + b"a" * 200 + b"\r\n\r\n", "trailer-size"),
}


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(("raw", "code"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_chunks_are_named(raw: bytes, code: str, feed: Feed, decode: bool) -> None:
    reader = Chunked(decode, limits=HeadLimits(line=100, fields=8))
    with pytest.raises(Malformed) as caught:
        feed(reader, raw)
    assert caught.value.code == code


def test_nothing_of_a_wrong_line_goes_on() -> None:
    reader = Chunked()
    came = b"".join(reader.feed(b"%c" % byte) for byte in b"3\r\nabc\r\n5;a")
    assert came == b"3\r\nabc\r\n"


@pytest.mark.parametrize("feed", FEEDS)
def test_length(feed: Feed) -> None:
    reader = Length(3)
    assert feed(reader, b"abcNEXT") == b"abc"
    assert (reader.done, reader.rest) == (True, b"NEXT")
    assert Length(0).done
    assert not Length(1).done


def test_to_the_end() -> None:
    reader = ToEnd()
    assert reader.feed(b"abc") == b"abc"
    assert not reader.done

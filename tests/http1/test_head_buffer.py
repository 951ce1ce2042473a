"""The buffer of heads: one table for both sides, fed whole, split in two at every place, and byte by byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.http1.head_buffer import HeadBuffer, RequestHeadBuffer, ResponseHeadBuffer, split_head
from gateway.http1.rules import HeadLimits, Malformed

LIMITS = HeadLimits(line=40, head=80, fields=10)
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n"


def _splits(raw: bytes) -> Iterator[list[bytes]]:
    yield [raw]
    yield [raw[at : at + 1] for at in range(len(raw))]
    for at in range(1, len(raw)):
        yield [raw[:at], raw[at:]]


def _feed(buffer: HeadBuffer, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """The head, and everything after it."""
    for index, piece in enumerate(pieces):
        if (found := buffer.feed(piece, LIMITS)) is not None:
            return found[0], b"".join((found[1], *pieces[index + 1 :]))
    raise AssertionError("the head is incomplete")


@pytest.mark.parametrize(
    ("kind", "raw", "head"),
    [
        (RequestHeadBuffer, REQUEST + b"rest\r\n\r\n", REQUEST),
        (RequestHeadBuffer, b"\r\n" + REQUEST, REQUEST),
        (ResponseHeadBuffer, RESPONSE + b"rest", RESPONSE),
        (ResponseHeadBuffer, b"HTTP/1.1 100 C\r\n\r\n" + RESPONSE, b"HTTP/1.1 100 C\r\n\r\n"),
    ],
)
def test_a_head_is_found_however_it_is_split(kind: type[HeadBuffer], raw: bytes, head: bytes) -> None:
    for pieces in _splits(raw):
        buffer = kind()
        for _ in range(2):  # the buffer is empty again
            assert _feed(buffer, pieces) == (head, raw[raw.index(head) + len(head) :])


def test_a_whole_head_needs_no_buffer() -> None:
    assert split_head(REQUEST + b"rest\r\n\r\n", LIMITS) == (REQUEST, b"rest\r\n\r\n")
    for incomplete in (REQUEST[:-1], b"\r\n" + REQUEST, b"\r\n\r\n"):
        assert split_head(incomplete, LIMITS) is None
    with pytest.raises(Malformed) as caught:
        split_head(b"GET / HTTP/1.1\r\nX: " + b"a" * 80 + b"\r\n\r\n", LIMITS)
    assert caught.value.code == "head-size"


@pytest.mark.parametrize(
    ("kind", "raw", "code"),
    [
        (RequestHeadBuffer, b"GET / HTTP/1.1\nHost", "bare-lf"),
        (RequestHeadBuffer, b"GET / HTTP/1.1\rHost", "bare-cr"),
        (RequestHeadBuffer, b"\x16\x03\x01", "field-value"),
        (RequestHeadBuffer, b"GET /" + b"a" * 40, "target-size"),
        (RequestHeadBuffer, b"GET / HTTP/1.1\r\nX: " + b"a" * 80, "head-size"),
        (RequestHeadBuffer, b"GET / HTTP/1.1\r\nX: " + b"a" * 80 + b"\r\n\r\n", "head-size"),
        (ResponseHeadBuffer, b"\r\n", "status-line"),
        (ResponseHeadBuffer, b"ICY 200", "status-line"),
        (ResponseHeadBuffer, b"HTTP/1.1 200 OK\nX", "bare-lf"),
        (ResponseHeadBuffer, b"HTTP/1.1 200 OK\r\nX: " + b"a" * 80, "head-size"),
    ],
)
def test_what_cannot_become_a_head_is_refused_before_it_is_complete(
    kind: type[HeadBuffer], raw: bytes, code: str
) -> None:
    for pieces in _splits(raw):
        with pytest.raises(Malformed) as caught:
            _feed(kind(), pieces)
        assert caught.value.code == code

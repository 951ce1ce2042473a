"""Decodes the content-encodings of bodies that the gateway reads, within limits."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from functools import lru_cache

from gateway.errors import BodyTooLarge, GatewayError, InvalidInput, Problem, UnsupportedEncoding
from gateway.http1.bodies import Chunked
from gateway.http1.response_heads import ResponseHead
from gateway.offload import READING
from gateway.unified.limits import SMALL_TEXT

_MAX_CODINGS = 4
_MAX_MEMBERS = 10_000
"""Largest number of members of a gzip body. Each costs some microseconds, even an empty one of 20 bytes."""
_SMALL_MEMBERS = 16
_IN, _OUT = 16 * 1024, 1 << 20
"""Most bytes of input and of output of one call of zlib, which copies the input that it did not use."""
_GZIP, _ZLIB, _RAW = 31, 15, -15


async def decompress(body: bytes, encodings: Sequence[str], limit: int) -> bytes:
    """As `decompress_whole`, but in a thread unless both the body and its content are small."""
    codings = _codings(encodings)
    if not codings or not body:
        return body
    if len(body) <= SMALL_TEXT:
        try:
            return decompress_small(body, encodings, min(limit, SMALL_TEXT))
        except GatewayError:
            pass  # larger than that, or corrupt
    return await READING.run(decompress_whole, body, encodings, limit)


def decompress_small(body: bytes, encodings: Sequence[str], limit: int) -> bytes:
    """As `decompress_whole`, for a body with few members that can be decoded on the loop.

    Raises:
        GatewayError: as there, or the body has too many members.
    """
    return _decompress(body, _codings(encodings), limit, _SMALL_MEMBERS)


def decompress_whole(body: bytes, encodings: Sequence[str], limit: int) -> bytes:
    """Decode the content-encodings of a body. encodings: the values of its Content-Encoding headers.

    Raises:
        UnsupportedEncoding: a coding is neither gzip, deflate nor identity.
        BodyTooLarge: the content is larger than `limit` bytes. InvalidInput: the data are corrupt.
    """
    return _decompress(body, _codings(encodings), limit, _MAX_MEMBERS)


def response_content(head: ResponseHead, body: bytes, decoded: bool, limit: int) -> bytes:
    """Return the body of a response without its codings, or unchanged if it can't be decoded.

    decoded: it came without chunk lines. limit: of the content, in bytes.
    """
    if head.chunked and not decoded:
        body = Chunked(decode=True).feed(body)
    try:
        return decompress_small(body, response_codings(head), limit)
    except GatewayError:
        return body


async def decode_response(head: ResponseHead, body: bytes, limit: int) -> bytes | None:
    """Return the body of a response, which came without chunk lines, without its codings; None if it can't be decoded.

    limit: of the content, in bytes.
    """
    try:
        return await decompress(body, response_codings(head), limit)
    except GatewayError:
        return None


def whole_content(head: ResponseHead, body: bytes, limit: int) -> bytes:
    """As `decode_response`, in the caller's thread."""
    try:
        return decompress_whole(body, response_codings(head), limit)
    except GatewayError:
        return b""


@lru_cache(256)
def response_codings(head: ResponseHead) -> tuple[str, ...]:
    """Return the values of a response's Content-Encoding fields."""
    return tuple(value.decode("latin-1") for name, value in head.pairs() if name.lower() == b"content-encoding")


def _codings(encodings: Sequence[str]) -> list[str]:
    """Return the codings, in the order in which they were applied.

    Raises:
        UnsupportedEncoding: see `decompress_whole`.
    """
    codings = [coding for value in encodings for part in value.split(",") if (coding := part.strip().lower())]
    codings = [coding for coding in codings if coding != "identity"]
    if len(codings) > _MAX_CODINGS or not _KNOWN.issuperset(codings):
        came = ", ".join(codings)
        place = Problem(
            "Content-Encoding",
            "the gateway can't read this content coding",
            expected="gzip, deflate or identity",
            received=came,
        )
        raise UnsupportedEncoding(f"The gateway can't read a body in Content-Encoding {came}.", [place], repeats=came)
    return codings


_KNOWN = frozenset({"gzip", "x-gzip", "deflate"})


def _decompress(body: bytes, codings: Sequence[str], limit: int, members: int) -> bytes:
    for coding in reversed(codings):
        if not body:
            break
        body = _inflate_deflate(body, limit) if coding == "deflate" else _inflate_gzip(body, limit, members)
    return body


def _inflate_gzip(body: bytes, limit: int, members: int) -> bytes:
    out = _Output(limit)
    position = 0
    while position < len(body):  # members of a gzip file follow one another (RFC 1952, 2.2)
        if not members:
            raise _corrupt("they have too many members")
        members -= 1
        position = _inflate(body, position, _GZIP, out)
    return out.getvalue()


def _inflate_deflate(body: bytes, limit: int) -> bytes:
    # "deflate" is the zlib format (RFC 9110, 8.4.1.2), which some senders leave out.
    wrapped = body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    out = _Output(limit)
    if _inflate(body, 0, _ZLIB if wrapped else _RAW, out) < len(body):
        raise _corrupt("bytes follow its end")
    return out.getvalue()


class _Output:
    """The decompressed bytes. They become the body without another copy."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = io.BytesIO()

    def write(self, piece: bytes) -> None:
        """Add `piece`.

        Raises:
            BodyTooLarge: the content exceeds the limit.
        """
        if self._buffer.tell() + len(piece) > self._limit:
            raise too_large(self._limit, f"more than {self._limit} bytes once decompressed", "decompressed")
        self._buffer.write(piece)

    def room(self) -> int:
        """Return how many bytes to ask for: one more than allowed, to notice an excess."""
        return min(_OUT, self._limit - self._buffer.tell() + 1)

    def getvalue(self) -> bytes:
        """Return all bytes."""
        return self._buffer.getvalue()


def _inflate(body: bytes, position: int, window: int, out: _Output) -> int:
    """Decompress the stream that begins at `position`, in bounded steps. Return the position after it."""
    inflater = zlib.decompressobj(wbits=window)
    view = memoryview(body)
    try:
        while not inflater.eof:
            piece: bytes | memoryview = inflater.unconsumed_tail
            if not piece:
                piece = view[position : position + _IN]
                position += len(piece)
            unpacked = inflater.decompress(piece, out.room())
            out.write(unpacked)
            if not piece and not unpacked:
                raise _corrupt("they end too early")
    except zlib.error as exc:
        raise _corrupt(str(exc)) from None
    return position - len(inflater.unused_data)


def too_large(limit: int, came: str, setting: str = "body") -> BodyTooLarge:
    """Return the error for a body over `limits.{setting}`. came: its size, as text."""
    help = f"Send less, or raise the gateway's setting limits.{setting}."
    place = Problem("", "the body is too large", f"at most {limit} bytes", came, help=help)
    return BodyTooLarge(f"The request's body is too large: {came}, at most {limit} are allowed.", [place])


def _corrupt(why: str) -> InvalidInput:
    place = Problem("", "the body can't be decompressed", received=why)
    return InvalidInput(f"The request's compressed data are corrupt: {why}.", [place])

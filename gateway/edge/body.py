"""Bodies that the gateway must know: their content-encodings undone, within bounds."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

from gateway.errors import BodyTooLarge, InvalidInput, Problem, UnsupportedEncoding

_OFF_LOOP = 256 * 1024
"""Compressed bytes above which decompression moves to a thread."""

_MAX_CODINGS = 4
_GZIP, _ZLIB, _RAW = 31, 15, -15


async def decode(body: bytes, encodings: Sequence[str], limit: int) -> bytes:
    """As `decoded`; a big body is unpacked off the loop."""
    if len(body) > _OFF_LOOP and encodings:
        return await asyncio.to_thread(decoded, body, encodings, limit)
    return decoded(body, encodings, limit)


def decoded(body: bytes, encodings: Sequence[str], limit: int) -> bytes:
    """The body with its content-encodings undone. encodings: the values of its Content-Encoding headers.

    Raises:
        UnsupportedEncoding: one that is neither gzip, deflate nor identity.
        BodyTooLarge: it unpacks to more than `limit` bytes. InvalidInput: the data are corrupt.
    """
    codings = [coding for value in encodings for part in value.split(",") if (coding := part.strip().lower())]
    codings = [coding for coding in codings if coding != "identity"]
    unknown = [coding for coding in codings if coding not in _UNPACK]
    if unknown or len(codings) > _MAX_CODINGS:
        came = ", ".join(codings)
        place = Problem("Content-Encoding", "can't be read here", expected="gzip, deflate or identity", received=came)
        raise UnsupportedEncoding(f"The gateway can't read a body in Content-Encoding {came}.", [place], repeats=came)
    for coding in reversed(codings):
        if not body:
            return body
        body = _UNPACK[coding](body, limit)
    return body


def _gzip(body: bytes, limit: int) -> bytes:
    unpacked = b""
    while body:  # members of a gzip file follow one another (RFC 1952, 2.2)
        member, body = _inflate(body, limit - len(unpacked), _GZIP, limit)
        unpacked = unpacked + member if unpacked else member
    return unpacked


def _deflate(body: bytes, limit: int) -> bytes:
    # "deflate" is the zlib format (RFC 9110, 8.4.1.2), which some senders leave out.
    wrapped = body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    unpacked, rest = _inflate(body, limit, _ZLIB if wrapped else _RAW, limit)
    if rest:
        raise _corrupt("bytes follow its end")
    return unpacked


_UNPACK = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate}


def _inflate(body: bytes, room: int, window: int, limit: int) -> tuple[bytes, bytes]:
    inflater = zlib.decompressobj(wbits=window)
    try:
        unpacked = inflater.decompress(body, room + 1)
    except zlib.error as exc:
        raise _corrupt(str(exc)) from exc
    if len(unpacked) > room:
        raise too_large(limit, f"more than {limit} bytes once decompressed")
    if not inflater.eof:
        raise _corrupt("they end too early")
    return unpacked, inflater.unused_data


def too_large(limit: int, came: str) -> BodyTooLarge:
    """The error for a body over the limit. came: how much of it there is, in words."""
    place = Problem("", "the body is too large", expected=f"at most {limit} bytes", received=came)
    return BodyTooLarge(f"The request's body is too large: {came}, at most {limit} are allowed.", [place])


def _corrupt(why: str) -> InvalidInput:
    place = Problem("", "the body can't be decompressed", received=why)
    return InvalidInput(f"The request's compressed data are corrupt: {why}.", [place])

"""The bodies of requests: streamed where they only pass, read within bounds where the gateway must know them."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.errors import BodyTooLarge, InvalidInput, Problem, UnsupportedEncoding

_OFF_LOOP = 256 * 1024
"""Compressed bytes above which decompression moves to a thread."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_CODINGS = 4
_GZIP, _ZLIB, _RAW = 31, 15, -15


async def stream(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """The body as it comes, transfer-coding undone and nothing else.

    Raises:
        InvalidInput: it breaks off or its chunks are malformed.
    """
    try:
        while chunk := await request.content.readany():
            yield chunk
    except (web.RequestPayloadError, HttpProcessingError, ClientError) as exc:
        raise InvalidInput("The request's body breaks off or its transfer-coding is malformed.") from exc


async def read(request: web.BaseRequest, limit: int) -> bytes:
    """The whole body, still in its content-encoding; a client that waits for a 100 is told to go on.

    Raises:
        BodyTooLarge: it is longer than `limit` bytes. InvalidInput: as `stream`.
    """
    declared = request.content_length
    if declared is not None and declared > limit:
        raise _too_large(limit, f"{declared} bytes")
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(_CONTINUE)
    pieces: list[bytes] = []
    size = 0
    async for piece in stream(request):
        size += len(piece)
        if size > limit:
            raise _too_large(limit, f"more than {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def decode(body: bytes, encodings: list[str], limit: int) -> bytes:
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
        raise UnsupportedEncoding(f"The gateway can't read a body in Content-Encoding {came}.", [place])
    for coding in reversed(codings):
        if not body:
            return body
        unpack = _UNPACK[coding]
        body = await asyncio.to_thread(unpack, body, limit) if len(body) > _OFF_LOOP else unpack(body, limit)
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
        raise _too_large(limit, f"more than {limit} bytes once decompressed")
    if not inflater.eof:
        raise _corrupt("they end too early")
    return unpacked, inflater.unused_data


def _too_large(limit: int, came: str) -> BodyTooLarge:
    place = Problem("", "the body is too large", expected=f"at most {limit} bytes", received=came)
    return BodyTooLarge(f"The request's body is too large: {came}, at most {limit} are allowed.", [place])


def _corrupt(why: str) -> InvalidInput:
    place = Problem("", "the body can't be decompressed", received=why)
    return InvalidInput(f"The request's compressed data are corrupt: {why}.", [place])

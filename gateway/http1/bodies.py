"""Where a body ends: by its length, by its chunks or with the connection (RFC 9112, section 6.3).

Each reader is fed bytes as they arrive and returns those that may be sent on. `done`: the body is complete, and `rest`
holds the bytes after it. A chunked body may take many steps, so `feed` can be limited; `unread` then means that some
input is left. Pure: no I/O.
"""

from __future__ import annotations

import re
import sys

from gateway.http1.fields import TOKEN, VALUE, without
from gateway.http1.rules import HeadLimits, Malformed

MAX_LINE = 1024
"""Longest size line of a chunk, with its extensions (RFC 9112, 7.1.1 asks for a limit)."""
MAX_TRAILERS = 16 * 1024

_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_SIZE = re.compile(
    rb"([0-9A-Fa-f]{1,15})((?:[ \t]*;[ \t]*%b+(?:[ \t]*=[ \t]*(?:%b+|%b))?)*)\r\n" % (TOKEN, TOKEN, _QUOTED)
)
_TINY_CHUNKS = re.compile(
    rb"(?:%b){4,2048}" % b"|".join(rb"%x\r\n[\x00-\xff]{%d}\r\n" % (size, size) for size in range(1, 16))
)
"""Several complete chunks of less than 16 bytes: a body sent byte by byte does not take one step a byte."""
_PART = re.compile(rb"(?:[0-9A-Fa-f]{1,15}(?:[ \t]*;%b*)?[ \t]*\r?)?" % VALUE)
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}[ \t]*[;\r]")
_TRAILERS = re.compile(rb"(?:%b++:%b*+\r\n)+\r\n" % (TOKEN, VALUE))

_NO_TRAILER = frozenset(
    {b"transfer-encoding", b"content-length", b"host", b"connection", b"te", b"trailer", b"upgrade", b"keep-alive"}
    | {b"proxy-connection", b"expect", b"max-forwards", b"content-encoding", b"content-type", b"content-range"}
    | {b"authorization", b"cache-control", b"set-cookie", b"cookie"}
)
"""Fields that are not allowed in trailers: framing, routing, modifiers, authentication, content (RFC 9110, 6.5.1)."""


class Length:
    """A body with a Content-Length."""

    __slots__ = ("_left", "done", "rest")
    unread = False

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.rest = b""

    def feed(self, data: bytes, most: int = sys.maxsize) -> bytes:
        """Return the part of `data` that belongs to the body."""
        left = self._left = self._left - len(data)
        if left > 0:
            return data
        self.done = True
        if left == 0:
            return data
        self._left = 0
        self.rest = data[left:]
        return data[:left]


class ToEnd:
    """A body that ends with its connection; `done` is never set, as the end is no byte of it."""

    __slots__ = ("done", "rest")
    unread = False

    def __init__(self) -> None:
        self.done = False
        self.rest = b""

    def feed(self, data: bytes, most: int = sys.maxsize) -> bytes:
        """Return `data`: all of it belongs to the body."""
        return data


class Chunked:
    """A chunked body, checked as it arrives.

    A size line or a trailer is sent on once it is complete and valid, so that the next reader never sees part of an
    invalid one. Extensions are removed (RFC 9112, 7.1.1). decode: return the data without chunk lines and trailers.
    dropped: names of trailers to remove, because `Connection` lists them. limits: apply to trailers, too.
    """

    __slots__ = (
        "_altered", "_buffer", "_decode", "_dropped", "_left", "_limits", "_position", "_step", "done", "rest",
        "unread",
    )  # fmt: skip

    def __init__(
        self,
        decode: bool = False,
        dropped: set[bytes] | frozenset[bytes] = frozenset(),
        limits: HeadLimits = HeadLimits(),  # noqa: B008  # a tuple
    ) -> None:
        self._altered = self._decode = decode
        self._dropped = dropped
        self._limits = limits
        self._buffer = b""
        self._position = 0
        self._left = 0
        self._step = Chunked._size
        self.done = self.unread = False
        self.rest = b""

    def feed(self, data: bytes, most: int = sys.maxsize) -> bytes:
        """Return what may be sent on of `data`, and of the bytes held back before.

        most: number of steps, about three a chunk. When they are used up, `unread` is true: feed b"" to continue.

        Raises:
            Malformed: the chunks are invalid.
        """
        start = self._position
        if not self._buffer:
            start = 0
        elif data:
            data, start = self._buffer[start:] + data, 0
        else:
            data = self._buffer
        self._buffer, self.unread = b"", False
        self._altered = self._decode
        out: list[bytes | memoryview] = []
        position, end = start, len(data)
        while position < end and not self.done:
            if not most:
                self.unread = True
                self._buffer, self._position = data, position
                break
            most -= 1
            after = self._step(self, data, position, out)
            if after == position:  # the line is incomplete
                self._buffer, self._position = data[position:], 0
                break
            position = after
        if self.done:
            self.rest = data[position:]
        if self._altered:
            return b"".join(out)
        return data if position - start == len(data) else data[start:position]

    def _size(self, data: bytes, position: int, out: list[bytes | memoryview]) -> int:
        if not self._decode and (run := _TINY_CHUNKS.match(data, position)):
            out.append(memoryview(data)[position : run.end()])
            return run.end()
        match = _SIZE.match(data, position, position + MAX_LINE)
        if match is None:
            self._check_part(data, position)
            return position
        line, digits, extension = match.group(0, 1, 2)
        size = self._left = int(digits, 16)
        self._step = Chunked._data if size else Chunked._trailers
        if not self._decode:
            if extension:
                self._altered = True
                line = digits + b"\r\n"
            out.append(line)
        return match.end()

    def _check_part(self, data: bytes, position: int) -> None:
        """Check a size line that does not match: it may be incomplete, if it can still become valid."""
        if len(data) - position >= MAX_LINE and b"\r\n" not in data[position : position + MAX_LINE]:
            raise Malformed("chunk-line")
        if _PART.fullmatch(data, position) is None:
            raise Malformed("chunk-extension" if _HEX.match(data, position) else "chunk-size")

    def _data(self, data: bytes, position: int, out: list[bytes | memoryview]) -> int:
        end = min(position + self._left, len(data))
        self._left -= end - position
        if not self._left:
            self._step = Chunked._chunk_end
        out.append(memoryview(data)[position:end])
        return end

    def _chunk_end(self, data: bytes, position: int, out: list[bytes | memoryview]) -> int:
        if not data.startswith(b"\r\n", position):
            if data[position:] == b"\r":
                return position
            raise Malformed("chunk-end")
        self._step = Chunked._size
        if not self._decode:
            out.append(b"\r\n")
        return position + 2

    def _trailers(self, data: bytes, position: int, out: list[bytes | memoryview]) -> int:
        lines: list[bytes] = []
        end = position + 2
        if not data.startswith(b"\r\n", position):
            match = _TRAILERS.match(data, position, position + MAX_TRAILERS)
            if match is None:
                self._check_trailers(data[position:])
                return position
            lines = match[0][:-4].split(b"\r\n")
            end = match.end()
            if len(lines) > self._limits.fields or max(map(len, lines)) > self._limits.line:
                raise Malformed("trailer-size")
        if len(without(lines, _NO_TRAILER)) < len(lines):
            raise Malformed("trailer-name")
        sent = without(lines, self._dropped) if self._dropped else lines
        self._altered |= len(sent) < len(lines)
        self.done = True
        if not self._decode:
            out.extend(line + b"\r\n" for line in sent)
            out.append(b"\r\n")
        return end

    def _check_trailers(self, part: bytes) -> None:
        """Check trailers that do not match: they may be incomplete, if they can still become valid."""
        if len(part) >= MAX_TRAILERS:
            raise Malformed("trailer-size")
        rest = part.replace(b"\r\n", b"")
        if b"\r\n\r\n" in part or b"\n" in rest or b"\r" in rest[:-1]:
            raise Malformed("trailer")


Body = Length | Chunked | ToEnd

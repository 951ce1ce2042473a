"""The head of a response, read strictly: its body, its connection, and the lines that are sent on. Pure."""

from __future__ import annotations

import re

from gateway.http1.bodies import Body, Chunked, Length, ToEnd
from gateway.http1.fields import (
    HOP_BY_HOP,
    PROTECTED,
    RawHeader,
    check_coding,
    parse_fields,
    read_length,
    split_field,
    split_list,
    without,
)
from gateway.http1.rules import HeadLimits, Malformed

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t -~\x80-\xff]*+)?\r\n")
_SPECIAL = HOP_BY_HOP | {b"content-length"}
BODYLESS = frozenset({204, 304})


class ResponseReader:
    """Reads the heads of responses, with a cache: responses to similar requests often have the same head."""

    _MOST = 256
    _LONGEST = 2048

    def __init__(self, limits: HeadLimits) -> None:
        self.limits = limits
        self._known: dict[bytes, ResponseHead] = {}

    def read(self, raw: bytes) -> ResponseHead:
        """Read the head `raw`, which ends with its empty line.

        Raises:
            Malformed: the head breaks a rule.
        """
        head = self._known.get(raw)
        if head is None:
            head = ResponseHead(raw, self.limits)
            if len(raw) <= self._LONGEST:
                if len(self._known) >= self._MOST:
                    self._known.clear()
                self._known[raw] = head
        return head


class ResponseHead:
    """A response's head. Immutable for its users, because many responses may share it.

    raw: as received, with the empty line. lines: the field lines. length: Content-Length, or None. chunked: the
    transfer coding is chunked. persistent: the connection can be used again. listed: the fields that `Connection`
    lists. body_length: of the body, unless the method is HEAD; None if it is chunked or ends with the connection.
    no_hop_headers: there is no hop-by-hop field, except perhaps Transfer-Encoding. forwardable_verbatim: an
    HTTP/1.1 head with a length and without hop-by-hop fields.
    """

    __slots__ = (
        "_limits",
        "body_length",
        "chunked",
        "forwardable_verbatim",
        "length",
        "lines",
        "listed",
        "minor",
        "no_hop_headers",
        "persistent",
        "raw",
        "status",
    )  # fmt: skip

    def __init__(self, raw: bytes, limits: HeadLimits) -> None:
        match = _STATUS_LINE.match(raw)
        if match is None:
            raise Malformed("status-line")
        minor, status = match.groups()
        self.raw = raw
        self._limits = limits
        self.status = int(status)
        self.minor = 1 if minor == b"1" else 0
        self.lines = parse_fields(raw, match.end(), limits)
        self.length: int | None = None
        self.chunked = False
        self.no_hop_headers = True
        self.listed: set[bytes] = set()
        for line in self.lines:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name in _SPECIAL:
                self._note(name, value)
        if self.chunked and self.length is not None:
            raise Malformed("length-and-coding")
        if self.chunked and (self.status == 204 or self.status < 200):
            raise Malformed("coding-without-body")
        self.body_length = 0 if self.status in BODYLESS else self.length
        self.forwardable_verbatim = self.no_hop_headers and self.minor == 1 and self.length is not None
        self.persistent = b"close" not in self.listed and (self.minor == 1 or b"keep-alive" in self.listed)

    def _note(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            if self.length is not None:
                raise Malformed("length-twice")
            self.length = read_length(value)
        elif name == b"transfer-encoding":
            if self.chunked:
                raise Malformed("coding-twice")
            check_coding(value, self.minor)
            self.chunked = True
        else:
            self.no_hop_headers = False
            if name == b"connection":
                self.listed |= split_list(value)

    def body(self, method: bytes, decode: bool) -> Body:
        """Return the reader of the body (RFC 9112, 6.3). decode: see `Chunked`."""
        if method == b"HEAD":
            return Length(0)
        if self.body_length is not None:
            return Length(self.body_length)
        return Chunked(decode, self.listed - PROTECTED, self._limits) if self.chunked else ToEnd()

    def end_to_end(self) -> list[bytes]:
        """Return the lines that are sent on, in their order and spelling."""
        return without(self.lines, HOP_BY_HOP | (self.listed - PROTECTED))

    def pairs(self) -> list[RawHeader]:
        """Return the names and values of all fields."""
        return [split_field(line) for line in self.lines]

    def first_line(self) -> bytes:
        """Return the status line to send: the version is that of this hop (RFC 9112, 2.3)."""
        return b"HTTP/1.1" + self.raw[8 : self.raw.index(b"\r\n") + 2]

"""The head of a request, read strictly. Every rule that it can break is a row of `gateway.http1.rules`.

Pure. Stricter than RFC 9112 where tolerance would make request smuggling possible; each such place says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from gateway.http1 import fields as field_lines
from gateway.http1.bodies import Body, Chunked, Length
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

_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++) ([!\"$-~\x80-\xff]++) HTTP/([0-9])\.([0-9])\r\n")
# RFC 3986 also allows `!$&'()*+,;=` in a host; no host in use has them, and some parsers split a host there.
_HOST = re.compile(rb"(?:(?:[0-9A-Za-z._~\-]|%[0-9A-Fa-f]{2})*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{0,5}))?")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?]*)(?:[/?]|\Z)")
_SPECIAL = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"max-forwards"}
_NUMBER = re.compile(rb"[0-9]+")
COUNTED = frozenset({b"OPTIONS", b"TRACE"})
"""Methods for which `Max-Forwards` has a meaning (RFC 9110, 7.6.2)."""
MOST_FORWARDS = 999_999_999
_TUNNELS = frozenset({b"websocket"})
"""Protocols that a connection may be upgraded to. Not `h2c`: the gateway would not see its requests."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Fields:
    """The header fields of a request. Immutable for its users, because many requests may share them.

    lines: as received. host: the value of Host, or None. length: Content-Length, or None. chunked: the transfer coding
    is chunked. keep_alive: the client may send another request on the connection. expectation: there is an Expect.
    expects: the client waits for a 100. max_forwards: the value of Max-Forwards, or None. upgrade: the request asks
    for a tunnel that can be relayed. limits: those that were applied. traced: there may be fields of a W3C trace; None
    until it has been computed.
    """

    __slots__ = (
        "_around",
        "_dropped",
        "_end_to_end",
        "_host_at",
        "_pairs",
        "_sent_lines",
        "chunked",
        "expectation",
        "expects",
        "host",
        "keep_alive",
        "length",
        "limits",
        "lines",
        "max_forwards",
        "traced",
        "upgrade",
    )  # fmt: skip

    def __init__(self, head: bytes, start: int, minor: int, limits: HeadLimits) -> None:
        self.limits = limits
        self.lines = parse_fields(head, start, limits)
        self.host: bytes | None = None
        self.max_forwards: bytes | None = None
        self.traced: bool | None = None
        self.length: int | None = None
        self.chunked = self.expectation = self.expects = self.upgrade = False
        self._pairs: tuple[RawHeader, ...] | None = None
        self._sent_lines: tuple[bytes, bytes] | None = None
        self._around: tuple[tuple[bytes, bool, bool], tuple[bytes, bytes]] | None = None
        self._host_at = 0
        self._end_to_end: list[bytes] = []
        self._dropped: set[bytes] = set()
        self._read(minor)
        if self.chunked and self.length is not None:
            raise Malformed("length-and-coding")
        if self.host is None and minor == 1:
            raise Malformed("host-missing")
        if self.host is not None and not _is_host(self.host):
            raise Malformed("host")
        self.keep_alive = b"close" not in self._dropped and (minor == 1 or b"keep-alive" in self._dropped)

    def _read(self, minor: int) -> None:
        lines = self._end_to_end
        upgrades = b""
        for line in self.lines:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name not in _SPECIAL:
                lines.append(line)
            elif name == b"host":
                if self.host is not None:
                    raise Malformed("host-twice")
                self.host = value.strip(b" \t")
                self._host_at = len(lines)
                lines.append(line)
            elif name == b"content-length":
                if self.length is not None:
                    raise Malformed("length-twice")
                self.length = read_length(value)
                lines.append(line)
            elif name == b"connection":
                self._dropped |= split_list(value)
            elif name == b"transfer-encoding":
                if self.chunked:
                    raise Malformed("coding-twice")
                check_coding(value, minor)
                self.chunked = True
            elif name == b"expect":
                self.expectation = True
                self.expects = minor == 1 and value.strip(b" \t").lower() == b"100-continue"
                lines.append(line)
            elif name == b"max-forwards":
                given = value.strip(b" \t")
                self.max_forwards = given if self.max_forwards is None else self.max_forwards + b"," + given
                lines.append(line)
            elif name == b"upgrade":
                upgrades = value.strip(b" \t").lower()
        bare = minor == 1 and not self.chunked and not self.length
        self.upgrade = bare and upgrades in _TUNNELS and b"upgrade" in self._dropped

    def with_host(self, host: bytes, minor: int) -> Fields:
        """Return the fields with this Host in place of the received one (RFC 9112, 3.2.2)."""
        lines = [line[:5] + b" " + host if line[:5].lower() == b"host:" else line for line in self.lines]
        if self.host is None:
            lines.insert(0, b"Host: " + host)
        return Fields(b"\r\n".join((*lines, b"", b"")), 0, minor, self.limits)

    def body(self, decode: bool) -> Body | None:
        """Return the reader of the body, or None if there is no body. decode: see `Chunked`."""
        if self.chunked:
            return Chunked(decode, self._dropped - PROTECTED, self.limits)
        return Length(self.length) if self.length else None

    def lines_for(self, host: bytes) -> bytes:
        """Return the lines to send to the cluster, in their order and spelling, with CRLF and the empty line.

        host: replaces the client's Host; empty: the client's Host is sent.
        """
        known = self._sent_lines
        if known is None or known[0] != host:
            known = self._sent_lines = host, b"\r\n".join((*self._lines_for(host), b"\r\n"))
        return known[1]

    def around_length(self, host: bytes, *, replaced: bool, plain: bool = False) -> tuple[bytes, bytes]:
        """Return `lines_for` of a body that the gateway has buffered; see `fields.around_length`."""
        key = host, replaced, plain
        known = self._around
        if known is None or known[0] != key:
            found = field_lines.around_length(self.lines_for(host), replaced=replaced, plain=plain)
            known = self._around = key, found
        return known[1]

    def _lines_for(self, host: bytes) -> list[bytes]:
        lines = self._end_to_end
        if host and self.host is None:
            lines = [b"Host: " + host, *lines]
        elif host:
            at = self._host_at
            lines = [*lines[:at], lines[at][:5] + b" " + host, *lines[at + 1 :]]
        if self._dropped:
            lines = without(lines, self._dropped - PROTECTED)
        if self.chunked:
            lines = [*lines, b"Transfer-Encoding: chunked"]
        if self.upgrade:
            lines = [*lines, *(line for line in self.lines if line[:8].lower() == b"upgrade:"), b"Connection: Upgrade"]
        return lines

    def pairs(self) -> Sequence[RawHeader]:
        """Return the names and values of all fields."""
        if self._pairs is None:
            self._pairs = tuple(map(split_field, self.lines))
        return self._pairs


MOST_HEADS = 1024
"""Heads that are kept."""


class RequestReader:
    """Reads the heads of requests, with caches: clients repeat whole heads, and the fields of heads even more often.

    The caches may hold credentials, as an open connection does; `MOST_HEADS` and `_LONGEST` limit them.
    """

    _LONGEST = 4096

    def __init__(self, limits: HeadLimits) -> None:
        self.limits = limits
        self._requests: dict[bytes, Request] = {}
        self._fields: dict[tuple[bytes, bytes], Fields] = {}

    def read(self, head: bytes) -> Request:
        """Read a head, which ends with its empty line.

        Raises:
            Malformed: the head breaks a rule.
        """
        request = self._requests.get(head)
        if request is None:
            request = self._read(head)
            self._store(self._requests, head, len(head), request)
        return request

    def _read(self, head: bytes) -> Request:
        match = _LINE.match(head)
        if match is None:
            raise Malformed(fault_in_line(head[: head.index(b"\r\n")]))
        method, target, major, minor = match.groups()
        if major != b"1" or minor not in b"01":
            raise Malformed("version")
        start = match.end()
        if start > self.limits.line:
            raise Malformed("target-size")
        key = minor, head[start:]
        fields = self._fields.get(key)
        if fields is None:
            fields = Fields(head, start, int(minor), self.limits)
            self._store(self._fields, key, len(head) - start, fields)
        if target[0] != 47 or method == b"CONNECT":  # 47 is "/", so the target is not in origin-form
            target, authority = _read_target(method, target)
            if authority and authority != fields.host:
                fields = fields.with_host(authority, int(minor))
        if fields.max_forwards is not None and method in COUNTED and _NUMBER.fullmatch(fields.max_forwards) is None:
            raise Malformed("max-forwards")
        return Request(method, target, int(minor), fields)

    def _store(self, cache: dict[_Key, _Value], key: _Key, size: int, value: _Value) -> None:
        if size <= self._LONGEST:
            if len(cache) >= MOST_HEADS:
                cache.clear()
            cache[key] = value


class Request:
    """A request's head. Immutable for its users, because many requests may share it.

    method: as received. minor: the minor version; the major version is 1.

    target: as received. An absolute target is reduced to what follows its host, the form that is sent on (RFC 9112,
    3.2.1). Its host replaces that of the field Host, in `fields` too.
    """

    __slots__ = ("fields", "method", "minor", "target")

    def __init__(self, method: bytes, target: bytes, minor: int, fields: Fields) -> None:
        self.method = method
        self.target = target
        self.minor = minor
        self.fields = fields

    @property
    def has_body(self) -> bool:
        """There is a body."""
        return self.fields.chunked or bool(self.fields.length)


def _read_target(method: bytes, target: bytes) -> tuple[bytes, bytes]:
    """Return a target that is not in origin-form (RFC 9112, 3.2) as it is sent on, and the authority that it names.

    It is sent on in origin-form, or as `*`. The rest of the gateway, such as the route table, then sees one form only.

    Raises:
        Malformed: the form is not relayed, or the target names no host.
    """
    if method == b"CONNECT":
        raise Malformed("connect")
    if target == b"*" and method == b"OPTIONS":
        return target, b""
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        raise Malformed("target-form")
    authority = absolute[1]
    if not authority or not _is_host(authority):
        raise Malformed("host")
    rest = target[absolute.end(1) :]
    if not rest:
        return (b"*" if method == b"OPTIONS" else b"/"), authority  # RFC 9112, 3.2.4 and 3.2.1
    return (rest if rest.startswith(b"/") else b"/" + rest), authority


def fault_in_line(line: bytes) -> str:
    """Return the rule that an invalid request line breaks, a key of `RULES`."""
    parts = line.split(b" ")
    if b"\n" in line:
        return "bare-lf"
    if len(parts) != 3 or not all(parts):
        return "request-line"
    method, target, version = parts
    if re.fullmatch(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", method) is None:
        return "method"
    if re.fullmatch(rb"HTTP/[0-9]\.[0-9]", version) is None:
        return "version-syntax"
    return "target" if re.fullmatch(rb"[!\"$-~\x80-\xff]+", target) is None else "request-line"


@lru_cache(256)
def _is_host(value: bytes) -> bool:
    match = _HOST.fullmatch(value)
    return match is not None and int(match[1] or 0) <= 65535

"""The head of a request, read once and strictly: every rule it can break is a row of `gateway.upstream.grammar`.

Pure. Stricter than RFC 9112 where leniency is what smuggling needs; each such place says so.
"""

from __future__ import annotations

import re
from functools import lru_cache

from gateway.upstream.framing import Body, Chunked, Length
from gateway.upstream.grammar import (
    HOP_BY_HOP,
    PROTECTED,
    HeadLimits,
    Malformed,
    RawHeader,
    check_coding,
    fields_of,
    listed,
    pair,
    read_length,
    without,
)

_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++) ([!\"$-~\x80-\xff]++) HTTP/([0-9])\.([0-9])\r\n")
# Only what names in use are made of; RFC 3986 would allow `!$&'()*+,;=` too, which others split hosts at.
_HOST = re.compile(rb"(?:(?:[0-9A-Za-z._~\-]|%[0-9A-Fa-f]{2})*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{0,5}))?")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?]*)(?:[/?]|\Z)")
_SPECIAL = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_TUNNELS = frozenset({b"websocket"})
"""What a connection may be upgraded to. Not `h2c`: its requests would pass unseen."""


class Request:
    """A request's head.

    method, target: as they came. minor: of HTTP/1. lines: its field lines as they stand. host: the value of its
    Host, None without one. length: its Content-Length. keep_alive: its client wants to send more on the connection.
    expects: it waits for a 100. upgrade: it asks for a tunnel that can be relayed.
    """

    __slots__ = (
        "_dropped", "_host_at", "_kept", "_limits", "chunked", "expects", "host", "keep_alive", "length", "lines", "method",
        "minor", "target", "upgrade",
    )  # fmt: skip

    def __init__(self, head: bytes, limits: HeadLimits) -> None:
        match = _LINE.match(head)
        if match is None:
            raise Malformed(fault_in_line(head[: head.index(b"\r\n")]))
        self.method, self.target, major, minor = match.groups()
        if major != b"1" or minor not in b"01":
            raise Malformed("version")
        self.minor = int(minor)
        self._limits = limits
        if match.end() > limits.line:
            raise Malformed("target-size")
        self.lines = fields_of(head, match.end(), limits)
        self.host: bytes | None = None
        self.length: int | None = None
        self.chunked = self.expects = self.upgrade = False
        self._host_at = 0
        self._kept: list[bytes] = []
        self._dropped: set[bytes] = set()
        self._read_fields()
        self._check()
        close = self._dropped and b"close" in self._dropped
        self.keep_alive = not close if self.minor else b"keep-alive" in self._dropped and not close

    def _read_fields(self) -> None:
        kept = self._kept
        upgrades = b""
        for line in self.lines:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name not in _SPECIAL:
                kept.append(line)
            elif name == b"host":
                if self.host is not None:
                    raise Malformed("host-twice")
                self.host = value.strip(b" \t")
                self._host_at = len(kept)
                kept.append(line)
            elif name == b"content-length":
                if self.length is not None:
                    raise Malformed("length-twice")
                self.length = read_length(value)
                kept.append(line)
            elif name == b"connection":
                self._dropped |= listed(value)
            elif name == b"transfer-encoding":
                if self.chunked:
                    raise Malformed("coding-twice")
                check_coding(value, self.minor)
                self.chunked = True
            elif name == b"expect":
                self.expects = self.minor == 1 and value.strip(b" \t").lower() == b"100-continue"
                kept.append(line)
            elif name == b"upgrade":
                upgrades = value.strip(b" \t").lower()
        self.upgrade = upgrades in _TUNNELS and b"upgrade" in self._dropped and self._may_upgrade()

    def _may_upgrade(self) -> bool:
        return self.minor == 1 and not self.chunked and not self.length

    def _check(self) -> None:
        if self.chunked and self.length is not None:
            raise Malformed("length-and-coding")
        if self.host is None:
            if self.minor:
                raise Malformed("host-missing")
        elif not _is_host(self.host):
            raise Malformed("host")
        if self.target[0] != 47 or self.method == b"CONNECT":  # not "/": not in origin-form
            self._check_form()

    def _check_form(self) -> None:
        """The forms a target takes besides a path (RFC 9112, 3.2)."""
        if self.method == b"CONNECT":
            raise Malformed("connect")
        if self.target == b"*" and self.method == b"OPTIONS":
            return
        absolute = _ABSOLUTE.match(self.target)
        if absolute is None:
            raise Malformed("target-form")
        if self.host is not None and absolute[1].lower() != self.host.lower():
            raise Malformed("host-differs")
        if not absolute[1] or not _is_host(absolute[1]):
            raise Malformed("host")

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.chunked or bool(self.length)

    def body(self, decode: bool) -> Body | None:
        """What reads its body, None when it has none. decode: as `Chunked`."""
        if self.chunked:
            return Chunked(decode, self._dropped - PROTECTED, self._limits)
        return Length(self.length) if self.length else None

    def onward(self, host: bytes) -> list[bytes]:
        """The field lines that go to the cluster, in their order and spelling. host: in place of its own Host, if any."""
        kept = self._kept
        if host:
            if self.host is None:
                kept = [b"Host: " + host, *kept]
            else:
                at = self._host_at
                kept = [*kept[:at], kept[at][:5] + b" " + host, *kept[at + 1 :]]
        if self._dropped:
            kept = without(kept, self._dropped - PROTECTED)
        if self.chunked:
            kept = [*kept, b"Transfer-Encoding: chunked"]
        if self.upgrade:
            kept = [*kept, *(line for line in self.lines if line[:8].lower() == b"upgrade:"), b"Connection: Upgrade"]
        return kept

    def pairs(self) -> list[RawHeader]:
        """Names and values of all its fields."""
        return [pair(line) for line in self.lines]


def fault_in_line(line: bytes) -> str:
    """What is wrong with a request line that doesn't match, as a key of `RULES`."""
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

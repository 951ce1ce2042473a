"""The rules that a message must follow: one row each, with the status, the reason and the clause of the RFC.

Nothing is repaired. What one parser repairs, another may read differently, and request smuggling uses that difference.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """A rule of HTTP: the status of the refusal, the reason for people, and the clause that says so."""

    status: int
    reason: str
    clause: str


RULES = {
    "request-line": Rule(400, "its first line is not `method target version`, one space apart", "RFC 9112, 3"),
    "method": Rule(400, "its method is not a token", "RFC 9110, 9.1"),
    "connect": Rule(501, "the gateway opens no tunnels, so CONNECT is not relayed", "RFC 9110, 9.3.6 and 15.6.2"),
    "target": Rule(400, "its target has a character that is not allowed in a target", "RFC 9112, 3.2"),
    "target-form": Rule(400, "its target is not in a form that its method allows", "RFC 9112, 3.2.1 to 3.2.4"),
    "version-syntax": Rule(400, "its version is not written HTTP/digit.digit", "RFC 9112, 2.3"),
    # RFC 9110, 2.5 says to read HTTP/1.2 as 1.1. There is no such version, so the request is refused.
    "version": Rule(505, "its version is neither HTTP/1.1 nor HTTP/1.0", "RFC 9110, 2.5 and 15.6.6"),
    "target-size": Rule(414, "its first line is longer than `limits.header_line`", "RFC 9112, 3"),
    "field-size": Rule(431, "a header is longer than `limits.header_line`", "RFC 6585, 5"),
    "head-size": Rule(431, "its head is longer than `limits.head`", "RFC 6585, 5"),
    "fields": Rule(431, "it has more headers than `limits.headers`", "RFC 6585, 5"),
    "bare-lf": Rule(400, "a line of its head ends in LF without CR", "RFC 9112, 2.2"),
    "bare-cr": Rule(400, "its head has a CR without LF", "RFC 9112, 2.2"),
    "fold": Rule(400, "a header is continued on a line that begins with a space", "RFC 9112, 5.2"),
    "space-in-name": Rule(400, "there is a space between a header's name and its colon", "RFC 9112, 5.1"),
    "field-name": Rule(400, "a header's name is not a token", "RFC 9110, 5.1"),
    "field-value": Rule(400, "a header's value has a control character", "RFC 9110, 5.5"),
    "host-missing": Rule(400, "it has no Host", "RFC 9112, 3.2"),
    "host-twice": Rule(400, "it has more than one Host", "RFC 9112, 3.2"),
    "host": Rule(400, "its Host is not a host and an optional port", "RFC 9112, 3.2; RFC 9110, 4.2.1 and 4.2.4"),
    "length": Rule(400, "its Content-Length is not a number", "RFC 9112, 6.3 (5)"),
    "length-twice": Rule(400, "it has more than one Content-Length", "RFC 9112, 6.3 (5)"),
    "length-and-coding": Rule(400, "it has both Content-Length and Transfer-Encoding", "RFC 9112, 6.1 and 6.3 (3)"),
    "coding": Rule(
        400, "its last transfer coding is not chunked, or chunked occurs twice", "RFC 9112, 6.1 and 6.3 (4)"
    ),
    "coding-unknown": Rule(501, "it has a transfer coding other than chunked", "RFC 9112, 6.1"),
    "coding-twice": Rule(400, "it has more than one Transfer-Encoding", "RFC 9112, 6.1"),
    "coding-in-1.0": Rule(400, "it has a transfer coding, which HTTP/1.0 does not define", "RFC 9112, 6.1"),
    "coding-without-body": Rule(502, "it has a transfer coding, but its status does not allow a body", "RFC 9112, 6.1"),
    "max-forwards": Rule(400, "its Max-Forwards is not a number", "RFC 9110, 7.6.2"),
    "chunk-size": Rule(400, "a chunk's size is not a hexadecimal number", "RFC 9112, 7.1"),
    "chunk-line": Rule(400, "a chunk's size line is longer than 1 KiB", "RFC 9112, 7.1.1"),
    "chunk-extension": Rule(400, "a chunk's extension is malformed", "RFC 9112, 7.1.1"),
    "chunk-end": Rule(400, "a chunk is not followed by CRLF", "RFC 9112, 7.1"),
    "trailer-size": Rule(400, "its trailers exceed the limits of headers, or 16 KiB", "RFC 9112, 7.1.2"),
    "trailer": Rule(400, "a trailer is malformed", "RFC 9112, 7.1.2"),
    "trailer-name": Rule(400, "a trailer has a name that is only allowed in a header", "RFC 9110, 6.5.1"),
    "status-line": Rule(502, "its first line is not `version status reason`", "RFC 9112, 4"),
    "interim": Rule(502, "more than five interim responses came before it", "RFC 9110, 15.2"),
    "switch": Rule(502, "it switched protocols without a request to do so", "RFC 9110, 15.2.2"),
}


class Malformed(Exception):
    """A message breaks the rule `code`, a key of `RULES`."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.rule = RULES[code]
        super().__init__(f"{self.rule.reason} ({self.rule.clause})")


class HeadLimits(NamedTuple):
    """Largest line in bytes, largest head in bytes, largest number of fields."""

    line: int = 65_536
    head: int = 262_144
    fields: int = 1_000

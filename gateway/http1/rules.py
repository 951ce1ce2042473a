"""What every HTTP/1 message is made of, read strictly: lines, fields, lengths and transfer codings.

Pure: bytes in, values out. Each way to be wrong is a row of `RULES`; nothing is repaired, since what one reader
repairs another may read differently, and that is what request smuggling lives on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

RawHeader = tuple[bytes, bytes]


class Rule(NamedTuple):
    """What a message broke: the status a client is told, the reason in words, and where it is written."""

    status: int
    reason: str
    clause: str


RULES = {
    "request-line": Rule(400, "its first line is not `method target version`, one space apart", "RFC 9112, 3"),
    "method": Rule(400, "its method is no token", "RFC 9110, 9.1"),
    "connect": Rule(501, "the gateway opens no tunnels, so CONNECT is not relayed", "RFC 9110, 9.3.6 and 15.6.2"),
    "target": Rule(400, "its target has a character that no target has", "RFC 9112, 3.2"),
    "target-form": Rule(400, "its target is in no form that its method takes", "RFC 9112, 3.2.1 to 3.2.4"),
    "version-syntax": Rule(400, "its version is not written HTTP/digit.digit", "RFC 9112, 2.3"),
    # RFC 9110, 2.5 would have HTTP/1.2 read as 1.1. There is no such version: who claims it is probing.
    "version": Rule(505, "its version is neither HTTP/1.1 nor HTTP/1.0", "RFC 9110, 2.5 and 15.6.6"),
    "target-size": Rule(414, "its first line is longer than `limits.header_line`", "RFC 9112, 3"),
    "field-size": Rule(431, "a header is longer than `limits.header_line`", "RFC 6585, 5"),
    "head-size": Rule(431, "its head is longer than `limits.head`", "RFC 6585, 5"),
    "fields": Rule(431, "it has more headers than `limits.headers`", "RFC 6585, 5"),
    "bare-lf": Rule(400, "a line of its head ends in LF without CR", "RFC 9112, 2.2"),
    "bare-cr": Rule(400, "its head has a CR that ends no line", "RFC 9112, 2.2"),
    "fold": Rule(400, "a header goes on in a line that begins with a space", "RFC 9112, 5.2"),
    "space-in-name": Rule(400, "a space stands between a header's name and its colon", "RFC 9112, 5.1"),
    "field-name": Rule(400, "a header's name is empty or no token", "RFC 9110, 5.1"),
    "field-value": Rule(400, "a header's value has a control character", "RFC 9110, 5.5"),
    "host-missing": Rule(400, "it has no Host", "RFC 9112, 3.2"),
    "host-twice": Rule(400, "it has more than one Host", "RFC 9112, 3.2"),
    "host": Rule(400, "its Host is no host and port", "RFC 9112, 3.2; RFC 9110, 4.2.1 and 4.2.4"),
    "host-differs": Rule(400, "its target names another host than its Host", "RFC 9112, 3.2.2"),
    "length": Rule(400, "its Content-Length is no number", "RFC 9112, 6.3 (5)"),
    "length-twice": Rule(400, "it has more than one Content-Length", "RFC 9112, 6.3 (5)"),
    "length-and-coding": Rule(400, "it has both Content-Length and Transfer-Encoding", "RFC 9112, 6.1 and 6.3 (3)"),
    "coding": Rule(400, "chunked is not its last transfer coding, once", "RFC 9112, 6.1 and 6.3 (4)"),
    "coding-unknown": Rule(501, "it has a transfer coding other than chunked", "RFC 9112, 6.1"),
    "coding-twice": Rule(400, "it has more than one Transfer-Encoding", "RFC 9112, 6.1"),
    "coding-in-1.0": Rule(400, "it has a transfer coding, which HTTP/1.0 does not know", "RFC 9112, 6.1"),
    "coding-without-body": Rule(502, "it has a transfer coding, and a status that has no body", "RFC 9112, 6.1"),
    "max-forwards": Rule(400, "its Max-Forwards is no number", "RFC 9110, 7.6.2"),
    "chunk-size": Rule(400, "a chunk's size is no hexadecimal number", "RFC 9112, 7.1"),
    "chunk-line": Rule(400, "a chunk's size line is longer than 1 KiB", "RFC 9112, 7.1.1"),
    "chunk-extension": Rule(400, "a chunk's extension is malformed", "RFC 9112, 7.1.1"),
    "chunk-end": Rule(400, "a chunk is not followed by CRLF", "RFC 9112, 7.1"),
    "trailer-size": Rule(400, "its trailers are longer or more than headers may be, or than 16 KiB", "RFC 9112, 7.1.2"),
    "trailer": Rule(400, "a trailer is malformed", "RFC 9112, 7.1.2"),
    "trailer-name": Rule(400, "a trailer bears a name that only a header may bear", "RFC 9110, 6.5.1"),
    "status-line": Rule(502, "its first line is not `version status reason`", "RFC 9112, 4"),
    "switch": Rule(502, "it switched protocols unasked", "RFC 9110, 15.2.2"),
}


class Malformed(Exception):
    """A message breaks the rule named `code`, a key of `RULES`."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.rule = RULES[code]
        super().__init__(f"{self.rule.reason} ({self.rule.clause})")


TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
"""A character of a token (RFC 9110, 5.6.2)."""
VALUE = rb"[^\x00-\x08\x0a-\x1f\x7f]"
"""A character of a field's value: visible, space, tab or obs-text (RFC 9110, 5.5)."""

_FIELDS = re.compile(rb"(?:%b++:%b*+\r\n)*+" % (TOKEN, VALUE))
_NAME = re.compile(rb"%b+" % TOKEN)
_CODING = rb"(?!chunked[ \t]*;)%b+(?:[ \t]*;[ \t]*%b+[ \t]*=[ \t]*%b+)*" % (TOKEN, TOKEN, TOKEN)
_CODINGS = re.compile(rb"%b(?:[ \t]*,[ \t]*%b)*" % (_CODING, _CODING))
_LENGTH = re.compile(rb"[ \t]*([0-9]{1,18})[ \t]*")
_LONE = re.compile(rb"\r(?!\n|\Z)|(?<!\r)\n|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

HOP_BY_HOP = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
"""RFC 9110, 7.6.1, and HTTP2-Settings, which is only ever sent with `Upgrade: h2c` (RFC 7540, 3.2.1)."""

PROTECTED = frozenset(
    {b"host", b"content-length", b"content-encoding", b"content-type", b"forwarded"}
    | {b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}
)
"""What `Connection` may not name: without these the next hop would read another message than this one did, or would
not learn from whom it came."""


class HeadLimits(NamedTuple):
    """Most bytes of a line, most bytes of a whole head, most fields in it."""

    line: int = 65_536
    head: int = 262_144
    fields: int = 1_000


def fields_of(head: bytes, start: int, limits: HeadLimits) -> list[bytes]:
    """The field lines of `head`, each as it stands. start: where the first one begins; the head ends in CRLF CRLF.

    Raises:
        Malformed: one is none, or a limit is passed.
    """
    end = len(head) - 2
    if start == end:
        return []
    if _FIELDS.fullmatch(head, start, end) is None:
        raise Malformed(_fault_in(head[start : end - 2]))
    lines = head[start : end - 2].split(b"\r\n")
    if len(lines) > limits.fields:
        raise Malformed("fields")
    if end > limits.line and max(map(len, lines)) > limits.line:
        raise Malformed("field-size")
    return lines


def _fault_in(fields: bytes) -> str:
    """What is wrong with field lines that don't match."""
    if lone := _LONE.search(fields):
        return {b"\r": "bare-cr", b"\n": "bare-lf"}.get(lone.group(), "field-value")
    for line in fields.split(b"\r\n"):
        name, colon, _ = line.partition(b":")
        if line.startswith((b" ", b"\t")):
            return "fold"
        if not colon or _NAME.fullmatch(name) is None:
            return "space-in-name" if _NAME.fullmatch(name.rstrip(b" \t")) and colon else "field-name"
    return "field-value"


def fault_so_far(part: bytes | bytearray, start: int) -> str:
    """What is wrong already with a head that is not whole yet, "" if nothing is. start: what was looked at before."""
    lone = _LONE.search(part, max(start - 1, 0))
    if lone is None:
        return ""
    return {b"\r": "bare-cr", b"\n": "bare-lf"}.get(bytes(lone.group()), "field-value")


def read_length(value: bytes) -> int:
    """The number of a Content-Length (RFC 9110, 8.6), white space around it (5.5) left out."""
    match = _LENGTH.fullmatch(value)
    if match is None:
        raise Malformed("length")
    return int(match[1])


def check_coding(value: bytes, minor: int) -> None:
    """Check that a Transfer-Encoding is `chunked` and nothing else, in HTTP/1.1.

    Other codings are not implemented. Where `chunked` is among them but not last, the body has no known end, so that
    is no matter of what is implemented. Neither is a list with an empty element or a `chunked` with parameters.
    """
    if minor == 0:
        raise Malformed("coding-in-1.0")
    value = value.strip(b" \t").lower()
    if value == b"chunked":
        return
    codings = _CODINGS.fullmatch(value) and [coding.strip(b" \t") for coding in value.split(b",")]
    if not codings or b"chunked" in codings[:-1]:
        raise Malformed("coding")
    raise Malformed("coding-unknown")


def listed(value: bytes) -> set[bytes]:
    """The members of a comma-separated value, in lower case."""
    return {member for part in value.lower().split(b",") if (member := part.strip(b" \t"))}


def pair(line: bytes) -> RawHeader:
    """Name and value of a field line."""
    name, _, value = line.partition(b":")
    return name, value.strip(b" \t")


def without(lines: list[bytes], names: frozenset[bytes] | set[bytes]) -> list[bytes]:
    """The lines whose name is not among `names` (lower case)."""
    return [line for line in lines if line.partition(b":")[0].lower() not in names]

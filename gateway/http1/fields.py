"""Header fields and trailers as lines of bytes: parsing, and the lines that are sent on (RFC 9110, section 5)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.http1.rules import HeadLimits, Malformed

RawHeader = tuple[bytes, bytes]

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
"""A character of a token (RFC 9110, 5.6.2)."""
VALUE = rb"[^\x00-\x08\x0a-\x1f\x7f]"
"""A character of a field value: visible, space, tab or obs-text (RFC 9110, 5.5)."""

_FIELDS = re.compile(rb"(?:%b++:%b*+\r\n)*" % (TOKEN, VALUE))
_NAME = re.compile(rb"%b+" % TOKEN)
_CODING = rb"(?!chunked[ \t]*;)%b+(?:[ \t]*;[ \t]*%b+[ \t]*=[ \t]*%b+)*" % (TOKEN, TOKEN, TOKEN)
_CODINGS = re.compile(rb"%b(?:[ \t]*,[ \t]*%b)*" % (_CODING, _CODING))
_LENGTH = re.compile(rb"[ \t]*([0-9]{1,18})[ \t]*")
_CONTROL = re.compile(rb"\r(?!\n|\Z)|(?<!\r)\n|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

HOP_BY_HOP = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
"""RFC 9110, 7.6.1, and HTTP2-Settings, which is only sent with `Upgrade: h2c` (RFC 7540, 3.2.1)."""

PROTECTED = frozenset(
    {b"host", b"content-length", b"content-encoding", b"content-type", b"forwarded"}
    | {b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}
)
"""Fields that `Connection` cannot remove. Without them the next hop would read another message, or would not learn
who sent it."""

_OF_THE_BODY = frozenset({b"content-encoding", b"content-md5", b"content-digest", b"digest", b"repr-digest"})
"""Fields that describe the client's body, and would be wrong for another body."""
_DONE = frozenset({b"expect", b"transfer-encoding"})


def parse_fields(head: bytes, start: int, limits: HeadLimits) -> list[bytes]:
    """Split the field lines of `head`, without their CRLF.

    start: where the first one begins. The head ends in CRLF CRLF.

    Raises:
        Malformed: a line is invalid, or a limit is exceeded.
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
    """Return the rule that invalid field lines break."""
    if fault := find_control(fields, 0):
        return fault
    for line in fields.split(b"\r\n"):
        name, colon, _ = line.partition(b":")
        if line.startswith((b" ", b"\t")):
            return "fold"
        if not colon or _NAME.fullmatch(name) is None:
            return "space-in-name" if _NAME.fullmatch(name.rstrip(b" \t")) and colon else "field-name"
    return "field-value"


def find_control(part: bytes | bytearray, start: int) -> str:
    """Return the rule that a bare CR, a bare LF or another control character breaks; "" if there is none.

    part: may be the beginning of a head. start: where to begin.
    """
    found = _CONTROL.search(part, start)
    if found is None:
        return ""
    return {b"\r": "bare-cr", b"\n": "bare-lf"}.get(bytes(found.group()), "field-value")


def read_length(value: bytes) -> int:
    """Read the number of a Content-Length (RFC 9110, 8.6). Optional whitespace (5.5) is ignored."""
    match = _LENGTH.fullmatch(value)
    if match is None:
        raise Malformed("length")
    return int(match[1])


def check_coding(value: bytes, minor: int) -> None:
    """Check that a Transfer-Encoding is `chunked` and nothing else, in HTTP/1.1.

    Other codings are not implemented (501). If `chunked` is not the last coding, the body has no known end: that is
    malformed (400), as is a list with an empty element, or `chunked` with parameters.
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


def split_list(value: bytes) -> set[bytes]:
    """Split a comma-separated value into its members, in lower case."""
    return {member for part in value.lower().split(b",") if (member := part.strip(b" \t"))}


def split_field(line: bytes) -> RawHeader:
    """Split a field line into its name and value."""
    name, _, value = line.partition(b":")
    return name, value.strip(b" \t")


def without(lines: list[bytes], names: frozenset[bytes] | set[bytes]) -> list[bytes]:
    """Return the lines whose name is not in `names` (lower case)."""
    return [line for line in lines if line.partition(b":")[0].lower() not in names]


def around_length(lines: bytes, *, replaced: bool, plain: bool = False) -> tuple[bytes, bytes]:
    """Return the header lines before and after the number of a Content-Length that is filled in later.

    The empty line is left out. lines: as they would be sent on, with it. replaced: the body is no longer the client's,
    so the fields that describe the client's body (coding, digests) are removed. `Expect` and `Transfer-Encoding` are
    always removed, because the gateway has already acted on them. plain: the response is to have no content coding.
    """
    removed = _DONE | _OF_THE_BODY if replaced else _DONE
    if plain:
        removed |= {b"accept-encoding"}
    after: list[bytes] = []
    before: bytes | None = None
    for line in lines[:-4].split(b"\r\n"):
        name = line.partition(b":")[0].lower()
        if name == b"content-length":
            before = b"\r\n".join((*after, line[:14] + b": "))
            after = []
        elif name not in removed:
            after.append(line)
    if plain:
        after.append(b"Accept-Encoding: identity")
    if before is None:
        return b"\r\n".join((*after, b"Content-Length: ")), b"\r\n"
    return before, b"\r\n".join((b"", *after, b""))


def encode_fields(fields: Mapping[str, str]) -> bytes:
    """Encode header fields of the gateway's own as lines, each with its CRLF."""
    lines = ""
    for name, value in fields.items():
        lines += f"{name}: {value}\r\n"
    return lines.encode()

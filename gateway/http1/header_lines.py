"""The header lines of a request whose body the gateway holds, and lines of its own."""

from __future__ import annotations

from collections.abc import Mapping

_OF_THE_BODY = frozenset({b"content-encoding", b"content-md5", b"content-digest", b"digest", b"repr-digest"})
"""What described the client's body, and would be wrong of another."""


def around_length(lines: bytes, *, replaced: bool) -> tuple[bytes, bytes]:
    """The header lines of a request whose body the gateway holds: what stands before and behind the body's length.

    lines: as they would go on, with the empty one. replaced: the body is not the client's own any more, so the headers
    that described that one (coding, digests) go. `Expect` and `Transfer-Encoding` go in any case: the gateway has
    dealt with them.
    """
    kept: list[bytes] = []
    before: bytes | None = None
    for line in lines[:-4].split(b"\r\n"):
        name = line.partition(b":")[0].lower()
        if name == b"content-length":
            before = b"\r\n".join((*kept, line[:14] + b": "))
            kept = []
        elif name not in (b"expect", b"transfer-encoding") and not (replaced and name in _OF_THE_BODY):
            kept.append(line)
    if before is None:
        return b"\r\n".join((*kept, b"Content-Length: ")), b"\r\n\r\n"
    return before, b"\r\n".join((b"", *kept, b"\r\n"))


def lines_of(added: Mapping[str, str]) -> bytes:
    """The gateway's own headers as lines, each with its CRLF."""
    return "".join([f"{name}: {value}\r\n" for name, value in added.items()]).encode()

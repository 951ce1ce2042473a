"""The header lines of a request whose body the gateway holds, and lines of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_OF_THE_BODY = frozenset({b"content-encoding", b"content-md5", b"content-digest", b"digest", b"repr-digest"})
"""What described the client's body, and would be wrong of another."""


def with_body(lines: Sequence[bytes], length: int, *, replaced: bool) -> list[bytes]:
    """The header lines of a request whose body the gateway holds.

    length: bytes of the body. replaced: it is not the client's own any more, so the headers that described that
    one (coding, digests) go. `Expect` and `Transfer-Encoding` go in any case: the gateway has dealt with them.
    """
    kept: list[bytes] = []
    sized = False
    for line in lines:
        name = line.partition(b":")[0].lower()
        if name == b"content-length":
            sized = True
            kept.append(b"%b: %d" % (line[:14], length))
        elif name not in (b"expect", b"transfer-encoding") and not (replaced and name in _OF_THE_BODY):
            kept.append(line)
    return kept if sized else [*kept, b"Content-Length: %d" % length]


def lines_of(added: Mapping[str, str]) -> list[bytes]:
    """The gateway's own headers as lines."""
    return [b"%b: %b" % (name.encode("ascii"), value.encode("utf-8")) for name, value in added.items()]

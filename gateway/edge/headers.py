"""Which headers end at this hop, and which go on as they are (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gateway.upstream.client import RawHeader

HOP_BY_HOP = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
"""RFC 9110, 7.6.1, and HTTP2-Settings, which is only ever sent with `Upgrade: h2c` (RFC 7540, 3.2.1)."""

_PROTECTED = frozenset({b"host", b"content-length", b"content-encoding", b"content-type"})
"""What `Connection` may not name: without these the next hop would read another message than this one did."""


def end_to_end(headers: Iterable[RawHeader]) -> list[RawHeader]:
    """The headers that go on, in their order, spelling and number."""
    headers = list(headers)
    named = {
        name.strip().lower() for key, value in headers if key.lower() == b"connection" for name in value.split(b",")
    }
    dropped = HOP_BY_HOP | (named - _PROTECTED)
    return [pair for pair in headers if pair[0].lower() not in dropped]


def with_host(headers: Sequence[RawHeader], host: bytes) -> list[RawHeader]:
    """The headers with `host` in place of the client's own `Host`, or first where it sent none."""
    if not any(name.lower() == b"host" for name, _ in headers):
        return [(b"Host", host), *headers]
    return [(name, host if name.lower() == b"host" else value) for name, value in headers]


def with_body(headers: Sequence[RawHeader], length: int, *, replaced: bool) -> list[RawHeader]:
    """The headers of a request whose body the gateway holds.

    length: bytes of the body. replaced: it is not the client's own any more, so the headers that described
    that one (coding, digests) go. `Expect` goes in any case: the gateway has answered it.
    """
    gone = {b"expect"} | ({b"content-encoding", b"content-md5", b"content-digest", b"digest"} if replaced else set())
    size = str(length).encode()
    kept = [(name, value) for name, value in headers if name.lower() not in gone]
    if not any(name.lower() == b"content-length" for name, _ in kept):
        return [*kept, (b"Content-Length", size)]
    return [(name, size if name.lower() == b"content-length" else value) for name, value in kept]


def with_added(headers: Sequence[RawHeader], added: Mapping[str, str]) -> list[RawHeader]:
    """The headers with the gateway's own behind them."""
    return [*headers, *((name.encode("ascii"), value.encode("utf-8")) for name, value in added.items())]

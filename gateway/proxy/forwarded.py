"""`X-Forwarded-*`, `X-Real-IP` and `Forwarded` (RFC 7239): which of them are trusted, and what is sent on.

Any client can write these headers. They are used only if the peer is one of `listen.trusted_proxies`; of any other
request only the peer's address is known. Pure, except `Forwarding.of`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal, NamedTuple

from gateway.config.schema import Listen
from gateway.http1.request_heads import Fields, Request

Network = IPv4Network | IPv6Network
_FOR, _STANDARD = b"x-forwarded-for", b"forwarded"
_PAIR = re.compile(rb'[ \t]*(?:([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^",; \t]*))?[ \t]*([,;]|\Z)')


class Hop(NamedTuple):
    """The hop from a peer to the gateway. peer: its address, "" for none. host: what it asked for; None: nothing."""

    peer: str
    scheme: str
    host: bytes | None


def onward(
    lines: Sequence[bytes], hop: Hop, mode: Literal["drop", "append"], trusted: Sequence[Network]
) -> list[bytes]:
    """Return the header lines to send on.

    What an untrusted peer reports about earlier hops is removed. `append` then adds this hop: to `X-Forwarded-For`, to
    `Forwarded` if the request has one, and as `X-Forwarded-Proto` and `-Host` if it has none.
    """
    trusts = _is_trusted(hop.peer, trusted)
    sent = [line for line in lines if trusts or not _reports_hops(line)]
    return sent if mode == "drop" else _append_hop(sent, hop)


def client_of(lines: Iterable[bytes], peer: str, trusted: Sequence[Network]) -> str:
    """Return the client's address: the last one in the chain of hops that is not a trusted proxy's.

    The chain ends at anything that is not an address. If both kinds of headers are there and differ, a proxy has passed
    one of them on from its client, and it is unknown which. The peer is the client then.
    """
    if not _is_trusted(peer, trusted):
        return peer
    lines = list(lines)
    found = set()
    if values := _values(lines, _FOR):
        found.add(_walk([name for value in values for name in value.split(b",")], peer, trusted))
    if values := _values(lines, _STANDARD):
        found.add(_walk(_named(b",".join(values)), peer, trusted))
    return found.pop() if len(found) == 1 else peer


class Forwarding:
    """Applies `listen.forwarded` and `listen.trusted_proxies`. changes: requests may be changed at all."""

    def __init__(self, settings: Listen) -> None:
        self._mode = settings.forwarded
        self._trusted = tuple(ip_network(network) for network in settings.trusted_proxies)
        self._scheme = "https" if settings.tls.cert_file else "http"
        self.changes = self._mode != "pass"

    def of(self, request: Request, peer: str) -> Request:
        """Return the request that the rest of the gateway uses, also for lookups with the client's credentials."""
        if self._mode == "pass":
            return request
        fields = request.fields
        lines = onward(fields.lines, Hop(peer, self._scheme, fields.host), self._mode, self._trusted)
        head = b"\r\n".join((*lines, b"", b""))
        limits = fields.limits  # the client's lines are within them; those of the gateway are added
        wider = limits._replace(line=limits.line + len(head), head=limits.head + len(head), fields=limits.fields + 3)
        return Request(request.method, request.target, request.minor, Fields(head, 0, request.minor, wider))

    def client(self, lines: Iterable[bytes], peer: str) -> str:
        """See `client_of`."""
        return client_of(lines, peer, self._trusted) if self._trusted else peer


def _reports_hops(line: bytes) -> bool:
    name = line.partition(b":")[0].lower()
    return name in (_STANDARD, b"x-real-ip") or name.startswith(b"x-forwarded-")


def _values(lines: Iterable[bytes], name: bytes) -> list[bytes]:
    pairs = (line.partition(b":") for line in lines)
    return [value for found, _, value in pairs if found.lower() == name]


def _append_hop(lines: list[bytes], hop: Hop) -> list[bytes]:
    names = [line.partition(b":")[0].lower() for line in lines]
    peer = (hop.peer or "unknown").encode("ascii")
    _extend(lines, names, _FOR, peer)
    if b"x-forwarded-proto" not in names:
        lines.append(b"X-Forwarded-Proto: " + hop.scheme.encode("ascii"))
    if b"x-forwarded-host" not in names and hop.host:
        lines.append(b"X-Forwarded-Host: " + hop.host)
    if _STANDARD in names:
        node = b'"[%b]"' % peer if b":" in peer else peer
        host = b';host="%b"' % hop.host if hop.host else b""
        _extend(lines, names, _STANDARD, b"for=%b;proto=%b%b" % (node, hop.scheme.encode("ascii"), host))
    return lines


def _extend(lines: list[bytes], names: list[bytes], name: bytes, item: bytes) -> None:
    """Add `item` to the last line of the header `name`, or a new line if there is none."""
    if name not in names:
        lines.append(b"X-Forwarded-For: " + item)
        return
    at = len(names) - 1 - names[::-1].index(name)
    spelled, _, value = lines[at].partition(b":")
    value = value.strip(b" \t")
    lines[at] = b"%b: %b" % (spelled, value + b", " + item if value else item)


def _walk(chain: Sequence[bytes], peer: str, trusted: Sequence[Network]) -> str:
    client = peer
    for name in reversed(chain):
        address = _address(name.decode("latin-1"))
        if address is None:
            break
        client = str(address)
        if not _is_trusted(client, trusted):
            break
    return client


def _named(value: bytes) -> list[bytes]:
    """Return the `for` of each element of `Forwarded`, empty if it has none; [] if the value is malformed."""
    chain, node = [], b""
    for match in _pairs(value):
        if match is None:
            return []
        name, text, end = match.groups()
        if name is not None and name.lower() == b"for":
            node = re.sub(rb"\\(.)", rb"\1", text[1:-1]) if text.startswith(b'"') else text
        if end != b";":
            chain.append(node)
            node = b""
    return chain


def _pairs(value: bytes) -> Iterator[re.Match[bytes] | None]:
    """Yield the pairs of `Forwarded` in their order; None where it is malformed."""
    at = 0
    while True:
        match = _PAIR.match(value, at)
        yield match
        if match is None or not match[3]:
            return
        at = match.end()


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse the address of a node, which may end with a port; an IPv6 address is in brackets then."""
    text = text.strip(" \t")
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    parsed = _address(address)
    return parsed is not None and any(parsed in network for network in trusted)

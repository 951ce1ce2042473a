"""What a request says of the hops before: `X-Forwarded-*`, `X-Real-IP` and `Forwarded` (RFC 7239), and who is believed.

Anybody can write these headers. They are worth what the peer that sent them is worth, so all rests on
`listen.trusted_proxies`; of anybody else only the peer's own address is known. Pure but for `Forwarding.of`.
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
    """The header lines as they go on.

    What an untrusted peer says of hops before it is left out. `append` then adds this hop: to `X-Forwarded-For`
    always, to `Forwarded` where there is one, as `X-Forwarded-Proto` and `-Host` where there is none.
    """
    kept = [line for line in lines if not _log_requests(line)] if not _is_trusted(hop.peer, trusted) else list(lines)
    return kept if mode == "drop" else _appended(kept, hop)


def client_of(lines: Iterable[bytes], peer: str, trusted: Sequence[Network]) -> str:
    """The address of the client: the last one in the chain of hops that is no trusted proxy's.

    The chain ends at whatever is no address. Where both kinds of header stand and differ, a proxy has let one of them
    through from its client, and nothing tells which: the peer is the client then.
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
    """What `listen.forwarded` and `listen.trusted_proxies` come to. changes: whether requests are touched at all."""

    def __init__(self, settings: Listen) -> None:
        self._mode = settings.forwarded
        self._trusted = tuple(ip_network(network) for network in settings.trusted_proxies)
        self._scheme = "https" if settings.tls.cert_file else "http"
        self.changes = self._mode != "pass"

    def of(self, request: Request, peer: str) -> Request:
        """The request as the rest of the gateway sees it, lookups in its client's name included."""
        if self._mode == "pass":
            return request
        fields = request.fields
        lines = onward(fields.lines, Hop(peer, self._scheme, fields.host), self._mode, self._trusted)
        head = b"\r\n".join((*lines, b"", b""))
        limits = fields.limits  # the client's lines have kept them; the gateway's own come on top
        wider = limits._replace(line=limits.line + len(head), head=limits.head + len(head), fields=limits.fields + 3)
        return Request(request.method, request.target, request.minor, Fields(head, 0, request.minor, wider))

    def client(self, lines: Iterable[bytes], peer: str) -> str:
        """See `client_of`."""
        return client_of(lines, peer, self._trusted) if self._trusted else peer


def _log_requests(line: bytes) -> bool:
    name = line.partition(b":")[0].lower()
    return name in (_STANDARD, b"x-real-ip") or name.startswith(b"x-forwarded-")


def _values(lines: Iterable[bytes], name: bytes) -> list[bytes]:
    pairs = (line.partition(b":") for line in lines)
    return [value for found, _, value in pairs if found.lower() == name]


def _appended(lines: list[bytes], hop: Hop) -> list[bytes]:
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
    """Add `item` to the list that stands in the header `name`, in the last line of it; a new line where none does."""
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
    """The `for` of each element of `Forwarded`, empty where there is none; nothing at all of one that is malformed."""
    chain, node = [], b""
    for match in _pairs(value):
        if match is None:
            return []
        name, said, end = match.groups()
        if name is not None and name.lower() == b"for":
            node = re.sub(rb"\\(.)", rb"\1", said[1:-1]) if said.startswith(b'"') else said
        if end != b";":
            chain.append(node)
            node = b""
    return chain


def _pairs(value: bytes) -> Iterator[re.Match[bytes] | None]:
    """The pairs of `Forwarded` in their order; None where it is malformed."""
    at = 0
    while True:
        match = _PAIR.match(value, at)
        yield match
        if match is None or not match[3]:
            return
        at = match.end()


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """The address of a node, which may have a port behind it; an IPv6 one then stands in brackets."""
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

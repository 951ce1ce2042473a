"""Addresses that the gateway may connect to for media: only those of the public internet.

The table follows IANA's registries of special-purpose addresses (RFC 6890,
https://www.iana.org/assignments/iana-ipv4-special-registry and …/iana-ipv6-special-registry), but is stricter: it also
excludes routable addresses that are assigned to a protocol or represent another address. The standard library's
`is_global` is not used, because its meaning has changed between patch releases.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this host; Linux connects 0.0.0.0 to loopback
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT; 100.100.100.200 is Alibaba's metadata
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # Azure's platform, from inside any of its machines
            "169.254.0.0/16",  # link-local; 169.254.169.254 is most clouds' metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments; 192.0.0.192 is Oracle's metadata
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)

_PUBLIC_6 = IPv6Network("2000::/3")  # all assigned unicast; mapped, NAT64, ULA, link-local and multicast are outside
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, among them Teredo, which holds IPv4 addresses
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which holds IPv4 addresses
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)
_ISATAP = 0x5EFE  # upper half of an interface id whose lower half is an IPv4 address (RFC 5214, 6.1)
_UNIVERSAL = 0x0200_0000


def is_public(written: str) -> bool:
    """Return True if `written` is an IP address of the public internet."""
    try:
        address = ip_address(written)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _PUBLIC_6 and not _holds_ipv4(address) and not any(address in net for net in _NOT_PUBLIC_6)


def _holds_ipv4(address: IPv6Address) -> bool:
    return (int(address) >> 32) & 0xFFFF_FFFF & ~_UNIVERSAL == _ISATAP

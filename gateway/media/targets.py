"""Checks if a URL may be fetched: its host by name, and only addresses of the public internet.

A URL is parsed once, by yarl, and aiohttp connects to the object that was checked. So no second parser can find another
host in it.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from yarl import URL

from gateway.config.schema import MediaByUrl

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


class Unfetchable(Exception):
    """A URL is not fetched, or its response is not used.

    reason: one sentence, without the URL's path and query, which may contain secrets. expected, received: as in
    `gateway.errors.Problem`. help: what to do about it.
    """

    def __init__(self, reason: str, expected: str = "", received: str = "", help: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.expected = expected
        self.received = received
        self.help = help


_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})+")
# A host whose last label is a number is an IPv4 address, in one of its many spellings (WHATWG URL, "ends in a
# number checker").
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_HELP = "The operator allows hosts in the setting media.hosts."


class Targets:
    """The URLs that the settings allow."""

    def __init__(self, settings: MediaByUrl) -> None:
        self._schemes = ("https", "http") if settings.http else ("https",)
        self._hosts = [_host_and_port(pattern) for pattern in settings.hosts]

    def first(self, written: str) -> URL:
        """Parse and check the client's URL.

        Raises:
            Unfetchable: it may not be fetched.
        """
        return self._check(_parse(written, None))

    def next(self, url: URL, location: str) -> URL:
        """Return the target of a redirect from `url`.

        Raises:
            Unfetchable: it may not be fetched.
        """
        return self._check(_parse(location, url))

    def _check(self, url: URL) -> URL:
        if url.scheme not in self._schemes:
            help = "" if url.scheme != "http" else "The operator allows http with the setting media.http."
            raise Unfetchable("media are not fetched from URLs of this scheme", " or ".join(self._schemes), help=help)
        if url.raw_user is not None or url.raw_password is not None:
            raise Unfetchable("the URL holds credentials, which the gateway does not send", "a URL without a user")
        host = url.raw_host or ""
        if not _NAME.fullmatch(host) or _NUMBER.fullmatch(host):
            raise Unfetchable("the URL's host is not a full domain name", "a name such as media.example.com", host)
        default = 443 if url.scheme == "https" else 80
        if not any(fnmatchcase(host, glob) and url.port == (port or default) for glob, port in self._hosts):
            shown = host if url.port == default else f"{host}:{url.port}"
            raise Unfetchable("the URL's host is not one that media may be fetched from", received=shown, help=_HELP)
        return url


def _parse(written: str, base: URL | None) -> URL:
    try:
        url = URL(written)
        return (base.join(url) if base is not None else url).with_fragment(None)
    except ValueError:
        raise Unfetchable("the URL can't be read", "an absolute URL") from None


def _host_and_port(pattern: str) -> tuple[str, int | None]:
    host, _, port = pattern.partition(":")
    return host, int(port) if port else None

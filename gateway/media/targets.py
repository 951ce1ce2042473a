"""Checks if a URL may be fetched; `gateway.media.addresses` checks the addresses of its host.

A URL is parsed once, by yarl, and aiohttp connects to the object that was checked. So no second parser can find another
host in it.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from yarl import URL

from gateway.config.schema import MediaByUrl


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

"""Fetches media for a request, from allowed hosts at public addresses and within limits.

A URL is parsed once, by yarl, and aiohttp connects to the object that was checked, so no second parser can find another
host in it. Every hop, including redirects, opens a new connection, for which the host is resolved once. The addresses
that are checked are those connected to, so DNS rebinding has no effect. A request has only the URL: no credentials,
cookies or referrer, and no proxy from the environment.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import aiohttp
import pybase64
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway.config.schema import MediaByUrl
from gateway.errors import Problem, UndeliverableContent
from gateway.ports import MediaContent
from gateway.unified.formats import FORMATS, MIME_ALIASES, begins_as, normalise
from gateway.unified.model import Media, MediaKind, Url

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
_HOSTS_HELP = "The operator allows hosts in the setting media.hosts."


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
            raise Unfetchable(
                "the URL's host is not one that media may be fetched from", received=shown, help=_HOSTS_HELP
            )
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


_HEAD = 1024
_GENERIC = ("", "application/octet-stream", "binary/octet-stream")
"""Types that say nothing, as object stores give them; they do where the bytes tell the format."""

# Format → content types other than that of `FORMATS` that servers send for it.
_ALSO: dict[str, tuple[str, ...]] = {
    "aac": ("audio/aacp", "audio/x-aac"),
    "flac": ("application/x-flac",),
    "m4a": ("video/mp4",),
    "mka": ("audio/webm",),
    "mov": ("video/mp4",),
    "ogg": ("application/ogg", "video/ogg"),
    "opus": ("audio/ogg", "application/ogg"),
    "webm": ("video/webm", "audio/webm"),
    "x-aac": ("audio/aac", "audio/aacp"),
}
_TEXT = frozenset({"csv", "html", "txt", "md"})


def check(kind: MediaKind, fmt: str, content_type: str, data: bytes | bytearray) -> None:
    """Check that the response has the block's format.

    content_type: the response's header, "" for none. Raw audio (`pcm`) has no signature, so only its type is checked.

    Raises:
        Unfetchable: the type or the bytes are those of another format, or there are no bytes.
    """
    if not data:
        raise Unfetchable("the response is empty", fmt)
    media_type = content_type.partition(";")[0].strip().lower()
    if fmt in _TEXT:
        _check_text(fmt, media_type, data)
        return
    fits = begins_as(kind, fmt, bytes(data[:_HEAD]))
    wanted = FORMATS[kind][fmt]
    if MIME_ALIASES.get(media_type, media_type) not in (wanted, *_ALSO.get(fmt, ())) and (
        fits is None or media_type not in _GENERIC
    ):
        raise Unfetchable(
            "the response's content type does not match the block's format", wanted, media_type[:80] or "none"
        )
    if fits is False:
        raise Unfetchable("the response's content does not match the block's format", fmt, bytes(data[:8]).hex(" "))


def _check_text(fmt: str, media_type: str, data: bytes | bytearray) -> None:
    wanted = "text/*"
    if not MIME_ALIASES.get(media_type, media_type).startswith("text/"):
        raise Unfetchable(
            "the response's content type does not match the block's format", wanted, media_type[:80] or "none"
        )
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unfetchable(
            f"the response's content is not UTF-8 text: byte {error.start} is invalid", "UTF-8 text", fmt
        ) from None


def find_format(kind: MediaKind, content_type: str, data: bytes | bytearray) -> str:
    """Return the format that the response's content type names, or else its first bytes.

    Raises:
        Unfetchable: neither is that of a known format of this kind.
    """
    head = bytes(data[:_HEAD])
    fmt = normalise(kind, content_type) or next((fmt for fmt in FORMATS[kind] if begins_as(kind, fmt, head)), None)
    if fmt is None:
        media_type = content_type.partition(";")[0].strip()
        reason = f"neither the response's content type nor its content is that of a known format of {kind}"
        raise Unfetchable(reason, f"one of {', '.join(FORMATS[kind])}", media_type[:80] or "none")
    return fmt


_HEADERS = {"User-Agent": "mlc-gateway", "Accept": "*/*", "Accept-Encoding": "identity"}
_REDIRECTS = (301, 302, 303, 307, 308)
_HELP = "Send it as base64."


class CheckedResolver(AbstractResolver):
    """Resolves names, and refuses a name with an address that is not public."""

    def __init__(self, inner: AbstractResolver, allowed: Callable[[str], bool]) -> None:
        self._inner = inner
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of `host`.

        Raises:
            Unfetchable: one of them is not public. OSError: there are none.
        """
        found = await self._inner.resolve(host, port, family)
        if not all(self._allowed(result["host"]) for result in found):
            # The error does not show the address, as the name may be internal to the operator's network.
            raise Unfetchable("the URL's host has an address that is not a public one", received=host)
        return found

    async def close(self) -> None:
        """Close the inner resolver."""
        await self._inner.close()


class _Budget:
    """The bytes that the media of one request may still take."""

    def __init__(self, total: int) -> None:
        self._total = self._left = total

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise Unfetchable("the media of the request are too large together", f"at most {self._total} bytes")


class Fetcher:
    """Fetches media that a provider accepts only inline; see `gateway.ports.MediaFetcher`.

    resolver: makes a resolver of names. allowed: returns True for an address that may be connected to. tls: the context
    that checks servers' certificates; True for the system's authorities.
    """

    def __init__(
        self,
        settings: MediaByUrl,
        resolver: Callable[[], AbstractResolver] = aiohttp.ThreadedResolver,
        allowed: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | bool = True,
    ) -> None:
        self._limits = settings
        self._targets = Targets(settings)
        self._resolver = resolver
        self._allowed = allowed
        self._tls = tls
        self._slots = asyncio.Semaphore(settings.concurrency)

    async def __call__(self, blocks: Sequence[Media]) -> list[MediaContent]:
        """Return the content of each block. Every block has a `Url` as source.

        Raises:
            UndeliverableContent: some can't be fetched or have the wrong content; each is a problem.
        """
        most = self._limits.max_count
        if len(blocks) > most:
            fault = Unfetchable("too many media would have to be fetched", f"at most {most}", str(len(blocks)))
            raise UndeliverableContent.of([_problem(block, fault) for block in blocks[most:]])
        budget = _Budget(self._limits.max_total_bytes)
        deadline = asyncio.get_running_loop().time() + self._limits.total_seconds
        async with self._session() as session, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._fetch(session, block, budget, deadline)) for block in blocks]
        results = [task.result() for task in tasks]
        if problems := [result for result in results if isinstance(result, Problem)]:
            raise UndeliverableContent.of(problems)
        return [result for result in results if isinstance(result, MediaContent)]

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=CheckedResolver(self._resolver(), self._allowed),
            use_dns_cache=False,
            force_close=True,
            limit=0,
            ssl=self._tls,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            trust_env=False,
        )

    async def _fetch(
        self, session: aiohttp.ClientSession, block: Media, budget: _Budget, deadline: float
    ) -> MediaContent | Problem:
        total = asyncio.timeout_at(deadline)
        try:
            async with total, self._slots, asyncio.timeout(self._limits.seconds):
                assert isinstance(block.source, Url)
                content_type, data = await self._load(session, block.source.url, budget)
            fmt = block.format or find_format(block.kind, content_type, data)
            check(block.kind, fmt, content_type, data)
        except Unfetchable as fault:
            return _problem(block, fault)
        except TimeoutError:
            within = f"within {self._limits.seconds:g} seconds"
            if total.expired():
                within = f"all media of the request within {self._limits.total_seconds:g} seconds"
            return _problem(block, Unfetchable("it took too long", within))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _problem(block, Unfetchable(_describe(error)))
        return MediaContent(fmt, pybase64.b64encode(data))

    async def _load(self, session: aiohttp.ClientSession, written: str, budget: _Budget) -> tuple[str, bytearray]:
        """Return content type and bytes of the resource at a URL."""
        url: URL = self._targets.first(written)
        for _ in range(self._limits.redirects + 1):
            async with session.get(url, allow_redirects=False) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    return response.headers.get("Content-Type", ""), await self._body(response, budget)
            url = self._targets.next(url, location)
        raise Unfetchable("its host redirects too often", f"at most {self._limits.redirects} redirects")

    async def _body(self, response: aiohttp.ClientResponse, budget: _Budget) -> bytearray:
        if response.status != 200:
            raise Unfetchable(f"its host answered with status {response.status}", "200", str(response.status))
        coding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if coding != "identity":
            raise Unfetchable(
                "its host sent it compressed, although the gateway asked for no compression",
                "no content coding",
                coding[:40],
            )
        most = self._limits.max_bytes
        data = bytearray()
        if (response.content_length or 0) > most:
            raise Unfetchable("it is too large", f"at most {most} bytes", f"{response.content_length} bytes")
        async for chunk in response.content.iter_any():
            budget.take(len(chunk))
            data += chunk
            if len(data) > most:
                raise Unfetchable("it is too large", f"at most {most} bytes", "more")
        return data


def _describe(error: Exception) -> str:
    """Describe a network error without the addresses and paths that the library's message contains."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its host's name can't be resolved"
        case aiohttp.ClientSSLError():
            return "no secure connection to its host: its certificate or its TLS is not accepted"
        case aiohttp.ClientConnectorError():
            return "no connection to its host"
    return "its host's answer breaks off or is not HTTP"


def _problem(block: Media, fault: Unfetchable) -> Problem:
    return Problem(
        block.at,
        f"The {block.kind} can't be fetched: {fault.reason}",
        fault.expected,
        fault.received,
        code="MEDIA_NOT_FETCHED",
        help=f"{_HELP} {fault.help}".strip(),
    )

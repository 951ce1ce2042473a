"""A media server on loopback: its names, its certificate, and a fetcher that may connect to it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import trustme
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.config.schema import MediaByUrl
from gateway.media.fetch import Fetcher
from gateway.unified.model import Media, MediaKind, Url

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
HOST = "media.test"
LOOPBACK = frozenset({"127.0.0.1"})

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Names(AbstractResolver):
    """A resolver for tests: each query returns the next of a name's answers, and then the last one forever."""

    answers: Mapping[str, Sequence[Sequence[str]]]
    asked: list[str] = field(default_factory=list)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.asked.append(host)
        answers = self.answers.get(host)
        if answers is None:
            raise OSError(None, "no such name")
        addresses = answers[min(self.asked.count(host), len(answers)) - 1]
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [
            ResolveResult(hostname=host, host=one, port=port, family=families[":" in one], proto=0, flags=0)
            for one in addresses
        ]

    async def close(self) -> None:
        pass


@cache
def _certificate(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert(HOST, f"*.{HOST}", f"*.cdn.{HOST}")


@dataclass
class MediaServer:
    """Serves `pages` (path → answer) with or without TLS; records requests, connections and server names."""

    authority: trustme.CA
    host: str = "127.0.0.1"
    port: int = 0
    secure: bool = True
    pages: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    server_names: list[str | None] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def __aenter__(self) -> MediaServer:
        self._runner = web.ServerRunner(web.Server(self._serve), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, ssl_context=self._tls() if self.secure else None)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._runner.cleanup()

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        _certificate(self.authority).configure_cert(context)
        context.sni_callback = lambda _socket, name, _context: self.server_names.append(name)
        return context

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.headers)))
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            return await self.pages[request.path](request)  # type: ignore[arg-type]
        finally:
            self.running -= 1

    def url(self, path: str, host: str = HOST) -> str:
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{path}"

    def serve(self, path: str, body: bytes = PNG, status: int = 200, **headers: str) -> str:
        """Serve `body` at `path`, by default as a png, and return its URL."""
        named = {"Content-Type": "image/png"} | {name.replace("_", "-"): value for name, value in headers.items()}

        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=body, status=status, headers={n: v for n, v in named.items() if v})

        self.pages[path] = answer
        return self.url(path)

    def redirect(self, path: str, location: str, status: int = 302, **headers: str) -> str:
        return self.serve(path, b"", status, Location=location, **headers)

    def fetcher(
        self,
        names: Names | None = None,
        allowed: Callable[[str], bool] = LOOPBACK.__contains__,
        **settings: Any,
    ) -> Fetcher:
        """Return a fetcher that trusts this server's authority. allowed: returns True for allowed addresses."""
        names = names or Names({HOST: [["127.0.0.1"]], f"cdn.{HOST}": [["127.0.0.1"]]})
        given = {"fetch": True, "hosts": [f"{HOST}:{self.port}", f"*.{HOST}:{self.port}"], **settings}
        return Fetcher(MediaByUrl(**given), lambda: names, allowed, trust(self.authority))


@cache
def trust(authority: trustme.CA) -> ssl.SSLContext:
    """Return a client's context that trusts `authority`; reading the system's own authorities takes 25 ms."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def medium(url: str, fmt: str = "png", kind: MediaKind = "image", at: str = "input[0]") -> Media:
    return Media(kind, fmt, Url(url), at)


async def stalled(request: web.Request) -> web.StreamResponse:
    """Send a body that never ends."""
    response = web.StreamResponse(headers={"Content-Type": "image/png"})
    await response.prepare(request)
    await response.write(PNG)
    await asyncio.Event().wait()
    return response

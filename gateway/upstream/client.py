"""The connection to the cluster: sends a request exactly as given and hands back the answer as it comes.

Built on aiohttp's connector and response parser, without its ClientSession: that one merges header names of
different case, adds headers of its own, keeps cookies and repeats requests by itself.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage, StreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from multidict import CIMultiDict
from yarl import URL

from gateway.config.schema import Limits
from gateway.config.schema import Upstream as UpstreamSettings
from gateway.errors import GatewayError, UpstreamTimeout, UpstreamUnavailable
from gateway.execute.ports import HeaderPairs, UpstreamResponse

RawHeader = tuple[bytes, bytes]
Buffers = Sequence[bytes | memoryview]
Body = Buffers | AsyncIterator[bytes]
Interim = Callable[[bytes], None]

_SLICE = 256 * 1024
"""Bytes handed to the transport at a time, so that a big body waits for the cluster rather than in memory."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that may be sent again when a kept connection turns out to be closed (RFC 9110, 9.2.2)."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait: for the answer's head once the request is out, and between pieces of its body; 0 for ever."""

    header: float
    idle: float


class Answer:
    """An answer whose head has come; its body is still on the way. `close` must be called in the end.

    headers: as received, hop-by-hop included. chunked: the body came in chunks, so its length is not said.
    """

    def __init__(
        self,
        connection: Connection,
        message: RawResponseMessage,
        payload: StreamReader,
        upload: asyncio.Task[None] | None,
    ) -> None:
        self._connection = connection
        self._payload = payload
        self._upload = upload
        self._closed = None if payload.is_eof() or connection.protocol is None else connection.protocol.closed
        if self._closed is not None:
            self._closed.add_done_callback(self._lost)
        self.status = message.code
        self.reason = message.reason
        self.headers: Sequence[RawHeader] = message.raw_headers

    def _lost(self, closed: asyncio.Future[None]) -> None:
        # A malformed chunk ends the connection, but aiohttp leaves the body waiting for more.
        cause = closed.exception()
        if not self._payload.is_eof() and self._payload.exception() is None:
            self._payload.set_exception(aiohttp.ClientPayloadError(f"the connection is gone: {cause}"))

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece as it comes, transfer-coding undone and nothing else.

        Raises:
            UpstreamUnavailable, UpstreamTimeout: it broke off or stalled.
        """
        try:
            while chunk := await self._payload.readany():
                yield chunk
        except (aiohttp.ClientError, HttpProcessingError, OSError, TimeoutError) as exc:
            raise _failure(exc, "its answer broke off") from exc

    def close(self) -> None:
        """Give the connection back if the exchange is complete, else cut it."""
        complete = self._payload.is_eof() and (self._upload is None or self._upload.done())
        if self._upload is not None:
            self._upload.cancel()
        if self._closed is not None:
            self._closed.remove_done_callback(self._lost)
        if complete:
            self._connection.release()
        else:
            self._connection.close()


class Upstream:
    """The cluster. `start` before use, `close` at the end."""

    def __init__(self, settings: UpstreamSettings, limits: Limits) -> None:
        self._settings = settings
        self._limits = limits
        self._url = URL(settings.url)
        self.authority = self._url.raw_authority.encode("ascii")
        self._patience = Patience(settings.timeouts.header, settings.timeouts.idle)

    async def start(self) -> None:
        """Make the connection pool; reads the file of trusted authorities."""
        tls: ssl.SSLContext | bool = self._settings.tls.verify
        if tls and self._settings.tls.ca_file:
            tls = await asyncio.to_thread(ssl.create_default_context, cafile=self._settings.tls.ca_file)
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._connector = aiohttp.TCPConnector(
            limit=self._settings.connections, keepalive_timeout=self._settings.keepalive, loop=loop
        )
        # The connector wants a request to read host, port and TLS from; the requests sent are our own bytes.
        self._where = ClientRequest("GET", self._url, loop=loop, ssl=tls)
        connect = self._settings.timeouts.connect or None
        self._connect_timeout = aiohttp.ClientTimeout(connect=connect, sock_connect=connect)

    async def close(self) -> None:
        """Cut all connections."""
        await self._connector.close()

    async def send(
        self,
        method: str,
        target: bytes,
        headers: Iterable[RawHeader],
        body: Body = (),
        *,
        chunked: bool = False,
        patience: Patience | None = None,
        interim: Interim | None = None,
    ) -> Answer:
        """Send a request and wait for the head of its answer.

        target, headers: written as they are, nothing added (`headers` must frame the body). chunked: write the
        body in chunks. interim: gets the head of each 1xx answer.

        Raises:
            UpstreamUnavailable: no connection, or no valid answer on it.
            UpstreamTimeout: no connection or no answer in time.
            GatewayError: whatever the body's iterator raises, when the client's body is bad.
        """
        head = b"".join(
            (method.encode("ascii"), b" ", target, b" HTTP/1.1\r\n", *_lines(headers), b"\r\n"),
        )
        patience = patience or self._patience
        again = method in _SAFE and isinstance(body, Sequence) and not body
        while True:
            try:
                return await self._exchange(method, head, body, chunked, patience, interim)
            except (aiohttp.ServerDisconnectedError, ConnectionResetError) as exc:
                if not again:
                    raise _failure(exc, "it closed the connection without an answer") from exc
                again = False
            except (aiohttp.ClientError, HttpProcessingError, OSError, TimeoutError) as exc:
                raise _failure(exc, "it gave no valid answer") from exc

    async def _exchange(
        self, method: str, head: bytes, body: Body, chunked: bool, patience: Patience, interim: Interim | None
    ) -> Answer:
        connection = await self._connector.connect(self._where, traces=[], timeout=self._connect_timeout)
        upload: asyncio.Task[None] | None = None
        try:
            protocol = connection.protocol
            assert protocol is not None
            protocol.set_response_params(
                skip_payload=method == "HEAD",
                read_until_eof=True,
                auto_decompress=False,
                max_line_size=self._limits.header_line,
                max_field_size=self._limits.header_line,
                max_headers=self._limits.headers,
            )
            writer = StreamWriter(protocol, self._loop)
            await writer.write(head, drain=False)
            if chunked:
                writer.enable_chunking()
            if body or chunked:
                upload = asyncio.create_task(_write(writer, body))
            message, payload = await self._answer(connection, upload, patience, interim)
            if not payload.is_eof():
                protocol.read_timeout = patience.idle or None
                protocol.start_timeout()
            return Answer(connection, message, payload, upload)
        except BaseException as exc:
            if upload is not None:
                upload.cancel()
            connection.close()
            fault = _upload_fault(upload)
            if fault is not None and isinstance(exc, Exception):
                raise fault from exc
            raise

    async def _answer(
        self, connection: Connection, upload: asyncio.Task[None] | None, patience: Patience, interim: Interim | None
    ) -> tuple[RawResponseMessage, StreamReader]:
        protocol = connection.protocol
        assert protocol is not None

        async with asyncio.timeout(None) as deadline:
            waiting = True

            def uploaded(_: object = None) -> None:
                if not waiting:
                    return
                if _upload_fault(upload) is not None:
                    protocol.close()  # wakes the read below; `_exchange` then raises the fault
                elif patience.header:
                    deadline.reschedule(self._loop.time() + patience.header)

            if upload is None:
                uploaded()
            else:
                upload.add_done_callback(uploaded)
            try:
                while True:
                    message, payload = await protocol.read()
                    if message.code >= 200:
                        return message, payload
                    if message.code == 101:
                        raise aiohttp.ClientPayloadError("it switched protocols unasked")
                    if interim is not None:
                        interim(status_line(message.code, message.reason) + b"".join(_lines(message.raw_headers)))
            finally:
                waiting = False

    async def exchange(self, method: str, target: str, headers: HeaderPairs, body: Buffers = ()) -> UpstreamResponse:
        """One short request of the gateway's own; see `gateway.execute.ports.ClusterReader`."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        raw = [(name.encode("latin-1"), value.encode("utf-8", "surrogateescape")) for name, value in pairs]
        raw = [(b"Host", self.authority), *(pair for pair in raw if pair[0].lower() not in _OWN)]
        if body or method not in _SAFE:
            raw.append((b"Content-Length", str(sum(map(len, body))).encode()))
        seconds = self._settings.timeouts.lookup
        try:
            async with asyncio.timeout(seconds or None):
                answer = await self.send(method, target.encode("utf-8", "surrogateescape"), raw, body)
                try:
                    content = b"".join([chunk async for chunk in answer.chunks()])
                finally:
                    answer.close()
        except TimeoutError as exc:
            raise UpstreamTimeout(f"The cluster did not answer {method} {target} within {seconds:g} s.") from exc
        decoded = ((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in answer.headers)
        return UpstreamResponse(answer.status, CIMultiDict(decoded), content)

    async def get_json(self, path: str, headers: HeaderPairs) -> tuple[int, dict[str, Any] | None]:
        """Status and JSON object of a GET; see `gateway.execute.ports.ClusterReader`."""
        response = await self.exchange("GET", path, headers)
        try:
            document = msgspec.json.decode(response.body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            document = None
        return response.status, document if isinstance(document, dict) else None


_OWN = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect", b"accept-encoding"})
"""Headers of a request of the gateway's own that follow from it, never from the caller."""


def status_line(status: int, reason: str, version: bytes = b"1.1") -> bytes:
    """The first line of an answer, its line end included."""
    return b"HTTP/%b %d %b\r\n" % (version, status, reason.encode("utf-8", "surrogateescape"))


def _lines(headers: Iterable[RawHeader]) -> Iterable[bytes]:
    return (b"%b: %b\r\n" % header for header in headers)


async def _write(writer: StreamWriter, body: Body) -> None:
    """Send the body; when the cluster stops reading, stop too: its answer or its end says why."""
    try:
        if isinstance(body, AsyncIterator):
            async for chunk in body:
                await writer.write(chunk)
        else:
            for piece in body:
                view = memoryview(piece).cast("B")
                for start in range(0, len(view), _SLICE):
                    await writer.write(view[start : start + _SLICE])
        await writer.write_eof()
    except OSError:
        return


def _upload_fault(upload: asyncio.Task[None] | None) -> GatewayError | None:
    if upload is None or not upload.done() or upload.cancelled():
        return None
    fault = upload.exception()
    return fault if isinstance(fault, GatewayError) else None


def _failure(exc: BaseException, what: str) -> GatewayError:
    """The gateway's error for a fault of the connection. The cause's own words may name hosts: they stay out."""
    if isinstance(exc, TimeoutError):
        return UpstreamTimeout("The cluster did not answer in time.")
    if isinstance(exc, aiohttp.ClientConnectorError):
        return UpstreamUnavailable("The cluster can't be reached.")
    return UpstreamUnavailable(f"The cluster can't be used: {what}.")

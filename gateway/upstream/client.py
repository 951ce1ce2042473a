"""The client of the cluster: sends requests and reports responses unchanged.

It uses connections of its own (`gateway.upstream.connection`) rather than an HTTP client library, because a library
merges headers, adds some, stores cookies and repeats requests on its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import structlog
from multidict import CIMultiDict

from gateway.config.schema import Health, Limits
from gateway.config.schema import Upstream as UpstreamSettings
from gateway.errors import AnswerTooLarge, GatewayError, UpstreamTimeout, UpstreamUnavailable
from gateway.http1.fields import RawHeader, split_field
from gateway.http1.response_heads import ResponseHead, ResponseReader
from gateway.http1.rules import HeadLimits
from gateway.observe.connect_errors import describe_connect_error
from gateway.observe.logs import Logger
from gateway.observe.metrics import NodeState
from gateway.offload import run_here_if
from gateway.ports import HeaderPairs, UpstreamResponse
from gateway.unified.jsontext import count_values
from gateway.unified.limits import SMALL_TEXT
from gateway.upstream.auth.authenticator import Authenticator, authenticator
from gateway.upstream.connection import Connection
from gateway.upstream.nodes import Node, NodeSet, may_retry
from gateway.upstream.outbound import Buffers, DeadlineTimer, OutboundRequest, ResponseTimeouts, UpstreamConnection
from gateway.upstream.pool import Pool
from gateway.upstream.tls import TlsSource, to_cluster

_LARGE = 64 * 1024


def encode_fields(fields: list[RawHeader]) -> bytes:
    """Encode header fields as lines, with the empty line."""
    return b"".join((*(b"%b: %b\r\n" % field for field in fields), b"\r\n"))


class WholeResponse:
    """Owns one request and collects its response. response: the head, and the data of the body.

    most: bytes of the body, decoded. A longer one is not collected: `response` raises AnswerTooLarge.
    """

    __slots__ = ("_body", "_fields", "_head", "_left", "_most", "_pieces", "outbound", "response")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        fields: list[RawHeader],
        body: Buffers,
        timeouts: ResponseTimeouts,
        most: int,
    ) -> None:
        self.outbound = OutboundRequest(self, method, target, timeouts)
        self.outbound.decode = True
        self.response: asyncio.Future[tuple[ResponseHead, bytes]] = asyncio.get_running_loop().create_future()
        self._fields = fields
        self._body = body
        self._head: ResponseHead
        self._pieces: list[bytes] = []
        self._most = self._left = most

    def parts(self, authority: bytes) -> tuple[bytes, Buffers]:
        """See `RequestOwner`."""
        return encode_fields([(b"Host", authority), *self._fields]), self._body

    def repeatable(self) -> bool:
        """See `RequestOwner`."""
        return not self._body and may_retry(self.outbound.method.decode("ascii"), True, False, self.outbound.target)

    def on_connection(self) -> None:
        """See `RequestOwner`."""

    def on_interim(self, head: ResponseHead) -> None:
        """See `RequestOwner`."""

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        self._head = head
        self.on_body(piece, complete)

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if self.response.done():
            return
        self._left -= len(piece)
        if self._left < 0:
            self._pieces.clear()
            path = self.outbound.target.partition(b"?")[0].decode("utf-8", "replace")
            self.response.set_exception(
                AnswerTooLarge(f"The cluster's answer for {path} is longer than {self._most} bytes.")
            )
            return
        self._pieces.append(piece)
        if complete:
            self.response.set_result((self._head, b"".join(self._pieces)))
        elif len(piece) >= _LARGE:
            self._take_turns()

    def _take_turns(self) -> None:
        """Read on in the loop's next turn: it may read a connection for as long as the cluster sends faster."""
        connection = self.outbound.connection
        if connection is not None:
            connection.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on, connection)

    def _read_on(self, connection: UpstreamConnection) -> None:
        if self.outbound.connection is connection:
            connection.resume_reading()

    def on_end(self) -> bool:
        """See `RequestOwner`."""
        return False

    def on_failure(self, error: GatewayError) -> None:
        """See `RequestOwner`."""
        if not self.response.done():
            self.response.set_exception(error)

    def on_writable(self, writable: bool) -> None:
        """See `RequestOwner`."""

    def break_off(self) -> None:
        """See `RequestOwner`."""
        fault = sys.exc_info()[1]
        if not self.response.done():
            self.response.set_exception(fault if isinstance(fault, Exception) else RuntimeError("broken off"))


class Prober:
    """Probes nodes. tls: returns the TLS source, which is made after this object; None for plain HTTP."""

    def __init__(self, health: Health, tls: Callable[[], TlsSource | None]) -> None:
        self._path = health.path.encode("ascii")
        self._timeout = health.timeout
        self._tls = tls

    async def __call__(self, node: Node) -> bool:
        """Return True if the node responds in time with a status below 500.

        A secured cluster responds with 401, one without a cluster manager with 503.
        """
        try:
            async with asyncio.timeout(self._timeout):
                status = await self._status(node)
        except TimeoutError:
            node.fault = f"no answer within {self._timeout:g} s"
            return False
        except OSError as exc:
            node.fault = describe_connect_error(exc)
            return False
        except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            node.fault = "invalid answer"
            return False
        node.fault = f"status {status}"
        return 200 <= status < 500

    async def _status(self, node: Node) -> int:
        source = self._tls() if node.tls else None
        tls = source.connect_options(node.host) if source else {}
        reader, writer = await asyncio.open_connection(node.host, node.port, **tls)
        try:
            writer.write(
                b"GET %b HTTP/1.1\r\nHost: %b\r\nUser-Agent: mlc-gateway\r\nConnection: close\r\n\r\n"
                % (self._path, node.authority)
            )
            version, status, *_ = (await reader.readuntil(b"\r\n")).split()
            return int(status) if version.startswith(b"HTTP/1.") else 0
        finally:
            writer.transport.abort()


_STUCK_AFTER = 30.0
"""Seconds in which no waiting request got a connection, after which a pool counts as stuck."""
_WATCH_INTERVAL = 5.0


def head_limits(limits: Limits) -> HeadLimits:
    """Return the limits of a message's head."""
    return HeadLimits(limits.header_line, limits.head, limits.headers)


class Upstream:
    """The client of the cluster. Call `start` before use, `close` at the end.

    timeouts, execute_timeouts: how long to wait for a response, and for an agent's. auth: replaces the client's
    credentials with the gateway's; None if the gateway has none. own_host: it gets its own `Host`, not the client's.
    section: of the settings that the cluster is.
    """

    def __init__(
        self, settings: UpstreamSettings, limits: Limits, log: Logger | None = None, section: str = "upstream"
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._see_log = f"The gateway's log has the reason. Check {section}.url, and that the cluster runs."
        self._busy = f"Send fewer requests at a time, or raise the gateway's setting {section}.connections."
        self._heads = ResponseReader(head_limits(limits))
        self._log: Logger = log or structlog.get_logger()
        self._connections: set[Connection] = set()
        self._pools: dict[Node, Pool] = {}
        timeouts = settings.timeouts
        self.timeouts = ResponseTimeouts(timeouts.header, timeouts.idle)
        self.execute_timeouts = ResponseTimeouts(timeouts.execute, timeouts.execute)
        self.own_host = settings.host_header == "upstream"
        self.auth = authenticator(settings.auth, self._log)
        self.tls: TlsSource | None = None
        self._prober = Prober(settings.health, lambda: self.tls)
        self._watching: asyncio.Task[None] | None = None
        self.nodes = NodeSet(settings, self._prober, self._log)
        waits = (timeouts.header, timeouts.idle, timeouts.execute, settings.keepalive)
        self._timer = DeadlineTimer(self._connections, waits)

    async def start(self) -> None:
        """Make the connection pools, and read the TLS files.

        Raises:
            ConfigError: a TLS file cannot be used.
        """
        if any(node.tls for node in self.nodes.nodes):
            self.tls = await asyncio.to_thread(to_cluster, self._settings.tls, self._log)
        for node in self.nodes.nodes:
            self._pools[node] = Pool(
                node,
                self.tls if node.tls else None,
                self._settings.connections,
                self._settings.keepalive,
                self._settings.timeouts.connect,
                self._heads,
                self._connections,
                self._retry,
            )
        await self.nodes.start()
        self._timer.start()
        self._watching = asyncio.create_task(self._watch_pools(), name="pools")

    async def close(self) -> None:
        """Cut all connections."""
        self._timer.stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        async with contextlib.AsyncExitStack() as close:  # the last first
            close.push_async_callback(asyncio.sleep, 0)
            for pool in self._pools.values():
                close.push_async_callback(pool.close)
            if self.auth is not None:
                close.push_async_callback(self.auth.close)
            close.push_async_callback(self.nodes.close)

    def node_states(self) -> Iterator[NodeState]:
        """Yield all nodes with their connections, for the metrics."""
        for state in self.nodes.states():
            pools = [pool.counts() for node, pool in self._pools.items() if node.address == state.address]
            idle, busy, connecting, waiting = map(sum, zip(*pools, strict=True)) if pools else (0, 0, 0, 0)
            yield state._replace(idle=idle, busy=busy, connecting=connecting, waiting=waiting)

    def send(self, outbound: OutboundRequest) -> None:
        """Send a request: at once on an idle connection, else when a connection and the credentials are ready."""
        node = self.nodes.pick()
        pool = self._pools[node]
        connection = None
        try:
            if self.auth is None and (outbound.complete or pool.try_upload(outbound)):
                connection = pool.take()
            if connection is not None:
                lines, pieces = outbound.owner.parts(node.authority)
                connection.start(outbound, lines, pieces)
                return
        except Exception:
            pool.end_upload(outbound)
            if connection is not None:
                connection.transport.abort()  # which frees its slot
            raise
        pool.end_upload(outbound)
        self._start(outbound, pool)

    def _retry(self, outbound: OutboundRequest, node: Node, stale: bool) -> bool:
        """Resend a request that was lost on `node`. Return False if that cannot help.

        stale: an idle connection turned out to be closed, which is no fault of the node. Otherwise the request goes to
        another node, once.
        """
        if stale:
            if outbound.resent:
                return False
            outbound.resent = True
        else:
            if outbound.moved or len(self.nodes.nodes) == 1:
                return False
            outbound.moved = True
        self._start(outbound, self._pools[self.nodes.pick(() if stale else (node,))])
        return True

    def _start(self, outbound: OutboundRequest, pool: Pool) -> None:
        outbound.connecting = asyncio.get_running_loop().create_task(self._begin(outbound, pool))

    async def _watch_pools(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_INTERVAL)
            for pool in self._pools.values():
                await self.rebuild_stuck(pool, time.monotonic())

    async def rebuild_stuck(self, pool: Pool, now: float) -> None:
        """Rebuild `pool` if its node is healthy and no request got a connection for `_STUCK_AFTER` seconds.

        A pool whose connections are all in use is not stuck. This should never happen; if it does, requests must not
        fail for ever.
        """
        if now - pool.waiting_since < _STUCK_AFTER or pool.saturated or not await self._prober(pool.node):
            return
        used = pool.used_slots
        pool.rebuild()
        pool.node.tally.rebuilds += 1
        self._log.error("connection pool rebuilt", node=pool.node.address, used_slots=used)

    async def _begin(self, outbound: OutboundRequest, pool: Pool) -> None:
        try:
            if self.auth is not None:
                await self.auth.ready()  # before taking a connection, which could close while it waits
            connection = await self._acquire(outbound, pool)
            lines, pieces = await self._prepare(outbound, connection)
            while connection.transport.is_closing():  # it closed while a large body was hashed
                node = connection.pool.node
                connection = await self._acquire(outbound, self._pools[node])
                if connection.pool.node is not node:  # which has another Host, and so another signature
                    lines, pieces = await self._prepare(outbound, connection)
        except GatewayError as exc:
            outbound.connecting = None
            outbound.owner.on_failure(exc)
        except Exception:
            self._log.exception("request not sent", node=pool.node.address)
            outbound.connecting = None
            outbound.owner.on_failure(
                UpstreamUnavailable("The request could not be sent to the cluster.", help=self._see_log)
            )
        else:
            outbound.connecting = None
            owner = outbound.owner
            try:
                if outbound.complete:
                    connection.pool.end_upload(outbound)
                connection.start(outbound, lines, pieces)
            except Exception:  # in a task that nobody awaits
                connection.transport.abort()
                owner.break_off()

    async def _acquire(self, outbound: OutboundRequest, pool: Pool) -> Connection:
        """Return a connection of `pool`, or of another pool if its node cannot be reached: nothing is sent yet."""
        tried: list[Node] = []
        while True:
            try:
                async with asyncio.timeout(self._settings.timeouts.idle or None):
                    await pool.admit_upload(outbound)
                async with asyncio.timeout(self._settings.timeouts.connect or None):
                    return await pool.acquire(fresh=outbound.resent)
            except TimeoutError as exc:
                cause: OSError = exc
                failure: GatewayError = UpstreamTimeout("The cluster did not answer in time.")
                if busy := pool.is_busy_for(outbound):  # which is no fault of the node
                    failure = UpstreamTimeout(
                        "All connections to the cluster that this request may use are busy.", help=self._busy
                    )
            except OSError as exc:
                busy = False
                cause = exc  # for the log only: clients do not see the cluster's addresses
                failure = UpstreamUnavailable("The cluster can't be reached.", help=self._see_log)
            except BaseException:
                pool.end_upload(outbound)
                raise
            pool.end_upload(outbound)
            if not busy:
                self._log.warning("node unreachable", node=pool.node.address, reason=describe_connect_error(cause))
                pool.node.report(False, "connect")
            tried.append(pool.node)
            if len(tried) == len(self.nodes.nodes):
                raise failure from cause
            pool = self._pools[self.nodes.pick(tried)]

    async def _prepare(self, outbound: OutboundRequest, connection: Connection) -> tuple[bytes, Buffers]:
        """Return what to send on `connection`, which is given back if that fails."""
        try:
            lines, pieces = outbound.owner.parts(connection.pool.node.authority)
            if self.auth is not None:
                lines = await self._sign(self.auth, outbound, lines, pieces)
        except BaseException:
            connection.pool.end_upload(outbound)
            connection.pool.give_back(connection)
            raise
        return lines, pieces

    async def _sign(self, auth: Authenticator, outbound: OutboundRequest, lines: bytes, pieces: Buffers) -> bytes:
        fields = [split_field(line) for line in lines[:-4].split(b"\r\n")]
        chunked = any(name.lower() == b"transfer-encoding" for name, _ in fields)  # the pieces are chunks, not data
        body = pieces if outbound.complete and not chunked else None
        return encode_fields(await auth.sign(outbound.method, outbound.target, fields, body))

    async def exchange(
        self,
        method: str,
        target: str,
        headers: HeaderPairs,
        body: Buffers = (),
        seconds: float | None = None,
        most: int | None = None,
    ) -> UpstreamResponse:
        """Send one short request of the gateway's own; see `gateway.ports.ClusterReader`."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        raw = [(name.encode("latin-1"), value.encode("utf-8", "surrogateescape")) for name, value in pairs]
        raw = [field for field in raw if field[0].lower() not in _OWN]
        if body or method not in ("GET", "HEAD", "OPTIONS"):
            raw.append((b"Content-Length", str(sum(map(len, body))).encode()))
        timeouts = self.timeouts if seconds is None else ResponseTimeouts(0, 0)
        raw_target = target.encode("utf-8", "surrogateescape")
        most = self._limits.text if most is None else most
        request = WholeResponse(method.encode("ascii"), raw_target, raw, body, timeouts, most)
        seconds = self._settings.timeouts.lookup if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds or None):
                self.send(request.outbound)
                head, content = await request.response
        except TimeoutError as exc:
            path = target.partition("?")[0]
            raise UpstreamTimeout(f"The cluster did not answer {method} {path} within {seconds:g} s.") from exc
        finally:
            request.outbound.abandon()
        decoded = ((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in head.pairs())
        return UpstreamResponse(head.status, CIMultiDict(decoded), content)

    async def get_json(self, path: str, headers: HeaderPairs) -> tuple[int, dict[str, Any] | None]:
        """Return the status and the JSON object of a GET; see `gateway.ports.ClusterReader`."""
        response = await self.exchange("GET", path, headers)
        text, most = response.body, self._limits.values
        is_small = len(text) <= SMALL_TEXT
        if await run_here_if(is_small, count_values, text, most) > most:
            what = path.partition("?")[0]
            raise AnswerTooLarge(f"The cluster's answer for {what} has more than {most} values.")
        return response.status, await run_here_if(is_small, _read_object, text)


def _read_object(text: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return document if isinstance(document, dict) else None


_OWN = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect", b"accept-encoding"})
"""Headers that this client sets itself, whatever the caller passes."""

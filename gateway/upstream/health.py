"""The health probe of a node: a small request on a connection of its own, independent of the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.config.schema import Health
from gateway.observe.connect_errors import describe_connect_error
from gateway.upstream.nodes import Node
from gateway.upstream.tls import TlsSource


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

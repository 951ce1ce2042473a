"""A gateway in front of faulty upstreams, and proof that nothing of it is left when it has stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from gateway.app import Gateway, build
from gateway.config.schema import ClientTimeouts
from gateway.observe.logs import configure
from gateway.ports import ExecuteCall, Forward
from gateway.proxy.application import AiohttpListener
from gateway.proxy.client_connection import ClientConnection
from gateway.upstream.outbound import NO_DEADLINE, ResponseTimeouts
from tests.conftest import settings_for
from tests.faults.upstream import FaultyUpstream, settled
from tests.proxy.use_case import UseCase
from tests.wire import PATIENCE

LONG = {"connect": 60, "header": 60, "idle": 60, "execute": 60}
"""Time limits that nothing reaches that works, on a loaded machine, too."""

SHORT = {"connect": 60, "header": 0.2, "idle": 0.2, "execute": 0.2}
"""Time limits, so that what lasts is noticed soon; what works may take longer, so nothing else is asked under them."""

UNLIMITED = {"head": 0, "body": 0, "body_rate": 0, "keepalive": 0}
"""Of the client's time limits, none: a test sets the one that it lets pass with `expire`."""


def sockets() -> set[str]:
    """The process's open sockets, by their number in the kernel."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(one.readlink()))
    return {name for name in found if name.startswith("socket:")}


def resident() -> int:
    """Bytes of memory in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Forgetful(UseCase):
    """Passes every execute on, and remembers none."""

    async def execute(self, call: ExecuteCall) -> Forward:
        return Forward()


def held_back(gateway: Gateway) -> int:
    """Return the number of paused clients."""
    return sum(connection.paused_descriptor() >= 0 for connection in _lifecycle(gateway).connections)


def be_patient(gateway: Gateway) -> None:
    """Take back short time limits of both sides: what is asked from now on has the time it needs."""
    gateway.upstream.timeouts = gateway.upstream.execute_timeouts = ResponseTimeouts(LONG["header"], LONG["idle"])
    gateway._data._data_port.timeouts = ClientTimeouts()


def _lifecycle(gateway: Gateway) -> Any:
    """Return what holds the clients' connections, with either HTTP server."""
    listener: Any = gateway._data
    port = listener._application.port if isinstance(listener, AiohttpListener) else listener._data_port
    return port.lifecycle


async def waited_for(gateway: Gateway, *, idle: bool) -> ClientConnection:
    """Wait until the only client has a deadline, between two requests (idle) or within one."""
    connections = _lifecycle(gateway).connections
    async with asyncio.timeout(PATIENCE):
        while not any(one.deadline != NO_DEADLINE and one.idle == idle for one in connections):  # noqa: ASYNC110
            await asyncio.sleep(0)
    [client] = connections
    assert isinstance(client, ClientConnection)
    return client


def expire(gateway: Gateway, client: ClientConnection) -> None:
    """Let the client's deadline pass, however long it is."""
    timer = _lifecycle(gateway)._timer
    timer.stop()
    client.deadline = 0.0
    timer._check()


def in_flight(gateway: Gateway) -> int:
    """Return the number of requests in flight, from the metrics."""
    [line] = [line for line in gateway.metrics.render().splitlines() if line.startswith(b"mlc_gateway_in_flight ")]
    return int(float(line.split()[1]))


@contextlib.asynccontextmanager
async def running_gateway(
    *upstreams: FaultyUpstream, over: Mapping[str, Any] | None = None, **upstream: Any
) -> AsyncIterator[Gateway]:
    """A gateway that leaves no socket and no task behind. upstream: settings of that section."""
    tasks, files = asyncio.all_tasks(), sockets()
    async with contextlib.AsyncExitStack() as stack:
        for one in upstreams:
            await stack.enter_async_context(one)
        urls = [one.url for one in upstreams]
        section = {"timeouts": LONG, "nodes": urls if len(urls) > 1 else [], **upstream}
        url = urls[0] if urls else "http://127.0.0.1:1"
        settings = settings_for(url, {**(over or {}), "upstream": {"url": url, **section}})
        gateway = build(settings, Forgetful(), configure("error", "json"))
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.stop()
    assert await settled(lambda: asyncio.all_tasks() <= tasks), asyncio.all_tasks() - tasks
    assert await settled(lambda: sockets() <= files), sockets() - files

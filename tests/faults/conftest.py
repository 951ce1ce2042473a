from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop

_LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway runs on where it is served, and the standard one."""
    return _LOOPS

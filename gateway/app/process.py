"""One process that serves until it receives a signal to stop: reloads, garbage collection."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gateway.app.gateway import build
from gateway.app.reloading import SettingsReload
from gateway.app.wiring import log_of
from gateway.config.load import Source
from gateway.config.schema import Settings
from gateway.observe.logs import Logger

_KEPT_MEMORY = 32 << 20
"""Bytes of freed memory that the process keeps. glibc gives back more than 256 KB at once, and the kernel clears each
page that is taken again: that cost a third of the CPU time of a request with an image of 1 MB."""
_MAPPED_ALONE = 3 << 19
"""Size in bytes from which a block of memory is given back when it is freed, whatever else is in use."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def keep_freed_memory() -> None:
    """Keep some, so that bodies do not take new pages each time."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    set_option(_M_TRIM_THRESHOLD, _KEPT_MEMORY)
    set_option(_M_MMAP_THRESHOLD, _MAPPED_ALONE)


_GARBAGE = 20_000
"""New objects between two runs of the garbage collector. Requests create no cycles."""
_SWITCH = 0.001
"""Seconds that the thread for large bodies may run while the event loop waits."""
_ECHO = 0.3
"""Seconds within which signals count as one: Ctrl-C may come from the terminal and from the parent process."""

RELOAD, STOP_NOW = b"r", b"!"
"""Bytes that the supervisor writes to a worker's standard input. A worker that still starts reads them afterwards."""


class StopSignals:
    """Handles SIGINT and SIGTERM. received: set by the first. stop_now: called once, by a second."""

    def __init__(self, stop_now: Callable[[], None] | None) -> None:
        self.received = asyncio.Event()
        self._stop_now = stop_now
        self._since = 0.0
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, self._receive)

    def _receive(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self.received.is_set():
            self.received.set()
            self._since = now
        elif self._stop_now is not None and now - self._since > _ECHO:
            stop_now, self._stop_now = self._stop_now, None
            stop_now()


def on_hang_up(function: Callable[[], None]) -> None:
    """Call `function` on each SIGHUP, and for one that came while the process started, when SIGHUP was blocked."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, function)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


async def serve(source: Source, worker: int | None = None) -> None:
    """Run a gateway until SIGINT or SIGTERM. A second signal ends the drain early. SIGHUP reloads the settings.

    worker: the number of this worker process. Only the supervisor ends its drain
    early, by `STOP_NOW` on its standard input, as a signal to the process group reaches every worker directly.

    Raises:
        ConfigError, OSError: as `build` and `Gateway.start`.
    """
    content = source.read_content()
    settings = source.load(content)
    gateway = build(settings, log=_log(settings, worker), is_worker=worker is not None)

    async def apply(new: Settings) -> None:
        await gateway.reload(new, _log(new, worker))
        gateway.log.info("settings reloaded")

    reloads = SettingsReload(source, content, gateway, apply)
    gateway.offer_reloads(reloads)
    hang_up = asyncio.Event()
    stop = StopSignals(gateway.stop_now if worker is None else None)
    loop = asyncio.get_running_loop()
    on_hang_up(hang_up.set)
    loop.set_exception_handler(lambda _, context: _log_fault(gateway.log, context))

    def supervised() -> None:
        word = os.read(0, 1)
        if word == RELOAD:
            hang_up.set()
            return
        if word == STOP_NOW:
            gateway.stop_now()
        else:  # standard input ends with the supervisor
            loop.remove_reader(0)
        stop.received.set()

    if worker is not None:
        loop.add_reader(0, supervised)
    keep_freed_memory()
    await gateway.start()
    # What exists now stays: exclude it from garbage collection, and collect rarely on uvloop.
    gc.collect()
    gc.freeze()
    if not isinstance(loop, asyncio.BaseEventLoop):  # asyncio's TLS leaves buffers of 256 KB to the collector
        gc.set_threshold(_GARBAGE, 20, 20)
    sys.setswitchinterval(_SWITCH)
    reloading = asyncio.create_task(_reload_when(hang_up, reloads))
    try:
        await stop.received.wait()
    finally:
        await reloads.stop()
        reloading.cancel()
        await asyncio.gather(reloading, return_exceptions=True)
        await gateway.stop()


def _log_fault(log: Logger, context: Mapping[str, Any]) -> None:
    """Log an uncaught exception. asyncio's own handler would show the data that was handled."""
    log.error("internal error", exc_info=context.get("exception") or RuntimeError(str(context.get("message"))))


async def _reload_when(hang_up: asyncio.Event, reloads: SettingsReload) -> None:
    while await hang_up.wait():
        hang_up.clear()
        await reloads.run()


def _log(settings: Settings, worker: int | None) -> Logger:
    log = log_of(settings)
    return log if worker is None else log.bind(worker=worker)

"""The one place that puts the gateway together: settings in, parts built, started and stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from gateway.config.schema import Settings
from gateway.edge.admin import AdminPort
from gateway.edge.listener import Listener
from gateway.edge.server import DataListener, DataPort
from gateway.execute.ports import ExecuteHandler, ProfileCache
from gateway.observe.logs import Logger, configure
from gateway.observe.metrics import Metrics
from gateway.upstream.client import Upstream
from gateway.upstream.tls import on_data_port

UseCase = Callable[[Settings, Upstream, Logger, Metrics], tuple[ExecuteHandler, ProfileCache]]


_ADMIN_GRACE = 1.0


class Gateway:
    """A gateway with its parts; `start` it, `stop` it."""

    def __init__(self, settings: Settings, use_case: UseCase, log: Logger) -> None:
        self._log = log
        self.metrics = Metrics()
        self.upstream = Upstream(settings.upstream, settings.limits, log)
        execute, profiles = use_case(settings, self.upstream, log, self.metrics)
        self._admin_port = AdminPort(self.upstream, self.metrics)
        data_port = DataPort(settings, self.upstream, execute, profiles, log, self.metrics)
        listen = settings.listen
        self._data_tls = on_data_port(listen.tls, log)
        self._data = DataListener(
            data_port,
            listen.data_host,
            listen.data_port,
            log,
            listen.shutdown_seconds,
            tls=self._data_tls.context if self._data_tls else None,
            shared=listen.workers > 1,
        )
        self._admin = Listener(
            self._admin_port, listen.admin_host, listen.admin_port, settings.limits, log, _ADMIN_GRACE
        )

    @property
    def data_port(self) -> int:
        """The port of the cluster's API, once started."""
        return self._data.port

    @property
    def admin_port(self) -> int:
        """The port of health and metrics, once started."""
        return self._admin.port

    async def start(self) -> None:
        """Open the pool, then both ports; all or nothing.

        Raises:
            OSError: a port can't be bound, or the file of authorities can't be read.
        """
        await self.upstream.start()
        try:
            await self._admin.start()
            try:
                await self._data.start()
            except OSError:
                await self._admin.stop()
                raise
        except OSError:
            await self.upstream.close()
            raise

    async def stop(self) -> None:
        """Say so on the readiness page, accept no more, finish what is in flight up to the deadline, close."""
        self._admin_port.draining = True
        await self._data.stop()
        await self._admin.stop()
        await self.upstream.close()
        self._log.info("stopped")


def build(settings: Settings, use_case: UseCase | None = None, log: Logger | None = None) -> Gateway:
    """A gateway for `settings`, not started. use_case: what decides on execute requests, the real one by default."""
    log = log or configure(settings.logs.level, settings.logs.format)
    return Gateway(settings, use_case or _real_use_case(), log)


def _real_use_case() -> UseCase:
    from gateway.execute.handler import build_handler  # here, so that tests of the edge need none of it

    return build_handler


async def serve(settings: Settings) -> None:
    """Run a gateway until SIGINT or SIGTERM.

    Raises:
        OSError: as `Gateway.start`.
    """
    gateway = build(settings)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, told.set)
    await gateway.start()
    try:
        await told.wait()
    finally:
        await gateway.stop()

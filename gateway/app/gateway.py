"""The composition root: builds the gateway from its settings, starts, reloads and stops it.

Or the gateway is an aiohttp application, to be run, nested or given middlewares by another program.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Coroutine

from aiohttp import web

from gateway.admin.application import AdminListener, Reloads, build_application
from gateway.admin.pages import AdminPages
from gateway.app.adapters import adapters_of, place_of
from gateway.app.wiring import Runtime, UseCase, build_use_case, log_of, running
from gateway.config.load import check_reload
from gateway.config.schema import Agents, Listen, Secret, Settings
from gateway.observe.logs import Logger, warn_of_payloads
from gateway.observe.metrics import Metrics, Nodes, Sizes
from gateway.proxy.application import AiohttpListener, Application
from gateway.proxy.data_port import DataPort
from gateway.proxy.listener import DataListener
from gateway.recording.recorder import Recording
from gateway.recording.sinks.registry import OpenSinks
from gateway.recording.store import TargetWeight
from gateway.routing.table import read_routes
from gateway.upstream.client import Upstream
from gateway.upstream.tls import TlsSource, on_data_port, watch

_ADMIN_GRACE = 1.0


class Gateway:
    """A gateway: `start` it, `reload` it, `stop` it.

    sinks: opens the stores of exchanges; see `Recording`. is_worker: only the supervisor reaches the admin
    port, which needs no token then.

    Raises:
        ConfigError: a provider or a file that the settings name can't be used.
    """

    def __init__(
        self,
        settings: Settings,
        use_case: UseCase,
        log: Logger,
        sinks: OpenSinks | None = None,
        is_worker: bool = False,
    ) -> None:
        self._is_worker = is_worker
        self.metrics = Metrics()
        self.metrics.registry.register(Nodes(lambda: self._now.node_states()))
        self.metrics.registry.register(Sizes(lambda: self._now.cached_profiles, lambda: self._now.session_runs))
        self.metrics.routes.shares = lambda: self._now.shares
        self._use_case = use_case
        self._open_sinks = sinks
        self._recording = Recording(settings, log, self.metrics, sinks)
        self._now = Runtime(settings, use_case, log, self.metrics, self._recording.recorder)
        self._background: set[asyncio.Task[None]] = set()
        self._stop_early = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()
        self._tls = on_data_port(settings.listen.tls, log)
        listen = settings.listen
        self._admin_pages = AdminPages(
            self._now.clusters,
            self._now.profiles,
            self.metrics,
            self._token(listen),
            self._now.store,
            is_worker,
            self._recording.store,
            self._now.holds,
            lambda documents, before: self._now.port.lifecycle.runs_planned_with(documents, before),
            self._now.delete_session,
            self._data_url,
        )
        self._data = _listener(self._now.port, settings, log, self._tls.listener_context() if self._tls else None)
        self._adapters = adapters_of(self._now, log, self.metrics, self._tls.listener_context() if self._tls else None)
        admin = build_application(self._admin_pages, log)
        self._admin = AdminListener(admin, listen.admin_host, listen.admin_port, settings.limits, log, _ADMIN_GRACE)

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self._now.settings

    @property
    def log(self) -> Logger:
        """The log, at the current level."""
        return self._now.log

    @property
    def upstream(self) -> Upstream:
        """The cluster, under the current settings."""
        return self._now.upstream

    @property
    def data_port(self) -> int:
        """The port of the cluster's API, once started."""
        return self._data.port

    @property
    def adapters_port(self) -> int:
        """The port of the adapters, once started; 0 if there is none."""
        return self._adapters.port if self._adapters is not None else 0

    @property
    def admin_port(self) -> int:
        """The port of health and metrics, once started."""
        return self._admin.port

    def offer_reloads(self, reloads: Reloads) -> None:
        """Let the admin port reload the settings."""
        self._admin_pages.reloads = reloads

    async def start(self) -> None:
        """Open the connection pool, then the ports. If one fails, close the others.

        Raises:
            ConfigError: a file that the settings name can't be used. OSError: a port can't be bound.
            StoreError: a store of exchanges can't be opened.
        """
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._now.close)
            undo.push_async_callback(self._recording.stop)
            await self._recording.start()
            await self._now.start()
            await self._admin.start()
            undo.push_async_callback(self._admin.stop)
            await self._data.start()
            undo.push_async_callback(self._data.stop)
            if self._adapters is not None:
                await self._adapters.start()
            undo.pop_all()
        if self.settings.logs.payloads:
            warn_of_payloads(self.log)
        self._do(watch(self._certificates))
        self._do(self._recording.note_weights(weights_of(self.settings.agents)))

    async def reload(self, settings: Settings, log: Logger) -> None:
        """Apply `settings` to new requests; running requests finish under the old ones.

        Raises:
            ConfigError, StoreError: nothing was changed: a setting needs a restart, or a file, a provider or a store
                can't be used.
        """
        check_reload(self.settings, settings)
        tls = await asyncio.to_thread(on_data_port, settings.listen.tls, log)
        recording = self._recording
        if not recording.is_for(settings):
            recording = Recording(settings, log, self.metrics, self._open_sinks)
        new = Runtime(settings, self._use_case, log, self.metrics, recording.recorder)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(new.close)
            if recording is not self._recording:
                undo.push_async_callback(recording.stop)
                await recording.start()
            await new.start()
            undo.pop_all()
        new.inherit(self._now)
        old, self._now = self._now, new
        if self._tls is not None and tls is not None:
            self._tls.replace_with(tls)
        self._data.replace(new.port, settings.listen.shutdown_seconds)
        if self._adapters is not None:
            self._adapters.replace(place_of(new, self.metrics))
        self._admin_pages.clusters = new.clusters
        self._admin_pages.profiles = new.profiles
        self._admin_pages.memory.store = new.store
        self._admin_pages.memory.delete = new.delete_session
        self._admin_pages.inspector.store = recording.store
        self._admin_pages.token = self._token(settings.listen)
        if settings.logs.payloads:
            warn_of_payloads(log)
        replaced, self._recording = self._recording, recording
        retiring = self._do(_retire(old, replaced if replaced is not recording else None))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        await recording.note_weights(weights_of(settings.agents))

    def _data_url(self) -> str:
        """Return an address of the data port for a client on this host, or on the one that it listens on."""
        host = self.settings.listen.data_host
        named = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://{f'[{named}]' if ':' in named else named}:{self.data_port}"

    def _token(self, listen: Listen) -> Secret:
        return Secret() if self._is_worker else listen.admin_token

    async def stop(self) -> None:
        """Report not ready, accept no more connections, finish running requests up to the deadline, close.

        What raises while it is closed does not keep the rest open. The last such error is raised.
        """
        self._admin_pages.draining = True
        self._now.stop()
        self._data.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_early.wait(), self.settings.listen.drain_seconds)
        until = time.monotonic() + self.settings.listen.shutdown_seconds
        async with contextlib.AsyncExitStack() as close:  # the last first
            close.callback(self.log.info, "stopped")
            close.push_async_callback(self._recording.stop)
            close.push_async_callback(self._now.close)
            close.push_async_callback(self._cancel_background)
            close.push_async_callback(self._admin.stop)
            close.callback(self._admin_pages.inspector.stop)
            close.push_async_callback(self._finished, until)
            close.push_async_callback(self._data.stop)
            if self._adapters is not None:
                close.push_async_callback(self._adapters.stop)

    async def _cancel_background(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _finished(self, until: float) -> None:
        """Let requests whose clients disconnected finish, until the deadline `until` or `stop_now`."""
        last = [*self._retiring, asyncio.create_task(self._now.ended())]
        ended = asyncio.gather(*last, return_exceptions=True)
        early = asyncio.create_task(self._stop_early.wait())
        timeout = max(until - time.monotonic(), 0)
        await asyncio.wait((ended, early), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in (*last, early):
            task.cancel()
        await asyncio.gather(*last, early, return_exceptions=True)

    def stop_now(self) -> None:
        """Make `stop`, now or later, not wait for running requests."""
        self.log.warning("drain cut short", connections=self._data.stop_now())
        if self._adapters is not None:
            self._adapters.stop_now()
        self._stop_early.set()

    def _certificates(self) -> list[TlsSource]:
        clusters = (cluster.tls for cluster in self._now.clusters.values())
        return [source for source in (self._tls, *clusters) if source is not None]

    def _do(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _listener(
    port: DataPort, settings: Settings, log: Logger, tls: ssl.SSLContext | None
) -> DataListener | AiohttpListener:
    """Make the listening sockets of the data port, and the HTTP server behind them."""
    listen = settings.listen
    where = (port, listen.data_host, listen.data_port, log, listen.shutdown_seconds, tls, listen.workers > 1)
    return DataListener(*where) if listen.http == "builtin" else AiohttpListener(*where, settings.limits)


def weights_of(agents: Agents) -> dict[str, list[TargetWeight]]:
    """Return the weights of the targets of all routes, by the id that clients send."""
    return {
        route.agent: [TargetWeight(target.agent, target.cluster, target.weight) for target in route.targets]
        for route in read_routes(agents).values()
    }


async def _retire(runtime: Runtime, recording: Recording | None) -> None:
    """Close what was replaced, once the last request is answered. recording: None if it goes on."""
    try:
        await runtime.retire()
    finally:
        if recording is not None:
            await recording.stop()


def build(
    settings: Settings,
    use_case: UseCase | None = None,
    log: Logger | None = None,
    sinks: OpenSinks | None = None,
    is_worker: bool = False,
) -> Gateway:
    """Build a gateway, not started. use_case: handles execute requests; by default the real one. Others: see `Gateway`.

    Raises:
        ConfigError: as `Gateway`.
    """
    log = log or log_of(settings)
    return Gateway(settings, use_case or build_use_case(), log, sinks, is_worker)


def create_app(settings: Settings, use_case: UseCase | None = None, log: Logger | None = None) -> web.Application:
    """Make an aiohttp application that is the gateway, to be run, nested or given middlewares.

    It answers every request for which the application has no route of its own. Run it with `auto_decompress=False`, so
    that bodies are relayed unchanged, and with `handler_cancellation=True`, so that a client that has gone ends its
    request; `gateway.app.RUNNER_OPTIONS` holds both. It has no admin port, and listens where its runner says.

    Raises:
        ConfigError: as `Gateway`; on startup also a file that the settings name can't be used.
    """
    log = log or log_of(settings)
    metrics = Metrics()
    recording = Recording(settings, log, metrics)
    runtime = Runtime(settings, use_case or build_use_case(), log, metrics, recording.recorder)

    async def run(_: web.Application) -> AsyncIterator[None]:
        async with running(runtime, recording):
            yield

    app = web.Application()
    Application(runtime.port).add_to(app)
    app.cleanup_ctx.append(run)
    return app

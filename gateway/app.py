"""The composition root: builds the gateway from its settings, starts, reloads and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Coroutine

from aiohttp import web

from gateway.admin.application import build_application
from gateway.admin.listener import AdminListener
from gateway.admin.pages import AdminPages
from gateway.config.load import ConfigError
from gateway.config.reload import check_reload
from gateway.config.schema import Listen, Secret, Settings
from gateway.inspector.stores.registry import open_store
from gateway.observe.logs import Logger, configure, warn_of_payloads
from gateway.observe.metrics import Metrics
from gateway.observe.nodes import Nodes
from gateway.proxy.acceptor import UNIX
from gateway.proxy.aiohttp_listener import AiohttpListener
from gateway.proxy.application import RUNNER_OPTIONS as RUNNER_OPTIONS
from gateway.proxy.application import Application
from gateway.proxy.data_port import DataPort
from gateway.proxy.listener import DataListener
from gateway.runtime import Runtime, UseCase, UseCases
from gateway.upstream.client import Upstream
from gateway.upstream.tls import TlsSource, on_data_port, to_cluster, watch

_ADMIN_GRACE = 1.0


class Gateway:
    """A gateway: `start` it, `reload` it, `stop` it.

    Raises:
        ConfigError: a provider or a file that the settings name can't be used.
    """

    def __init__(self, settings: Settings, use_case: UseCase, log: Logger) -> None:
        self.metrics = Metrics()
        self.metrics.registry.register(Nodes(lambda: self.upstream.nodes.states()))
        self._use_case = use_case
        self._now = Runtime(settings, use_case, log, self.metrics)
        self._background: set[asyncio.Task[None]] = set()
        self._stop_early = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()
        self._tls = on_data_port(settings.listen.tls, log)
        listen = settings.listen
        self._admin_pages = AdminPages(
            self.upstream,
            self._now.profiles,
            self.metrics,
            _token(listen),
            self._now.store,
            _is_private(listen),
            open_store(settings.inspector),
        )
        self._data = _listener(self._now.port, settings, log, self._tls.listener_context() if self._tls else None)
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
    def admin_port(self) -> int:
        """The port of health and metrics, once started."""
        return self._admin.port

    async def start(self) -> None:
        """Open the connection pool, then both ports. If one fails, close the others.

        Raises:
            ConfigError: a file that the settings name can't be used. OSError: a port can't be bound.
        """
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._now.close)
            await self._now.start()
            await self._admin.start()
            undo.push_async_callback(self._admin.stop)
            await self._data.start()
            undo.pop_all()
        if self.settings.logs.payloads:
            warn_of_payloads(self.log)
        self._do(watch(self._certificates))

    async def reload(self, settings: Settings, log: Logger) -> None:
        """Apply `settings` to new requests; running requests finish under the old ones.

        Raises:
            ConfigError: nothing was changed: a setting needs a restart, or a file or provider can't be used.
        """
        check_reload(self.settings, settings)
        tls = await asyncio.to_thread(on_data_port, settings.listen.tls, log)
        new = Runtime(settings, self._use_case, log, self.metrics)
        try:
            await new.start()
        except BaseException:
            await new.close()
            raise
        new.upstream.nodes.inherit(self.upstream.nodes)
        old, self._now = self._now, new
        if self._tls is not None and tls is not None:
            self._tls.replace_with(tls)
        self._data.replace(new.port, settings.listen.shutdown_seconds)
        self._admin_pages.cluster = new.upstream
        self._admin_pages.profiles = new.profiles
        self._admin_pages.memory.store = new.store
        self._admin_pages.token = _token(settings.listen)
        if settings.inspector != old.settings.inspector:
            await self._admin_pages.inspector.replace(open_store(settings.inspector))
        if settings.logs.payloads:
            warn_of_payloads(log)
        retiring = self._do(old.retire())
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    async def stop(self) -> None:
        """Report not ready, accept no more connections, finish running requests up to the deadline, close."""
        self._admin_pages.draining = True
        self._data.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_early.wait(), self.settings.listen.drain_seconds)
        until = time.monotonic() + self.settings.listen.shutdown_seconds
        await self._data.stop()
        await self._finished(until)
        self._admin_pages.inspector.stop()
        await self._admin.stop()
        await self._admin_pages.inspector.replace(None)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._now.close()
        self.log.info("stopped")

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
        self._stop_early.set()

    def _certificates(self) -> list[TlsSource]:
        return [source for source in (self._tls, self.upstream.tls) if source is not None]

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


def create_app(settings: Settings, use_case: UseCase | None = None, log: Logger | None = None) -> web.Application:
    """Make an aiohttp application that is the gateway, to be run, nested or given middlewares.

    It answers every request for which the application has no route of its own. Run it with `auto_decompress=False`, so
    that bodies are relayed unchanged, and with `handler_cancellation=True`, so that a client that has gone ends its
    request; `gateway.app.RUNNER_OPTIONS` holds both. It has no admin port, and listens where its runner says.

    Raises:
        ConfigError: as `Gateway`; on startup also a file that the settings name can't be used.
    """
    log = log or configure(settings.logs.level, settings.logs.format, payloads=settings.logs.payloads)
    runtime = Runtime(settings, use_case or _real_use_case(), log, Metrics())

    async def run(_: web.Application) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(runtime.close)
            await runtime.start()
            runtime.port.lifecycle.start()
            yield
            await runtime.ended()
            runtime.port.lifecycle.stop()

    app = web.Application()
    Application(runtime.port).add_to(app)
    app.cleanup_ctx.append(run)
    return app


def _token(listen: Listen) -> Secret:
    """Return the admin port's token. A worker needs none: its Unix socket is only for the supervisor."""
    return Secret() if _is_private(listen) else listen.admin_token


def _is_private(listen: Listen) -> bool:
    return listen.admin_host.startswith(UNIX)


def build(settings: Settings, use_case: UseCase | None = None, log: Logger | None = None) -> Gateway:
    """Build a gateway, not started. use_case: handles execute requests; by default the real one.

    Raises:
        ConfigError: as `Gateway`.
    """
    log = log or configure(settings.logs.level, settings.logs.format, payloads=settings.logs.payloads)
    return Gateway(settings, use_case or _real_use_case(), log)


def _real_use_case() -> UseCase:
    # Imported here, so that tests of the data port do not need it.
    from gateway.agents.lookup import Credentials
    from gateway.execute.build import build_handler, check_rules
    from gateway.media.fetch import Fetcher
    from gateway.memory.opening import SharedStores
    from gateway.memory.rest_handler import SessionResources
    from gateway.memory.sessions import Sessions
    from gateway.policy.opening import KeptPolicies, SharedLedgers
    from gateway.register.handler import Manager

    stores, ledgers = SharedStores(), SharedLedgers()

    def use_case(settings: Settings, cluster: Upstream, log: Logger, metrics: Metrics) -> UseCases:
        check_rules(settings)  # before the store is used, as nothing releases it if this fails
        shared = stores.use(settings)
        memory = Sessions(shared.store, settings.memory, log, stores.busy, close=shared.release)
        policy = KeptPolicies(settings, ledgers, log, metrics)
        fetch = Fetcher(settings.media)
        execute, profiles = build_handler(settings, cluster, log, metrics, fetch, memory, policy.policies)
        wanted = settings.registration.enabled
        manage = Manager(settings, cluster, execute, profiles, log, metrics) if wanted else None
        resources = SessionResources(settings.memory, shared.store, cluster, Credentials().of)
        return UseCases(execute, profiles, manage, resources, memory, shared.store, policy)

    return use_case


def check(settings: Settings, log: Logger) -> None:
    """Check the settings against the installed providers, the store of sessions and the named files. Blocks on files.

    Raises:
        ConfigError: as `Gateway` and `Gateway.start`.
    """
    from gateway.execute.build import check_rules
    from gateway.memory.stores.registry import check_store
    from gateway.policy.policies import check_policies

    check_rules(settings)
    check_policies(settings)
    problems = check_store(settings.memory)
    if problems:
        raise ConfigError(problems)
    on_data_port(settings.listen.tls, log)
    to_cluster(settings.upstream.tls, log)

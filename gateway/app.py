"""The one place that puts the gateway together: settings in, parts built, started, exchanged and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Coroutine, Iterator

from gateway.config.load import ConfigError, ConfigProblem
from gateway.config.schema import Listen, Secret, Settings
from gateway.edge.admin import AdminPort, Guard
from gateway.edge.listener import Listener
from gateway.edge.server import DataListener, DataPort
from gateway.edge.sockets import UNIX
from gateway.execute.ports import ExecuteHandler, ProfileCache
from gateway.observe.logs import Logger, configure
from gateway.observe.metrics import Metrics
from gateway.upstream.client import Upstream
from gateway.upstream.tls import TlsSource, on_data_port, to_cluster, watch

UseCase = Callable[[Settings, Upstream, Logger, Metrics], tuple[ExecuteHandler, ProfileCache]]

_ADMIN_GRACE = 1.0
_GARBAGE = 20_000
"""New objects between two looks for cycles, of which requests make none."""
_FIXED = ("data_host", "data_port", "admin_host", "admin_port", "workers")
"""Settings of `listen` that only a restart changes: the sockets are there, and so are the processes."""


class _Generation:
    """One set of settings in force, and the parts that serve the requests which began under it."""

    def __init__(self, settings: Settings, use_case: UseCase, log: Logger, metrics: Metrics) -> None:
        self.settings = settings
        self.log = log
        self.upstream = Upstream(settings.upstream, settings.limits, log)
        execute, profiles = use_case(settings, self.upstream, log, metrics)
        self.port = DataPort(settings, self.upstream, execute, profiles, log, metrics)

    async def retire(self) -> None:
        """Close once the last request is answered."""
        await self.port.ended()
        await self.upstream.close()


class Gateway:
    """A gateway with its parts; `start` it, `stop` it.

    Raises:
        ConfigError: a provider or a file that the settings name can't be used.
    """

    def __init__(self, settings: Settings, use_case: UseCase, log: Logger) -> None:
        self.metrics = Metrics()
        self._use_case = use_case
        self._now = _Generation(settings, use_case, log, self.metrics)
        self._background: set[asyncio.Task[None]] = set()
        self._tls = on_data_port(settings.listen.tls, log)
        self._admin_port = AdminPort(self.upstream, self.metrics)
        self._guard = Guard(self._admin_port, _token(settings.listen))
        listen = settings.listen
        self._data = DataListener(
            self._now.port,
            listen.data_host,
            listen.data_port,
            log,
            listen.shutdown_seconds,
            self._tls.context if self._tls else None,
            listen.workers > 1,
        )
        self._admin = Listener(self._guard, listen.admin_host, listen.admin_port, settings.limits, log, _ADMIN_GRACE)

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._now.settings

    @property
    def log(self) -> Logger:
        """The log, at the level in force."""
        return self._now.log

    @property
    def upstream(self) -> Upstream:
        """The cluster, under the settings in force."""
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
        """Open the pool, then both ports; all or nothing.

        Raises:
            ConfigError: a file that the settings name can't be used. OSError: a port can't be bound.
        """
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self.upstream.close)
            await self.upstream.start()
            await self._admin.start()
            undo.push_async_callback(self._admin.stop)
            await self._data.start()
            undo.pop_all()
        self._do(watch(self._certificates))

    async def reload(self, settings: Settings, log: Logger) -> None:
        """Take on `settings`, whole: requests that come from now on are served by them, those in flight by the old.

        Raises:
            ConfigError: nothing has changed: a setting can't change while the gateway runs, or what one names can't
                be used.
        """
        check_reload(self.settings, settings)
        tls = await asyncio.to_thread(on_data_port, settings.listen.tls, log)
        new = _Generation(settings, self._use_case, log, self.metrics)
        try:
            await new.upstream.start()
        except ConfigError:
            await new.upstream.close()
            raise
        old, self._now = self._now, new
        if self._tls is not None and tls is not None:
            self._tls.become(tls)
        self._data.replace(new.port, settings.listen.shutdown_seconds)
        self._admin_port.cluster = new.upstream
        self._guard.token = _token(settings.listen)
        self._do(old.retire())

    async def stop(self) -> None:
        """Say so on the readiness page, accept no more, finish what is in flight up to the deadline, close."""
        self._admin_port.draining = True
        self._data.drain()
        await asyncio.sleep(self.settings.listen.drain_seconds)
        await self._data.stop()
        await self._admin.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.upstream.close()
        self.log.info("stopped")

    def _certificates(self) -> list[TlsSource]:
        return [source for source in (self._tls, self.upstream.tls) if source is not None]

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _token(listen: Listen) -> Secret:
    """What the admin port asks for: nothing of the supervisor, to whom a worker talks over a socket of their own."""
    return Secret() if listen.admin_host.startswith(UNIX) else listen.admin_token


def build(settings: Settings, use_case: UseCase | None = None, log: Logger | None = None) -> Gateway:
    """A gateway for `settings`, not started. use_case: what decides on execute requests, the real one by default.

    Raises:
        ConfigError: as `Gateway`.
    """
    log = log or configure(settings.logs.level, settings.logs.format)
    return Gateway(settings, use_case or _real_use_case(), log)


def _real_use_case() -> UseCase:
    from gateway.execute.handler import build_handler  # here, so that tests of the edge need none of it
    from gateway.media.fetch import Fetcher

    def use_case(
        settings: Settings, cluster: Upstream, log: Logger, metrics: Metrics
    ) -> tuple[ExecuteHandler, ProfileCache]:
        return build_handler(settings, cluster, log, metrics, Fetcher(settings.media))

    return use_case


def check(settings: Settings, log: Logger) -> None:
    """Look at what only the installed providers and the files that are named can tell. Blocks on files.

    Raises:
        ConfigError: as `Gateway` and `Gateway.start`.
    """
    from gateway.execute.handler import check_rules

    check_rules(settings)
    on_data_port(settings.listen.tls, log)
    to_cluster(settings.upstream.tls, log)


def check_reload(old: Settings, new: Settings) -> None:
    """Compare the settings that only a restart changes.

    Raises:
        ConfigError: some differ; each is a problem.
    """
    problems = [ConfigProblem(path, "can't change without a restart") for path in _changed(old, new)]
    if problems:
        raise ConfigError(problems)


def _changed(old: Settings, new: Settings) -> Iterator[str]:
    for name in _FIXED:
        if getattr(old.listen, name) != getattr(new.listen, name):
            yield f"listen.{name}"
    if bool(old.listen.tls.cert_file) != bool(new.listen.tls.cert_file):
        yield "listen.tls.cert_file"


Load = Callable[[], Settings]


async def serve(load: Load, worker: int | None = None) -> None:
    """Run a gateway until SIGINT or SIGTERM; SIGHUP loads the settings anew.

    load: reads the settings; may block. worker: its number among the processes of a supervisor.

    Raises:
        ConfigError, OSError: as `build` and `Gateway.start`.
    """
    settings = load()
    gateway = build(settings, log=_log(settings, worker))
    told, hang_up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, told.set)
    loop.add_signal_handler(signal.SIGHUP, hang_up.set)
    if worker is not None:
        loop.add_reader(0, told.set)  # standard input ends with the supervisor
    await gateway.start()
    # What is there now stays: the collector need not look through it again, nor through each request's few objects.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE, 20, 20)
    reloading = asyncio.create_task(_reload_when(hang_up, gateway, load, worker))
    try:
        await told.wait()
    finally:
        if worker is not None:
            loop.remove_reader(0)
        reloading.cancel()
        await asyncio.gather(reloading, return_exceptions=True)
        await gateway.stop()


async def _reload_when(hang_up: asyncio.Event, gateway: Gateway, load: Load, worker: int | None) -> None:
    while await hang_up.wait():
        hang_up.clear()
        try:
            settings = await asyncio.to_thread(load)
            await gateway.reload(settings, _log(settings, worker))
        except ConfigError as exc:
            gateway.log.error("settings kept", problems=[str(problem) for problem in exc.problems])
        except Exception:
            gateway.log.exception("settings kept")
        else:
            gateway.log.info("settings reloaded")


def _log(settings: Settings, worker: int | None) -> Logger:
    log = configure(settings.logs.level, settings.logs.format)
    return log if worker is None else log.bind(worker=worker)

"""Checks settings against all that the gateway would use: providers, stores and the files that they name.

While the gateway runs, on SIGHUP or for the admin port, they are read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

from gateway.app.wiring import log_of
from gateway.config.load import Source, check_reload, digest_of
from gateway.config.problems import ConfigError, ConfigProblem, depends_on
from gateway.config.schema import Settings
from gateway.execute.build import check_rules
from gateway.memory.stores.registry import check_store
from gateway.observe.logs import Logger
from gateway.policy.policies import check_policies
from gateway.recording.records import make_redactor
from gateway.recording.sinks.registry import check_sinks, check_telemetry
from gateway.upstream.tls import on_data_port, to_cluster


def load_checked(load: Callable[[], Settings], log: Logger | None = None, running: Settings | None = None) -> Settings:
    """Load the settings, and check them with `check` and `check_reload`. Blocks on files.

    log: by default one as the settings say. running: those in effect, if they are to be reloaded.

    Raises:
        ConfigError: with the problems of all three.
    """
    problems: list[ConfigProblem] = []
    wrong: Collection[str] = ()
    try:
        settings = load()
    except ConfigError as error:
        if error.readable is None:
            raise
        settings, wrong = error.readable, error.wrong
        problems += error.problems
    log = log or log_of(settings)
    checks: list[Callable[[], None]] = [lambda: check(settings, log, wrong)]
    if running is not None:
        checks.append(lambda: check_reload(running, settings, wrong))
    problems += _problems_of(checks)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return settings


def check(settings: Settings, log: Logger, wrong: Collection[str] = ()) -> None:
    """Check the settings against the installed providers, the store of sessions and the named files. Blocks on files.

    wrong: paths of settings that could not be read. What depends on one of them is not checked.

    Raises:
        ConfigError: as `Gateway` and `Gateway.start`.
    """

    def report(problems: list[ConfigProblem]) -> None:
        if problems:
            raise ConfigError(problems)

    parts: tuple[tuple[tuple[str, ...], Callable[[], object]], ...] = (
        (("memory",), lambda: report(check_store(settings.memory))),
        (("inspector",), lambda: report(check_sinks(settings.inspector))),
        (("telemetry", "logs.access", "logs.access_file"), lambda: report(check_telemetry(settings))),
        (("agents.rules",), lambda: check_rules(settings)),
        (("policy", "memory"), lambda: check_policies(settings)),
        (("inspector",), lambda: make_redactor(settings.inspector)),
        (("listen.tls",), lambda: on_data_port(settings.listen.tls, log)),
        (("upstream.tls",), lambda: to_cluster(settings.upstream.tls, log)),
    )
    problems = _problems_of(part for paths, part in parts if not depends_on(paths, wrong))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))  # sessions and budgets may have the same store


def _problems_of(checks: Iterable[Callable[[], object]]) -> list[ConfigProblem]:
    problems: list[ConfigProblem] = []
    for check_part in checks:
        try:
            check_part()
        except ConfigError as error:
            problems += error.problems
    return problems


class Running(Protocol):
    """What the settings are for. settings: those in effect. log: at their level."""

    @property
    def settings(self) -> Settings:
        """The settings in effect."""

    @property
    def log(self) -> Logger:
        """The log, at their level."""


class SettingsReload:
    """See `gateway.admin.application.Reloads`. Reloads are made one after the other.

    content: of the file, from which the settings in effect were read. apply: puts new settings into effect.
    """

    def __init__(
        self, source: Source, content: bytes | None, now: Running, apply: Callable[[Settings], Awaitable[None]]
    ) -> None:
        self.running = digest_of(content)
        self._source = source
        self._now = now
        self._apply = apply
        self._one_at_a_time = asyncio.Lock()
        self._reloading: asyncio.Task[object] | None = None
        self._is_stopped = False

    async def file(self) -> str:
        """See `Reloads`."""
        return await asyncio.to_thread(self._digest_now)

    def _digest_now(self) -> str:
        path = self._source.path
        if path is None or not path.is_file():  # reading a pipe would take what the next reload is to read
            return ""
        try:
            return digest_of(self._source.read_content())
        except ConfigError:
            return ""

    async def run(self) -> list[str]:
        """See `Reloads`. What was wrong is also logged."""
        async with self._one_at_a_time:
            if self._is_stopped:
                return ["the gateway stops"]
            self._reloading = asyncio.current_task()
            try:
                settings, content = await asyncio.to_thread(self._load)
                await self._apply(settings)
            except ConfigError as error:
                problems = [str(problem) for problem in error.problems]
                self._now.log.error("reload failed", problems=problems)
                return problems
            except Exception:
                self._now.log.exception("reload failed")
                return ["an internal error of the gateway, which its log describes"]
            finally:
                self._reloading = None
            self.running = digest_of(content)
            return []

    async def stop(self) -> None:
        """Cancel the reload under way, and let no other begin."""
        self._is_stopped = True
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.wait([self._reloading])

    def _load(self) -> tuple[Settings, bytes | None]:
        content = self._source.read_content()
        settings = load_checked(lambda: self._source.load(content), self._now.log, self._now.settings)
        return settings, content

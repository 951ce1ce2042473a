"""Checks settings against all that the gateway would use: providers, stores and the files that they name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from gateway.config.problems import ConfigError, ConfigProblem, depends_on
from gateway.config.schema import Settings
from gateway.config.source import check_reload
from gateway.observe.logs import Logger, configure
from gateway.proxy.application import RUNNER_OPTIONS as RUNNER_OPTIONS
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
    log = log or configure(settings.logs.level, settings.logs.format, payloads=settings.logs.payloads)
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
    from gateway.execute.build import check_rules
    from gateway.memory.stores.registry import check_store
    from gateway.policy.policies import check_policies

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

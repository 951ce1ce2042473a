"""Which settings can't change while the gateway runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gateway.config.problems import ConfigError, ConfigProblem, depends_on
from gateway.config.schema import Settings

_FIXED = ("data_host", "data_port", "admin_host", "admin_port", "workers", "http")
"""Settings of `listen` that need a restart, as sockets and processes exist already."""


def check_reload(old: Settings, new: Settings, wrong: Collection[str] = ()) -> None:
    """Compare the settings that need a restart, except those that could not be read (`wrong`).

    Raises:
        ConfigError: some differ. Each is a problem.
    """
    problems = [ConfigProblem(path, "can't change without a restart") for path in _changed(old, new)]
    problems = [problem for problem in problems if not depends_on([problem.path], wrong)]
    if problems:
        raise ConfigError(problems)


def _changed(old: Settings, new: Settings) -> Iterator[str]:
    for name in _FIXED:
        if getattr(old.listen, name) != getattr(new.listen, name):
            yield f"listen.{name}"
    if bool(old.listen.tls.cert_file) != bool(new.listen.tls.cert_file):
        yield "listen.tls.cert_file"

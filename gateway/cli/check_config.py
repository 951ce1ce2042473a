"""``mlc-gateway check-config``: check the settings and print the ones in effect."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from gateway.agents.rules import Rule
from gateway.app import load_checked
from gateway.cli.command import FILE, Command
from gateway.cli.output import fail
from gateway.config.describe import effective
from gateway.config.load import ConfigError, ConfigProblem, load, sources
from gateway.config.variables import suspicious_variables
from gateway.memory.stores.registry import describe_store
from gateway.migrate.assess import check_providers
from gateway.migrate.connection import PASSWORD, ClusterError, ClusterOptions, connect
from gateway.migrate.promote import routes_of
from gateway.migrate.scan import scan

_EXAMPLES = """\
mlc-gateway check-config -c config/gateway.yaml
mlc-gateway check-config -c config/gateway.yaml --cluster --user admin
mlc-gateway check-config -c config/gateway.yaml --changed
GATEWAY__UPSTREAM__URL=https://search.example.org mlc-gateway check-config -c config/gateway.yaml"""


@click.command("check-config", cls=Command, examples=_EXAMPLES)
@click.option("-c", "--config", type=FILE, metavar="FILE", help="Settings file, YAML or TOML.")
@click.option("--changed", is_flag=True, help="Print only what the file and the environment set.")
@click.option(
    "--cluster",
    is_flag=True,
    help="Also compare `agents.rules[].provider` with the agents of the cluster.",
)
@click.option(
    "--user", metavar="NAME", help=f"Basic auth for --cluster. The password is read from {PASSWORD}, or asked for."
)
def command(config: Path | None, changed: bool, cluster: bool, user: str | None) -> int:
    """Check the settings and the files they name, and print the settings in effect, without secrets.

    A comment shows where a setting is set; those without one have their defaults. If something is wrong, print every
    problem on standard error.
    """
    for warning in suspicious_variables(os.environ):
        sys.stderr.write(f"Warning: {warning}\n")
    try:
        settings = load_checked(lambda: load(config))
        if cluster and (wrong := _compare(config, user)):
            raise ConfigError(wrong)
        text = effective(settings, sources(config), changed)
    except ConfigError as error:
        return report(error)
    except ClusterError as error:
        return fail("check-config", 2, str(error))
    if settings.agents.aliases:
        routes = routes_of(settings.agents.aliases)
        sys.stderr.write(f"Warning: agents.aliases is the old form of agents.routes. The same as routes:\n{routes}")
    sys.stdout.write(text or "# Nothing is set: every setting has its default.\n")
    if note := describe_store(settings.memory):
        sys.stdout.write(f"# {note}\n")
    return 0


def _compare(config: Path | None, user: str | None) -> list[ConfigProblem]:
    """Return what is wrong about the rules for the agents of the cluster.

    Raises:
        ClusterError: it can't be reached, or the agents can't be read.
    """
    connected = connect(ClusterOptions(config=config, user=user))
    rules = tuple(Rule(rule.agent, rule.provider or None) for rule in connected.settings.agents.rules)
    return check_providers(scan(connected, connected.version, rules=rules).agents, rules)


def report(error: ConfigError, options: Mapping[str, str] | None = None) -> int:
    """Print each problem: the setting, its value and what is allowed. Return exit code 2.

    options: setting → the option of the command line that overrides it.
    """
    for problem in error.problems:
        source = (options or {}).get(problem.path, problem.source)
        sys.stderr.write(f"{replace(problem, source=source)}\n")
    return 2

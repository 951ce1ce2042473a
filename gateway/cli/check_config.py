"""``mlc-gateway check-config``: check the settings and print the ones in effect."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from msgspec.structs import replace

from gateway.app import load_checked
from gateway.cli.cluster import rules_of
from gateway.cli.command import FILE, Command
from gateway.cli.output import fail
from gateway.config.describe import effective
from gateway.config.load import ConfigError, ConfigProblem, load, sources
from gateway.config.variables import suspicious_variables
from gateway.memory.stores.registry import describe_store
from gateway.migrate.assess import check_providers
from gateway.migrate.connection import (
    PASSWORD,
    Cluster,
    ClusterError,
    ClusterOptions,
    Connected,
    connect,
    connect_named,
)
from gateway.migrate.promote import routes_of
from gateway.migrate.reading import NoSuchAgent, agent_ids, existing_agent, scan

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
    help="Also compare `agents.rules[].provider` and `agents.routes` with the agents of the clusters.",
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
    """Return what is wrong about the rules for the agents of the cluster, and about the agents of routes.

    Raises:
        ClusterError: a cluster can't be reached, or its agents can't be read.
    """
    connected = connect(ClusterOptions(config=config, user=user))
    rules = rules_of(connected)
    wrong = check_providers(scan(connected, connected.version, rules=rules).agents, rules)
    return wrong + list(_check_routes(connected))


def _check_routes(upstream: Connected) -> Iterator[ConfigProblem]:
    """Yield what is wrong about the agents of routes: clients and the gateway name agents by whole ids.

    Raises:
        ClusterError: as `_compare`.
    """
    settings = upstream.settings
    named = {target.cluster for route in settings.agents.routes for target in route.targets if target.cluster}
    clusters: dict[str, Cluster] = {"": upstream, **{name: connect_named(settings, name) for name in named}}
    for index, route in enumerate(settings.agents.routes):
        place = f"agents.routes[{index}]"
        if (id_ := existing_agent(upstream, route.agent)) != route.agent:
            yield ConfigProblem(f"{place}.agent", "is not a whole id of an agent", repr(route.agent), id_)
        for number, target in enumerate(route.targets):
            try:
                [id_] = agent_ids(clusters[target.cluster], [target.agent])
            except NoSuchAgent:
                reason = f"is no agent of {f'clusters.{target.cluster}' if target.cluster else 'upstream'}"
                yield ConfigProblem(f"{place}.targets[{number}].agent", reason, repr(target.agent))
                continue
            if id_ != target.agent:
                reason = "is not a whole id of an agent"
                yield ConfigProblem(f"{place}.targets[{number}].agent", reason, repr(target.agent), id_)


def report(error: ConfigError, options: Mapping[str, str] | None = None) -> int:
    """Print each problem: the setting, its value and what is allowed. Return exit code 2.

    options: setting → the option of the command line that overrides it.
    """
    for problem in error.problems:
        source = (options or {}).get(problem.path, problem.source)
        sys.stderr.write(f"{replace(problem, source=source)}\n")
    return 2

"""``mlc-gateway agents``: what each agent of a cluster accepts, what limits it and how to change that."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import Progress as Bar

from gateway.agents.rules import Rule
from gateway.cli.cluster import cluster_options
from gateway.cli.command import FILE, Command
from gateway.cli.listing import form_options
from gateway.cli.output import PlainConsole, fail, print_json, to_json
from gateway.config.load import ConfigError
from gateway.execute.build import check_rules
from gateway.migrate.assess import Assessment, Scan, assess
from gateway.migrate.connection import ClusterError, ClusterOptions, Connected, connect
from gateway.migrate.display import next_command
from gateway.migrate.proof import KINDS
from gateway.migrate.reading import read_documents
from gateway.migrate.report import ClusterInfo, missing, show
from gateway.migrate.report import as_json as report_of
from gateway.migrate.scan import Progress, scan
from gateway.migrate.upgrade import Documents, Offer, Refused, offers
from gateway.providers.base import MappingOptions
from gateway.routing.table import read_routes

_EXAMPLES = """\
mlc-gateway agents --url http://127.0.0.1:9200
mlc-gateway agents -c config/gateway.yaml --require image,document --type conversational
mlc-gateway agents --url https://search.example.org --user reader my-agent-id --json | jq .summary
mlc-gateway agents --url https://search.example.org --aws-service es --aws-region us-east-1 --out agents.json"""


class _Kinds(click.ParamType[tuple[str, ...]]):
    """A comma-separated list of kinds of input."""

    name = "kinds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the kinds; fail on one that does not exist."""
        kinds = tuple(kind.strip() for kind in value.split(",") if kind.strip())
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            self.fail(f"{unknown[0]!r} is not a kind of input. Choose from {', '.join(KINDS)}.", param, ctx)
        return kinds

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete the last kind of the list."""
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{kind}") for kind in KINDS if kind.startswith(last)]


@click.command("agents", cls=Command, examples=_EXAMPLES)
@click.argument(
    "agents",
    nargs=-1,
    metavar="[AGENT]...",
    help="Ids, their beginnings, or names; connectors/ID: all agents that use it (default: all that a search finds).",
)
@click.option("--type", "types", multiple=True, metavar="TYPE", help="List only agents of this type; may be repeated.")
@click.option(
    "--require",
    type=_Kinds(),
    multiple=True,
    metavar="KIND[,KIND]",
    help=f"Exit with 1 unless every listed agent accepts these kinds of input: {', '.join(KINDS)}.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also show ids, providers, limits and remedies.")
@form_options
@click.option("--out", type=FILE, metavar="FILE", help="Also write the JSON to FILE.")
@cluster_options
def command(
    cluster: ClusterOptions,
    agents: tuple[str, ...],
    types: tuple[str, ...],
    require: tuple[tuple[str, ...], ...],
    verbose: bool,
    as_json: bool,
    out: Path | None,
) -> int:
    """List what each agent of a cluster accepts through the gateway.

    Print a table on a terminal, and JSON to a pipe or a file.
    """
    required = tuple(dict.fromkeys(kind for kinds in require for kind in kinds))
    try:
        connected = connect(cluster)
        check_rules(connected.settings)
        info, found, upgrades = _found(connected, agents, types)
        report = report_of(info, found, required, upgrades)
        if out:
            out.write_text(to_json(report), "utf-8")
    except (ClusterError, ConfigError, OSError) as error:
        return fail("agents", 2, str(error))
    if as_json:
        print_json(report)
    else:
        show(PlainConsole(), info, found, required, verbose, upgrades)
    if missing(found, required):
        return 1
    return 3 if report["summary"]["unreadable"] and not required else 0


_Found = tuple[ClusterInfo, list[Assessment], list[Offer | Refused] | None]


def _found(cluster: Connected, given: Sequence[str], types: Sequence[str]) -> _Found:
    """Read and assess the agents `given` by id or name (all, if there are none) of the `types`.

    The last item is what `mlc-gateway upgrade` offers for them; None if it could not read what it needs.
    """
    settings = cluster.settings
    rules = tuple(Rule(rule.agent, rule.provider or None, rule.delivery) for rule in settings.agents.rules)
    with _bar() as progress:
        scanned = scan(cluster, cluster.version, given, rules, progress)
    options = MappingOptions(settings.agents.roles, settings.agents.allow_prefill)
    routes = read_routes(settings.agents)
    found = assess(scanned, options, rules, routes, partial(next_command, cluster.options, "upgrade"))
    info = ClusterInfo(cluster.name, cluster.url, cluster.version, scanned.unified_api, scanned.notes)
    # An agent that can't be read may be of any type: never leave it out.
    wanted = {type_.lower() for type_ in types}
    shown = [one for one in found if not wanted or one.agent.type in wanted or not one.agent.type]
    try:
        documents = _documents(cluster, scanned, [one.agent.id for one in shown], rules)
    except ClusterError:
        return info, shown, None
    return info, shown, offers(documents, [one.agent.id for one in shown], "0" * 32)


def _documents(cluster: Connected, scanned: Scan, ids: Sequence[str], rules: tuple[Rule, ...]) -> Documents:
    """Return what an upgrade of these agents needs: read already, unless others use their connectors.

    Raises:
        ClusterError: it can't be read.
    """
    sharing = {model for models in scanned.users.values() for model in models}
    if len(ids) == len(scanned.documents) and sharing <= scanned.models.keys():
        everything = scanned.documents, scanned.models, scanned.connectors
        return Documents(scanned.version, *everything, rules, scanned.unified_api)
    return read_documents(cluster, cluster.version, ids, rules)


@contextmanager
def _bar() -> Iterator[Progress]:
    """Show a progress bar on standard error if that is a terminal."""
    with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        tasks: dict[str, Any] = {}

        def update(kind: str, done: int, total: int) -> None:
            if kind not in tasks:
                tasks[kind] = bar.add_task(f"reading {kind}", total=total)
            bar.update(tasks[kind], completed=done, total=total)

        yield update

"""``mlc-gateway agents``: what each agent of a cluster can take, by which way, what limits it and what mends it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress as Bar

from gateway.agents.rules import Rule
from gateway.config.load import ConfigError
from gateway.execute.build import check_rules
from gateway.migrate.assess import Assessment, assess
from gateway.migrate.connection import ClusterError, Connected, connect
from gateway.migrate.connection import add_arguments as add_cluster
from gateway.migrate.report import ClusterInfo, as_json, missing, show
from gateway.migrate.samples import KINDS
from gateway.migrate.scan import Progress, scan
from gateway.providers.base import MappingOptions

NAME = "agents"
HELP = (
    "List what each agent of a cluster can take through the gateway: a table on a terminal, else JSON. "
    "Exit 1 when a required kind of input can't reach an agent, 3 when agents can't be read, 2 for anything else."
)
EXAMPLES = """  mlc-gateway agents --url http://127.0.0.1:9200
  mlc-gateway agents -c config/gateway.yaml --require image,document --type conversational
  mlc-gateway agents --url https://search.example.org --user reader my-agent-id --json | jq .summary
  mlc-gateway agents --url https://search.example.org --aws-service es --aws-region us-east-1 --out agents.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("ids", nargs="*", metavar="AGENT", help="ids of agents (all that a search shows)")
    parser.add_argument("--type", action="append", default=[], metavar="TYPE", help="only agents of this type")
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="KIND[,KIND]",
        help=f"exit 1 unless each listed agent takes it: {', '.join(KINDS)}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on a terminal, too")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to FILE, too")
    add_cluster(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table; 0, 1 or 3 as the command's help says, 2 when an option is wrong or the cluster can't be read."""
    try:
        required = _required(args.require)
        cluster = connect(args)
        check_rules(cluster.settings)
        info, found = _found(cluster, args)
        report = as_json(info, found, required)
        if args.out:
            args.out.write_text(_text(report))
    except (ClusterError, ConfigError, OSError) as error:
        sys.stderr.write(f"mlc-gateway agents: {error}\n")
        return 2
    if args.json or not sys.stdout.isatty():
        sys.stdout.write(_text(report))
    else:
        show(Console(highlight=False), info, found, required)
    if missing(found, required):
        return 1
    return 3 if report["summary"]["unreadable"] and not required else 0


def _required(options: list[str]) -> tuple[str, ...]:
    kinds = [kind.strip() for option in options for kind in option.split(",") if kind.strip()]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ClusterError(f"--require {unknown[0]}: there is no such kind of input; there are: {', '.join(KINDS)}")
    return tuple(dict.fromkeys(kinds))


def _found(cluster: Connected, args: argparse.Namespace) -> tuple[ClusterInfo, list[Assessment]]:
    settings = cluster.settings
    rules = tuple(Rule(rule.agent, rule.provider or None, rule.delivery) for rule in settings.agents.rules)
    with _bar() as progress:
        scanned = scan(cluster, cluster.version, args.ids, rules, progress)
    options = MappingOptions(settings.agents.roles, settings.agents.allow_prefill)
    found = assess(scanned, options, rules, settings.agents.aliases)
    info = ClusterInfo(cluster.name, cluster.url, cluster.version, scanned.unified_api, scanned.notes)
    # An agent that can't be read may be of any type: it is never left out.
    kept = [one for one in found if not args.type or one.agent.type in args.type or not one.agent.type]
    return info, kept


@contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar on standard error, where that is a terminal."""
    with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        tasks: dict[str, Any] = {}

        def told(kind: str, done: int, total: int) -> None:
            if kind not in tasks:
                tasks[kind] = bar.add_task(f"reading {kind}", total=total)
            bar.update(tasks[kind], completed=done, total=total)

        yield told


def _text(report: dict[str, Any]) -> str:
    return json.dumps(report, ensure_ascii=False, indent=2) + "\n"

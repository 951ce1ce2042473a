"""``mlc-gateway cleanup``: shows, and removes, what registrations through the gateway left behind."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.migrate.cleanup import OLD, Leftover, leftovers, remove
from gateway.migrate.connection import ClusterError, connect
from gateway.migrate.connection import add_arguments as add_cluster

NAME = "cleanup"
HELP = (
    "List models, connectors and agents that registrations through the gateway left behind, and with --apply remove "
    "them; exit 1 when any can't be removed, 2 when the cluster can't be read. Nothing without the gateway's tag is "
    "touched."
)
EXAMPLES = """  mlc-gateway cleanup --url http://127.0.0.1:9200
  mlc-gateway cleanup -c config/gateway.yaml --older-than 60 --apply"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--apply", action="store_true", help="remove them; without it they are only listed")
    parser.add_argument(
        "--older-than",
        type=_minutes,
        default=OLD,
        metavar="MINUTES",
        help=f"leave alone what was written since, as it may belong to a registration under way ({OLD / 60:g})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on a terminal, too")
    add_cluster(parser)


def run(args: argparse.Namespace) -> int:
    """List or remove; 0, 1 when something could not be removed, 2 when the cluster can't be read."""
    try:
        cluster = connect(args)
        found = leftovers(cluster, args.older_than)
        if args.apply:
            found = list(remove(cluster, found, args.older_than))
    except ClusterError as error:
        sys.stderr.write(f"mlc-gateway cleanup: {error}\n")
        return 2
    if args.json or not sys.stdout.isatty():
        sys.stdout.write(json.dumps(_report(found, args.apply), ensure_ascii=False, indent=2) + "\n")
    else:
        _show(found, args.apply)
    return 1 if any(one.outcome == "failed" for one in found) else 0


def _minutes(text: str) -> float:
    """An option in minutes, as seconds."""
    minutes = float(text)
    if not 0 <= minutes < float("inf"):
        raise ValueError(text)
    return minutes * 60


def _report(found: list[Leftover], applied: bool) -> dict[str, Any]:
    return {"applied": applied, "leftovers": [one.as_dict() for one in found]}


def _show(found: list[Leftover], applied: bool) -> None:
    console = Console(highlight=False, markup=False)
    if not found:
        console.print("Nothing is left behind.")
        return
    table = Table("what", "id", "name", "age", "why", *(["outcome"] if applied else []), pad_edge=False)
    for one in found:
        outcome = [f"{one.outcome} {one.error}".strip()] if applied else []
        table.add_row(one.kind.removesuffix("s"), one.id, one.name, f"{one.age / 60:.0f} min", one.reason, *outcome)
    console.print(table)
    if not applied:
        console.print(f"{len(found)} left behind; --apply removes them.")

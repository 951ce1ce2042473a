"""``mlc-gateway cleanup``: list and remove what unfinished registrations left on the cluster."""

from __future__ import annotations

import math
from typing import Any

import click

from gateway.cli.cluster import cluster_options
from gateway.cli.command import Command
from gateway.cli.output import PlainConsole, fail, form_options, print_json, show_rows
from gateway.migrate.cleanup import OLD, Leftover, leftovers, remove
from gateway.migrate.connection import ClusterError, ClusterOptions, connect
from gateway.migrate.search import words

_EXAMPLES = """\
mlc-gateway cleanup --url http://127.0.0.1:9200
mlc-gateway cleanup -c config/gateway.yaml --older-than 60 --apply"""


def _seconds(ctx: click.Context, param: click.Parameter, minutes: float) -> float:
    """Convert an option from minutes to seconds."""
    if not math.isfinite(minutes) or minutes < 0:
        raise click.BadParameter("must be a number of minutes, 0 or more")
    return minutes * 60


@click.command("cleanup", cls=Command, examples=_EXAMPLES)
@click.option("--apply", is_flag=True, help="Remove them. Without it, they are only listed.")
@click.option(
    "--older-than",
    type=float,
    default=OLD / 60,
    callback=_seconds,
    metavar="MINUTES",
    help=f"Skip what was written more recently: its registration may still be running (default: {OLD / 60:g}).",
)
@form_options
@cluster_options
def command(cluster: ClusterOptions, apply: bool, older_than: float, as_json: bool) -> int:
    """List the models, model groups, connectors and agents that unfinished registrations left on the cluster.

    With --apply, remove them. Only what bears the gateway's tag is listed or removed.
    """
    removed: list[Leftover] = []
    try:
        connected = connect(cluster)
        found = leftovers(connected, older_than)
        if apply:
            removed.extend(remove(connected, found, older_than))  # has those before an error, too
            found = removed
    except ClusterError as error:
        if removed:
            _print(removed, apply, as_json)
        return fail("cleanup", 2, str(error))
    _print(found, apply, as_json)
    return 1 if any(one.outcome == "failed" for one in found) else 0


def _print(found: list[Leftover], applied: bool, as_json: bool) -> None:
    if as_json:
        print_json(_report(found, applied))
    else:
        _show(found, applied)


def _report(found: list[Leftover], applied: bool) -> dict[str, Any]:
    return {"applied": applied, "leftovers": [one.as_dict() for one in found]}


def _show(found: list[Leftover], applied: bool) -> None:
    console = PlainConsole()
    if not found:
        console.print("Nothing to remove.")
        return
    rows = [
        (
            words(one.kind).removesuffix("s"),
            one.id,
            one.name,
            f"{one.age / 60:.0f} min",
            one.reason,
            f"{one.outcome} {one.error}".strip() if applied else "",
        )
        for one in found
    ]
    show_rows(console, ("what", "id", "name", "age", "why", "outcome"), rows, naming=2)
    if not applied:
        console.print(f"{len(found)} to remove; run again with --apply to remove them.")

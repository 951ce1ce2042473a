"""``mlc-gateway shift``: the targets of a route side by side, and how they share new conversations."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import asdict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.command import FILE, PERCENT, Command
from gateway.cli.output import PlainConsole, fail, plural, print_json, show_rows, table_of
from gateway.config.edit import EditError
from gateway.config.load import ConfigError, load
from gateway.config.schema import AgentRoute, Listen, Settings
from gateway.migrate.connection import ClusterError, ClusterOptions, connect
from gateway.migrate.gateways import ADMIN_TOKEN, AdminPort, GatewayFailed, admin_ports
from gateway.migrate.reading import NoSuchAgent, agent_ids
from gateway.migrate.route_figures import Figures, Reading, counts_since, figures_of, sum_counts
from gateway.migrate.search import search_all
from gateway.migrate.settings_file import SettingsFile, locked
from gateway.migrate.shift import (
    UPSTREAM,
    Change,
    NoRoute,
    Reloaded,
    Result,
    ShiftError,
    carry_out,
    find_route,
    plan_back,
    plan_to,
    read_all,
    shares_of,
    weights_of,
)
from gateway.migrate.shift_history import History, HistoryError, Step, Weights, same

_EXAMPLES = """\
mlc-gateway shift -c config/gateway.yaml
mlc-gateway shift -c config/gateway.yaml my-agent
mlc-gateway shift -c config/gateway.yaml my-agent --to new --percent 5
mlc-gateway shift -c config/gateway.yaml my-agent --max-error-ratio 0.02 --min-runs 200
mlc-gateway shift -c config/gateway.yaml my-agent --back"""
_WORSE, _NOT_JUDGED, _UNDONE, _UNFINISHED = 1, 3, 3, 4
"""Exit codes."""
_SIDE_BY_SIDE = 3
"""Targets in one table."""


class _Options(msgspec.Struct, frozen=True):
    """The command's own options."""

    agent: str
    config: Path
    to: str | None
    percent: float | None
    back: bool
    history: bool
    dry_run: bool
    gateways: tuple[str, ...]
    wait: float
    max_error_ratio: float | None
    min_runs: int
    json: bool

    @property
    def changes(self) -> bool:
        return self.back or self.to is not None


@click.command("shift", cls=Command, examples=_EXAMPLES)
@click.argument(
    "agent",
    required=False,
    default="",
    metavar="[AGENT]",
    help="The id that clients send, its beginning, or the agent's name (default: list all routes).",
)
@click.option("-c", "--config", type=FILE, required=True, metavar="FILE", help="The gateways' settings file, YAML.")
@click.option(
    "--to",
    metavar="TARGET",
    help="Change the share of this target, with --percent: its id, the beginning of it, or the name of its cluster "
    "(`upstream`, or one of `clusters`) if no other target is there.",
)
@click.option(
    "--percent",
    type=PERCENT,
    metavar="PERCENT",
    help="Its share of new conversations. The other targets share the rest in the proportions that they have.",
)
@click.option("--back", is_flag=True, help="Go back to the weights before the last change; repeat it to go further.")
@click.option("--history", is_flag=True, help="List the changes that were made.")
@click.option("--dry-run", is_flag=True, help="Only show what --to or --back would change in the file.")
@click.option(
    "--gateway",
    "gateways",
    multiple=True,
    envvar="MLC_GATEWAYS",
    metavar="URL",
    help="Admin port of a gateway that runs with these settings; may be repeated (default: the one of the settings). "
    f"MLC_GATEWAYS holds several, with spaces between them, and {ADMIN_TOKEN} their token.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=60.0,
    metavar="SECONDS",
    help="How long to wait until the changed file has reached all gateways (default: 60).",
)
@click.option(
    "--max-error-ratio",
    type=click.FloatRange(0, 1),
    metavar="RATIO",
    help="Exit with 1 if a target other than AGENT itself has more errors among its runs, from 0 to 1.",
)
@click.option(
    "--min-runs",
    type=click.IntRange(1),
    default=50,
    metavar="N",
    help="Judge a target only after so many runs since the last change (default: 50).",
)
@click.option("--json", is_flag=True, help="Print JSON.")
def command(**options: Any) -> int:
    """Show what the targets of a route did since its weights were changed, or change the weights.

    A change edits the settings file, whose comments stay and of which a backup is kept, has the gateways reload it,
    and waits until all run with it. Conversations stay with the target that began them.
    """
    chosen = _Options(**options)
    _check_usage(chosen)
    try:
        if chosen.changes:
            with locked(chosen.config):
                return _change(chosen)
        settings = load(chosen.config, secrets_of="agents.routes")  # it has none: they need not be here
        if not chosen.agent:
            return _list_routes(settings.agents.routes, chosen)
        route = _route(settings, chosen)
        history = History.read(Path(os.path.realpath(chosen.config)))
        history.compare(route.agent, weights_of(route))
        if chosen.history:
            return _list(history.of(route.agent), route, chosen)
        return _compare(settings, route, history, chosen)
    except (ConfigError, EditError, GatewayFailed, HistoryError, ShiftError) as error:
        return fail("shift", 2, str(error))


def _route(settings: Settings, options: _Options) -> AgentRoute:
    """Return the route of the agent that has this id, or is called so on `upstream`.

    Raises:
        ShiftError: there is none.
    """
    try:
        return find_route(settings, options.agent)
    except NoRoute as error:
        try:
            [agent] = agent_ids(connect(ClusterOptions(config=options.config)), [options.agent])
        except NoSuchAgent:
            raise error from None
        except (ClusterError, ConfigError) as reason:
            raise ShiftError(f"{error}; the cluster can't be asked for an agent of this name: {reason}") from None
        return find_route(settings, agent)


def _check_usage(options: _Options) -> None:
    if sum((options.back, options.to is not None, options.history)) > 1:
        raise click.UsageError("Give only one of --to, --back and --history.")
    if (options.to is None) != (options.percent is None):
        raise click.UsageError("--to and --percent belong together.")
    if not options.agent and (options.changes or options.history or options.max_error_ratio is not None):
        raise click.UsageError("Name the AGENT whose route it is: without options, all are listed.")
    if options.dry_run and not options.changes:
        raise click.UsageError("--dry-run belongs to --to or --back.")
    if options.max_error_ratio is not None and (options.changes or options.history):
        raise click.UsageError("--max-error-ratio judges what was changed before: give it without --to and --back.")


def _ports(settings: Settings, options: _Options) -> dict[str, AdminPort]:
    """Return the gateways' admin ports by their addresses, without credentials."""
    urls = options.gateways or (own_address(settings.listen),)
    try:
        listen = load(options.config, secrets_of="listen").listen
    except ConfigError as error:  # it is not here: the gateways say if they need it, and how to give it
        listen = error.readable.listen if error.readable is not None else Listen()
    return {port.name: port for port in admin_ports(urls, listen.admin_token.reveal())}


def own_address(listen: Listen) -> str:
    """Return the address of the settings' admin port for this machine.

    Raises:
        ShiftError: the settings do not tell it.
    """
    host = listen.admin_host
    try:
        host = "127.0.0.1" if host == "" or ip_address(host).is_unspecified else host
        host = f"[{host}]" if ":" in host else host
    except ValueError:
        pass  # a name
    if not listen.admin_port:
        raise ShiftError("listen.admin_port is 0, so the settings do not tell the gateway's address: give --gateway")
    return f"http://{host}:{listen.admin_port}"


# Changes


def _change(options: _Options) -> int:
    file = SettingsFile.read(options.config)
    route = _route(file.settings, options)
    history = History.read(file.path)
    history.compare(route.agent, weights_of(route))
    if options.to is not None and options.percent is not None:
        change = plan_to(file, route, options.to, options.percent)
    else:
        change = plan_back(file, route, history)
    diff = file.diff(change.text)
    if options.dry_run:
        if options.json:
            print_json({**_change_json(change), "diff": diff})
        else:
            sys.stdout.write(f"{diff}\n" if diff else "Nothing would change.\n")
        return 0
    with _waiting():
        result = carry_out(change, file, history, _ports(file.settings, options), options.wait)
    if options.json:
        print_json({**_change_json(change), "diff": diff, **_result_json(result)})
    else:
        _show_change(PlainConsole(), change, result)
    return 0 if result.is_done else _UNDONE if result.undone else _UNFINISHED


def _waiting() -> AbstractContextManager[object]:
    """Show that the command waits, on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    return Console(stderr=True).status("waiting until all gateways run with the new weights")


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "route": change.route.agent,
        "kind": change.kind,
        "before": dict(change.before),
        "after": dict(change.after),
        "changed": change.is_new,
    }


def _result_json(result: Result) -> dict[str, Any]:
    gateways = [{**one._asdict(), "problems": list(one.problems)} for one in result.gateways]
    backup = str(result.backup) if result.backup is not None else None
    return {"done": result.is_done, "undone": result.undone, "backup": backup, "gateways": gateways}


def _show_change(console: Console, change: Change, result: Result) -> None:
    title, style = f"Route of {change.route.agent}:", "bold"
    if result.undone:
        title, style = f"{title} refused, and everything is as it was before", "red"
    elif not change.is_new:
        title = f"{title} the settings file has these shares already"
    console.print(Text(title, style), soft_wrap=True)
    for line in _changes(change.before, change.after, change.route):
        console.print(f"  {line}", soft_wrap=True)
    for one in result.gateways:
        console.print(_gateway_line(one, result.undone), soft_wrap=True)
    if result.backup is not None:
        console.print(Text(f"The file as it was: {result.backup}", "dim"), soft_wrap=True)
    if not result.undone and not result.is_done:
        hint = "Not all gateways run with these settings. Run the same command again when they can be reached."
        console.print(Text(hint, "red"), soft_wrap=True)


def _gateway_line(one: Reloaded, undone: bool) -> Text:
    reasons = "; ".join(one.problems)
    match one.status:
        case "runs":
            line = "runs with the settings from before" if undone else "runs with it"
            return Text(f"gateway {one.gateway}: {line}", "" if undone else "green")
        case "refused":
            return Text(f"gateway {one.gateway}: refused the settings: {reasons}", "red")
        case "waits" | "failed":
            return Text(f"gateway {one.gateway}: {reasons}", "red")


def _changes(before: Weights, after: Weights, route: AgentRoute) -> Iterator[str]:
    """Yield a line for each target: its share of new conversations before and after."""
    old, new = shares_of(before), shares_of(after)
    where = {target.agent: f" on {target.cluster or UPSTREAM}" for target in route.targets}
    for agent in {**old, **new}:
        yield f"{agent}{where.get(agent, '')}: {_percent(old.get(agent, 0))} → {_percent(new.get(agent, 0))}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


# The routes


def _list_routes(routes: Sequence[AgentRoute], options: _Options) -> int:
    rows = [(route, target, shares_of(weights_of(route))[target.agent]) for route in routes for target in route.targets]
    if options.json:
        targets = [
            {"route": route.agent, "agent": target.agent, "cluster": target.cluster, "share": share}
            for route, target, share in rows
        ]
        print_json({"targets": targets})
    elif not rows:
        sys.stdout.write("The settings have no route: `mlc-gateway move` adds one.\n")
    else:
        names = _names(options)
        shown = [
            (names.get(route.agent, ""), route.agent, target.agent, target.cluster or UPSTREAM, _percent(share))
            for route, target, share in rows
        ]
        titles, first = ("name", "route", "target", "on", "share"), 0 if names else 1
        show_rows(PlainConsole(), titles[first:], [row[first:] for row in shown], naming=3 - first)
    return 0


def _names(options: _Options) -> Mapping[str, str]:
    """Return the names of the agents of `upstream`; none if it does not show them."""
    try:
        cluster = connect(ClusterOptions(config=options.config))
        return {id_: str(agent.get("name", "")) for id_, agent in search_all(cluster, "agents", source=("name",))}
    except (ClusterError, ConfigError):
        return {}


# The history


def _list(steps: Sequence[Step], route: AgentRoute, options: _Options) -> int:
    if options.json:
        rows = [{name: value for name, value in asdict(step).items() if name != "gateways"} for step in steps]
        print_json({"route": route.agent, "steps": rows})
        return 0
    console = PlainConsole()
    if not steps:
        console.print(f"No change of the route of {route.agent} was made by this command.")
        return 0
    table = table_of()
    table.add_column("time (UTC)", no_wrap=True)
    table.add_column("change", no_wrap=True)
    table.add_column("shares of new conversations", overflow="fold")
    for step in steps:
        kind = {"to": "--to", "back": "--back", "hand": "by hand"}[step.kind] + ("" if step.done else ", not finished")
        table.add_row(_time(step), kind, "\n".join(_changes(step.before, step.after, route)))
    console.print(table)
    return 0


def _time(step: Step) -> str:
    return step.time.removesuffix("+00:00").replace("T", " ")


# The comparison


class _Row(msgspec.Struct, frozen=True):
    """A target. in_effect: the share that each gateway gives it, where that differs from the settings file's."""

    agent: str
    cluster: str
    weight: float
    share: float
    figures: Figures
    judged: bool


def _compare(settings: Settings, route: AgentRoute, history: History, options: _Options) -> int:
    ports = _ports(settings, options)
    readings = read_all(ports, route.agent)
    last = history.last(route.agent)
    since = last if last is not None and last.kind != "hand" else None
    counts = sum_counts(
        counts_since(reading.processes, since.counters(url) if since is not None else {})
        for url, reading in readings.items()
    )
    shares = shares_of(weights_of(route))
    rows = []
    for target in route.targets:
        figures = figures_of(counts, target.agent, target.cluster)
        judged = target.agent != route.agent and target.weight > 0 and figures.runs >= options.min_runs
        rows.append(_Row(target.agent, target.cluster, target.weight, shares[target.agent], figures, judged))
    others = [url for url, reading in readings.items() if not _runs_with(reading, shares)]
    status, verdict = _judge(rows, route, options)
    if options.json:
        print_json(_report(rows, route, since, list(readings), others, options, status))
    else:
        _show(PlainConsole(), rows, route, since, len(readings), others, verdict)
    return status


def _runs_with(reading: Reading, shares: Mapping[str, float]) -> bool:
    return bool(reading.shares) and all(same(process, shares) for process in reading.shares.values())


def _judge(rows: Sequence[_Row], route: AgentRoute, options: _Options) -> tuple[int, str]:
    """Return the exit code, and the verdict in a sentence; "" without --max-error-ratio."""
    limit = options.max_error_ratio
    if limit is None:
        return 0, ""
    tried = [row for row in rows if row.agent != route.agent and row.weight]
    worse = [row for row in tried if row.judged and (row.figures.error_ratio or 0) > limit]
    if worse:
        names = ", ".join(f"{row.agent} ({_percent(row.figures.error_ratio or 0)})" for row in worse)
        return _WORSE, f"More errors than {_percent(limit)}: {names}."
    if not tried:
        return _NOT_JUDGED, f"Nothing to judge: no target but {route.agent} gets new conversations."
    if missing := [row for row in tried if not row.judged]:
        names = ", ".join(f"{row.agent} ({row.figures.runs:,})" for row in missing)
        least = f"{options.min_runs:,} {plural(options.min_runs, 'run')}"
        return _NOT_JUDGED, f"Not judged, as there were fewer than {least}: {names}."
    return 0, f"No more errors than {_percent(limit)}: {', '.join(row.agent for row in tried)}."


def _report(
    rows: Sequence[_Row],
    route: AgentRoute,
    since: Step | None,
    gateways: Sequence[str],
    others: Sequence[str],
    options: _Options,
    status: int,
) -> dict[str, Any]:
    met = {0: True, _WORSE: False}.get(status) if options.max_error_ratio is not None else None
    return {
        "route": route.agent,
        "since": since.time if since is not None else None,
        "gateways": [{"gateway": url, "in_effect": url not in others} for url in gateways],
        "targets": [
            {
                "agent": row.agent,
                "cluster": row.cluster,
                "weight": row.weight,
                "share": row.share,
                **asdict(row.figures),
                "error_ratio": row.figures.error_ratio,
                "judged": row.judged,
            }
            for row in rows
        ],
        "max_error_ratio": options.max_error_ratio,
        "min_runs": options.min_runs,
        "met": met,
    }


def _show(
    console: Console,
    rows: Sequence[_Row],
    route: AgentRoute,
    since: Step | None,
    gateways: int,
    others: Sequence[str],
    verdict: str,
) -> None:
    if since is not None:
        minutes = (datetime.now(UTC) - datetime.fromisoformat(since.time)).total_seconds() / 60
        when = f"since {_time(since)} UTC ({minutes:,.0f} min)"
    else:
        when = "since the gateways started: no change of its weights is recorded"
    where = f" on {gateways} gateways" if gateways > 1 else ""
    console.print(Text(f"Route of {route.agent}{where}, {when}", "bold"), soft_wrap=True)
    for first in range(0, len(rows), _SIDE_BY_SIDE):
        console.print(_table(rows[first : first + _SIDE_BY_SIDE]))
    for url in others:
        line = f"gateway {url} runs with other weights than the settings file: reload it (POST {url}/reload)"
        console.print(Text(line, "yellow"), soft_wrap=True)
    if verdict:
        console.print(Text(verdict), soft_wrap=True)


def _table(rows: Sequence[_Row]) -> Table:
    table = table_of()
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(Text(f"{row.agent}\non {row.cluster or UPSTREAM}"), overflow="fold")
    figures = [row.figures for row in rows]
    table.add_row("share", *(_percent(row.share) for row in rows))
    table.add_row("runs", *(f"{one.runs:,}" for one in figures))
    table.add_row("errors", *map(_errors, figures))
    table.add_row("p50", *(_seconds(one.p50) for one in figures))
    table.add_row("p95", *(_seconds(one.p95) for one in figures))
    table.add_row("tokens in", *(f"{one.input_tokens:,}" for one in figures))
    table.add_row("tokens out", *(f"{one.output_tokens:,}" for one in figures))
    table.add_row("cost", *map(_cost, figures))
    table.add_row("refusals", *(f"{one.refusals:,}" for one in figures))
    return table


def _errors(figures: Figures) -> Text:
    ratio = figures.error_ratio
    text = f"{figures.errors:,}" + (f" ({100 * ratio:.3g} %)" if ratio else "")
    return Text(text, "red" if figures.errors else "")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{1000 * value:.0f} ms" if value < 1 else f"{value:.3g} s"


def _cost(figures: Figures) -> str:
    return ", ".join(f"{amount:,.4f} {currency}" for currency, amount in figures.cost.items()) or "–"

"""``mlc-gateway agents``: what each agent of a cluster accepts, what limits it and how to change that.

The report is one object: ``cluster`` {name, url, version, unified_api, notes[]}, ``agents`` [], ``summary``. An agent
that can be read: {id, name, type, readable: true, generation, provider {name, source}, models [{id, connector {id,
kind, shared_by}, template}], memory, abilities {KIND: {arrives, strategy, notices[]} or {arrives, code, reason}},
remedies [{kind, action, gains[]}], led_from[], route[]}. Any other: {id, name, type, readable: false, code, reason,
help, led_from[], route[]}. The summary: {agents, readable, unreadable, abilities {KIND: count that arrives}, codes
{CODE: count of agents}, required {kinds[], met, missing [{id, kinds[]}]}, upgrades {connectors, upgradable, agents,
images}}. Agents are sorted by name, then id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gateway.agents.documents import Rule
from gateway.cli.cluster import cluster_options, rules_of
from gateway.cli.command import FILE, Command
from gateway.cli.output import PlainConsole, fail, form_options, plural, print_json, progress_bar, to_json
from gateway.config.load import ConfigError
from gateway.execute.build import check_rules
from gateway.migrate.assess import Ability, Assessment, Scan, assess
from gateway.migrate.connection import ClusterError, ClusterOptions, Connected, connect
from gateway.migrate.display import counts, next_command, upgrades_line
from gateway.migrate.proof import KINDS
from gateway.migrate.reading import Progress, read_documents, scan
from gateway.migrate.upgrade import Documents, Offer, Refused, offers
from gateway.providers.base import MappingOptions
from gateway.routing.table import read_routes, shares

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
        report = as_report(info, found, required, upgrades)
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


def _found(
    cluster: Connected, given: Sequence[str], types: Sequence[str]
) -> tuple[ClusterInfo, list[Assessment], list[Offer | Refused] | None]:
    """Read and assess the agents `given` by id or name (all, if there are none) of the `types`.

    The last item is what `mlc-gateway upgrade` offers for them; None if it could not read what it needs.
    """
    settings = cluster.settings
    rules = rules_of(cluster)
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
    """Show a progress bar. The value is called with what was read."""
    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def update(kind: str, done: int, total: int) -> None:
            if kind not in tasks:
                tasks[kind] = bar.add_task(f"reading {kind}", total=total)
            bar.update(tasks[kind], completed=done, total=total)

        yield update


class ClusterInfo(msgspec.Struct, frozen=True):
    """What the report says of the cluster. notes: what its reader should know."""

    name: str
    url: str
    version: tuple[int, ...]
    unified_api: bool | None
    notes: tuple[str, ...] = ()


def missing(assessments: Sequence[Assessment], required: Sequence[str]) -> dict[str, list[str]]:
    """Map agent ids to the required kinds that the agent does not accept: all of them if it can't be read."""
    lacking = {
        one.agent.id: [kind for kind in required if not one.abilities.get(kind, Ability()).arrives]
        for one in assessments
    }
    return {id_: kinds for id_, kinds in lacking.items() if kinds}


def as_report(
    cluster: ClusterInfo,
    assessments: Sequence[Assessment],
    required: Sequence[str] = (),
    upgrades: Sequence[Offer | Refused] | None = None,
) -> dict[str, Any]:
    """Return the report, in the form that the module's docstring describes."""
    found = summary(assessments, required)
    if upgrades is not None:
        found["upgrades"] = counts(upgrades)
    return {
        "cluster": {
            "name": cluster.name,
            "url": cluster.url,
            "version": ".".join(map(str, cluster.version)),
            "unified_api": cluster.unified_api,
            "notes": list(cluster.notes),
        },
        "agents": [_agent(one) for one in assessments],
        "summary": found,
    }


def _agent(one: Assessment) -> dict[str, Any]:
    agent, profile = one.agent, one.agent.profile
    named = {"id": agent.id, "name": agent.name, "type": agent.type}
    routes = {"led_from": list(one.led_from), "route": _route(one)}
    if profile is None:
        why = agent.unreadable
        reason = {"code": why.code, "reason": why.reason, "help": why.help} if why else {}
        return {**named, "readable": False, **reason, **routes}
    return {
        **named,
        "readable": True,
        "generation": profile.generation.value,
        "provider": {"name": profile.provider, "source": profile.provider_source},
        "models": [
            {
                "id": use.id,
                "connector": {
                    "id": use.connector_id,
                    "kind": "standalone" if use.connector_id else "internal",
                    "shared_by": use.shared_by,
                },
                "template": use.template,
            }
            for use in one.models
        ],
        "memory": profile.memory_type,
        "abilities": {kind: ability_as_json(ability) for kind, ability in one.abilities.items()},
        "remedies": [{"kind": r.kind, "action": r.action, "gains": list(r.gains)} for r in one.remedies],
        **routes,
    }


def _route(one: Assessment) -> list[dict[str, Any]]:
    """Return the targets of the agent's id, with their shares of new conversations."""
    parts = shares([one.route] if one.route is not None else [])
    return [{"agent": agent, "cluster": cluster, "share": part} for (_, agent, cluster), part in parts.items()]


def ability_as_json(ability: Ability) -> dict[str, Any]:
    """Return the entry of one kind of input."""
    if ability.arrives:
        return {"arrives": True, "strategy": ability.strategy, "notices": list(ability.notices)}
    return {"arrives": False, "code": ability.code, "reason": ability.reason}


def summary(assessments: Sequence[Assessment], required: Sequence[str]) -> dict[str, Any]:
    """Return the counts over all agents."""
    readable = [one for one in assessments if one.agent.profile is not None]
    lacking = missing(assessments, required)
    return {
        "agents": len(assessments),
        "readable": len(readable),
        "unreadable": len(assessments) - len(readable),
        "abilities": {kind: sum(one.abilities[kind].arrives for one in readable) for kind in KINDS},
        "codes": dict(sorted(Counter(code for one in assessments for code in codes(one)).items())),
        "required": {
            "kinds": list(required),
            "met": not lacking,
            "missing": [{"id": id_, "kinds": kinds} for id_, kinds in lacking.items()],
        },
    }


def codes(one: Assessment) -> list[str]:
    """Return the short codes of what limits an agent, each once."""
    if one.agent.unreadable is not None:
        return [one.agent.unreadable.code]
    return list(dict.fromkeys(ability.code for ability in one.abilities.values() if ability.code))


_NARROW = 76
"""Columns below which each agent gets two lines instead of a row."""


def show(
    console: Console,
    cluster: ClusterInfo,
    assessments: Sequence[Assessment],
    required: Sequence[str] = (),
    verbose: bool = False,
    upgrades: Sequence[Offer | Refused] | None = None,
) -> None:
    """Print a summary, the table, and what needs attention; verbose: also each agent's details.

    upgrades: what `mlc-gateway upgrade` offers for the agents; None: unknown.
    """
    version = ".".join(map(str, cluster.version))
    console.print(Text(f"{cluster.name or 'cluster'} {version} at {cluster.url}"))
    if assessments:
        console.print(Text(summary_line(assessments), "bold"))
    if upgrades:
        console.print(Text(upgrades_line(upgrades), "bold"))
    names = _names(assessments)
    if not assessments:
        console.print(Text("No agent was found.", "bold"))
    elif console.width >= _NARROW:
        console.print(_table(assessments, names, console.options.ascii_only))
    else:
        for one, name in zip(assessments, names, strict=True):
            console.print(Text(name, "bold"))
            console.print(_indented(_marks(one, console.options.ascii_only)))
    if verbose:
        for line in _details(assessments):
            console.print(line, soft_wrap=isinstance(line, Text) and bool(line.no_wrap))
    for line in _footer(cluster, assessments, required, verbose):
        console.print(line)


def summary_line(assessments: Sequence[Assessment]) -> str:
    """Return the counts in one line: agents, text, images."""
    counts = summary(assessments, ())
    text, images = counts["abilities"]["text"], counts["abilities"]["image"]
    line = f"{counts['agents']} {plural(counts['agents'], 'agent')}"
    if counts["unreadable"]:
        line += f", {counts['unreadable']} of which can't be read"
    line += f": {text} {'takes' if text == 1 else 'take'} text, {images} {'takes ' if images == 1 else ''}images"
    return line


def _names(assessments: Sequence[Assessment]) -> list[str]:
    """Return what names each agent: its name; with its id, if other agents have the same name."""
    shared = Counter(map(_name, assessments))
    return [
        _name(one) if shared[_name(one)] == 1 or not one.agent.name else f"{one.agent.name}\n{one.agent.id}"
        for one in assessments
    ]


def _table(assessments: Sequence[Assessment], names: Sequence[str], ascii_only: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("agent", overflow="fold")
    for kind in KINDS:
        table.add_column(kind, no_wrap=True, justify="center")
    for one, name in zip(assessments, names, strict=True):
        table.add_row(Text(name), *(_mark(one, kind, ascii_only) for kind in KINDS))
    return table


def _mark(one: Assessment, kind: str, ascii_only: bool) -> Text:
    if kind not in one.abilities:
        return Text("?", "yellow")
    if one.abilities[kind].arrives:
        return Text("yes" if ascii_only else "✓", "green")
    return Text("no" if ascii_only else "✗", "red")


def _marks(one: Assessment, ascii_only: bool) -> Text:
    """Return all marks of an agent in one line, for a narrow terminal."""
    return Text("  ").join(Text(f"{kind} ").append_text(_mark(one, kind, ascii_only)) for kind in KINDS)


def _name(one: Assessment) -> str:
    return one.agent.name or one.agent.id


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2))


def _details(assessments: Sequence[Assessment]) -> Iterator[Text | Padding]:
    for one in assessments:
        yield Text(" ".join(filter(None, [one.agent.name, one.agent.id])), "bold")
        yield from (_indented(Text(line)) for line in _properties(one))
        yield from _remedies(one)
    reasons = {
        ability.code: ability.reason for one in assessments for ability in one.abilities.values() if ability.code
    }
    for code, reason in sorted(reasons.items()):
        yield Text(f"{code}: {reason}", "dim")


def _properties(one: Assessment) -> Iterator[str]:
    profile = one.agent.profile
    provider = profile.provider or "unknown provider" if profile else ""
    yield ", ".join(filter(None, [one.agent.type, provider]))
    if one.led_from:
        yield f"also runs for: {', '.join(one.led_from)}"
    if one.route is not None:
        targets = [
            f"{target['agent']}{' on ' * bool(target['cluster'])}{target['cluster']} ({target['share']:.3g})"
            for target in _route(one)
        ]
        yield f"requests go to: {', '.join(targets)}"
    strategies = [f"{kind} ({ability.strategy})" for kind, ability in one.abilities.items() if ability.arrives]
    if strategies:
        yield f"takes: {', '.join(strategies)}"
    if one.abilities and (limits := codes(one)):
        yield f"limits: {', '.join(limits)}"


def _remedies(one: Assessment) -> Iterator[Text | Padding]:
    for remedy in one.remedies:
        gains = f" (adds {', '.join(remedy.gains)})" if remedy.gains else ""
        line = f"remedy: {remedy.action}{gains}"
        # The terminal wraps a command, so that it can be copied.
        yield Text(f"  {line}", no_wrap=True) if remedy.kind == "upgrade" else _indented(Text(line))


def _footer(
    cluster: ClusterInfo, assessments: Sequence[Assessment], required: Sequence[str], verbose: bool
) -> Iterator[Text]:
    for one in assessments:
        if why := one.agent.unreadable:
            yield Text(f"{_name(one)} can't be read: {why.code}: {why.reason}; {why.help}", "yellow")
    names = {one.agent.id: _name(one) for one in assessments}
    for id_, kinds in missing(assessments, required).items():
        yield Text(f"{names[id_]} does not take what is required: {', '.join(kinds)}", "red")
    for note in cluster.notes:
        yield Text(f"Note: {note}.", "dim")
    if not verbose and any(one.remedies for one in assessments):
        yield Text("-v shows what limits each agent and how to change that.", "dim")

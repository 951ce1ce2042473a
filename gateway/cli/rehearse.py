"""``mlc-gateway rehearse``: what another agent's LLM would have been sent for the recorded requests of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from gateway.agents.lookup import read_version
from gateway.cli.cluster import cluster_options, rules_of
from gateway.cli.command import FILE, PERCENT, Command
from gateway.cli.output import PlainConsole, fail, form_options, plural, print_json, progress_bar, table_of
from gateway.config.load import ConfigError
from gateway.execute.body import is_json
from gateway.execute.build import check_rules
from gateway.execute.deliveries import model_name
from gateway.inspector.har import InvalidHar, body_bytes, read_har
from gateway.inspector.repeatable import Medium, put_texts_back
from gateway.migrate.connection import ClusterError, ClusterOptions, Connected, connect, connect_named
from gateway.migrate.display import next_command
from gateway.migrate.reading import NoSuchAgent, agent_ids, read_documents, with_run_agents
from gateway.migrate.recorded import Options, RecordedRun, read_run
from gateway.migrate.rehearse import Kind, Rehearsal, RehearsedAgent, Tally, rehearsed_agent
from gateway.migrate.upgrade import Documents, Offer, offers
from gateway.mlcommons.generations import version_notice
from gateway.observe.record import ExchangeRecord
from gateway.providers.base import MappingOptions
from gateway.proxy.routes import RUNS, Intent
from gateway.recording.sinks.registry import open_store
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import Filter, StoreError
from gateway.unified.limits import ParseLimits

_EXAMPLES = """\
mlc-gateway rehearse -c config/gateway.yaml my-agent --as new-agent
mlc-gateway rehearse -c config/gateway.yaml my-agent --as new-agent --in-cluster new
mlc-gateway rehearse -c config/gateway.yaml my-agent --upgrade --min-same 99
mlc-gateway rehearse -c config/gateway.yaml my-agent --on 3.8.0 --json | jq .rows
mlc-gateway rehearse --url http://127.0.0.1:9200 my-agent --as new-agent --har traffic.har --ignore model"""
_PAGE = 200


class CanNotRehearse(Exception):
    """There is nothing to compare. The message says why, and what to do."""


class _Options(msgspec.Struct, frozen=True):
    """The command's own options."""

    agent: str
    new: str | None
    in_cluster: str | None
    upgrade: bool
    version: str | None
    har: Path | None
    min_same: float | None
    ignored: tuple[str, ...]
    as_json: bool


@click.command("rehearse", cls=Command, examples=_EXAMPLES)
@click.argument("agent", metavar="AGENT", help="Id or name of the agent whose requests were recorded.")
@click.option("--as", "new", metavar="AGENT", help="Id or name of the agent that would get them.")
@click.option("--in-cluster", metavar="NAME", help="Cluster of that agent, a name in `clusters` (default: the same).")
@click.option("--upgrade", is_flag=True, help="Compare with the agent as `mlc-gateway upgrade` would leave it.")
@click.option("--on", "version", metavar="V", help="Compare with a cluster of this version, such as 3.8.0.")
@click.option("--har", type=FILE, metavar="FILE", help="Take the requests from a HAR file, not from the inspector.")
@click.option("--min-same", type=PERCENT, metavar="PERCENT", help="Exit with 1 if fewer arrive the same.")
@click.option("--ignore", "ignored", multiple=True, metavar="NAME", help="Difference that does not count; repeatable.")
@form_options
@cluster_options
def command(cluster: ClusterOptions, **options: Any) -> int:
    """Show what another agent's LLM would have been sent for the recorded requests of an agent.

    Nothing is sent but the reads of agents, models and connectors. Each request is planned for both agents as the
    gateway plans it, and the first LLM call of both is rendered and compared.
    """
    chosen = _Options(**options)
    if chosen.new and chosen.upgrade:
        raise click.UsageError("Give either --as or --upgrade.")
    if not (chosen.new or chosen.upgrade or chosen.version):
        raise click.UsageError("Give --as, --upgrade or --on.")
    if chosen.in_cluster and (chosen.version or not chosen.new):
        raise click.UsageError("--in-cluster is about the agent of --as, whose version is that of its cluster.")
    try:
        connected = connect(cluster)
        check_rules(connected.settings)
        return _run(connected, chosen)
    except InvalidHar as error:
        return fail("rehearse", 2, f"{chosen.har}: {error}")
    except (CanNotRehearse, ClusterError, ConfigError, StoreError, OSError) as error:
        return fail("rehearse", 2, str(error))


def _run(cluster: Connected, options: _Options) -> int:
    pair = _read_pair(cluster, options)
    tally = Tally()
    rehearsal = Rehearsal(pair.old, pair.new, options.ignored)
    for run in _recorded(cluster, pair.old_id, options, pair.options):
        tally.add(run.id, rehearsal.judge(run))
    if not tally.count():
        if options.har:
            raise CanNotRehearse(f"{options.har} holds no request that runs {pair.old_id}")
        reason = f"The inspector has recorded no request that runs {pair.old_id}"
        raise CanNotRehearse(f"{reason}: run this again once clients have sent some through the gateway, or give --har")
    same = tally.same_percent()
    met = options.min_same is None or (same is not None and same >= options.min_same)
    report = _report(pair, tally, options, met)
    if options.as_json:
        print_json(report)
    else:
        _show(PlainConsole(), report, cluster, options)
    return 0 if met else 1


# The agents


class _Pair(msgspec.Struct, frozen=True):
    """The agents that are compared. about: of each, for the report. assumptions: sentences."""

    old_id: str
    old: RehearsedAgent
    new: RehearsedAgent
    about: tuple[dict[str, Any], dict[str, Any]]
    assumptions: tuple[str, ...]
    options: Options


def _read_pair(cluster: Connected, options: _Options) -> _Pair:
    """Read the two agents.

    Raises:
        CanNotRehearse: there is no upgrade, or the version can't be read. ClusterError: there is no such agent.
    """
    named = [options.agent, *([options.new] if options.new and not options.in_cluster else [])]
    try:
        ids, documents = _read_documents(cluster, named, next_command(cluster.options, "agents"))
    except NoSuchAgent as error:
        others = " or ".join(f"--in-cluster {name}" for name in cluster.settings.clusters)
        if not others or options.in_cluster or not options.new:
            raise
        raise ClusterError(f"{error} If the agent of --as is on another cluster, add {others}.") from None
    old_id, new_id = ids[0], ids[-1]
    changed, assumptions = documents, [_NOW, _FIRST]
    if options.in_cluster and options.new:
        other = connect_named(cluster.settings, options.in_cluster)
        (new_id, *_), changed = _read_documents(other, [options.new], f"mlc-gateway agents --url {other.url}")
        if changed.version[:2] != documents.version[:2]:
            assumptions.append(_PROMPTS.format(".".join(map(str, changed.version))))
    if options.upgrade:
        changed, assumptions = _upgraded(documents, old_id), [*assumptions, _UPGRADED]
    if options.version:
        changed, more = _on(changed, options.version)
        assumptions += more
    rehearsed = rehearsal_options(cluster)
    old, about_old = _agent(documents, old_id, rehearsed)
    new, about_new = _agent(changed, new_id, rehearsed)
    return _Pair(old_id, old, new, (about_old, about_new), tuple(assumptions), rehearsed)


def _read_documents(cluster: Connected, named: list[str], listing: str) -> tuple[list[str], Documents]:
    """Read the agents `named`, and the agents that they run; return their ids, too."""
    ids = agent_ids(cluster, named, listing=listing)
    return ids, with_run_agents(cluster, read_documents(cluster, cluster.version, ids, rules_of(cluster)), ids)


def rehearsal_options(cluster: Connected) -> Options:
    """Return the gateway's settings that decide what is sent."""
    settings = cluster.settings
    return Options(
        MappingOptions(settings.agents.roles, settings.agents.allow_prefill),
        rules_of(cluster),
        settings.agents.rules,
        ParseLimits.from_limits(settings.limits),
        settings.media.fetch,
    )


_NOW = "The agents are taken as they are now, whatever they were when the requests were recorded"
_FIRST = "Only the first LLM call is compared; tools that run before it are taken to answer the same for both"
_PROMPTS = "Prompts of the cluster's own are counted as different on {}: what they are there can't be read here"
_UPGRADED = "The connector is taken as `mlc-gateway upgrade` would leave it"


def _upgraded(documents: Documents, agent_id: str) -> Documents:
    found = offers(documents, [agent_id], "0" * 32)
    changes = [one for one in found if isinstance(one, Offer)]
    if not changes:
        reasons = "; ".join(f"{one.code.name}: {one.reason}" for one in found if not isinstance(one, Offer))
        raise CanNotRehearse(f"There is no upgrade for {agent_id} ({reasons})")
    for change in changes:
        documents = documents.with_connector(change.key, change.new)
    return documents


def _on(documents: Documents, written: str) -> tuple[Documents, list[str]]:
    """Return the documents as those of a cluster of another version, and what is assumed of it."""
    version = read_version({"version": {"number": written, "distribution": "opensearch"}})
    if version is None:
        raise CanNotRehearse(f"--on {written!r} is not a version such as 3.8.0")
    name = ".".join(map(str, version))
    assumed = [
        f"The agent, its models and its connectors are taken to be on a cluster of {name} as they are on this one",
        _PROMPTS.format(name),
    ]
    unified_api = None if version >= (3, 5) else False
    if unified_api is None:
        assumed.append("plugins.ml_commons.unified_agent_api_enabled is taken to be true there")
    if unknown := version_notice(version):
        assumed.append(unknown.reason[0].upper() + unknown.reason[1:])
    return replace(documents, version=version, unified_api=unified_api), assumed


def _agent(documents: Documents, agent_id: str, options: Options) -> tuple[RehearsedAgent, dict[str, Any]]:
    document = documents.agents.get(agent_id)
    if document is None:
        raise ClusterError(f"The agent {agent_id} was deleted meanwhile")
    about = {
        "id": agent_id,
        "name": str(document.get("name", "")),
        "type": str(document.get("type", "")).lower(),
        "version": ".".join(map(str, documents.version)),
    }
    found = rehearsed_agent(documents, agent_id, options)
    profile = found.profile
    more = {"provider": profile.provider, "model": model_name(profile)} if profile else {"provider": "", "model": ""}
    return found, {**about, **more}


# The recorded requests


def _recorded(cluster: Connected, agent_id: str, options: _Options, rehearsed: Options) -> Iterator[RecordedRun]:
    """Yield the recorded requests that run an agent, the oldest first."""
    if options.har:
        records = [
            one
            for one in read_har(options.har.read_bytes())
            if one.agent_id == agent_id and one.intent in RUNS and not one.mirror_of
        ]
        with _bar() as update:
            for count, record in enumerate(records, 1):
                yield _read(record, rehearsed, _no_medium)
                update(count, len(records))
        return
    store = open_store(cluster.settings.inspector)
    if store is None:
        reason = "The settings record no exchanges in a store that can be read"
        raise CanNotRehearse(f"{reason}: name them with -c, set inspector.enabled to true, or give --har FILE")
    with closing(store), _bar() as update:
        newest = store.newest()
        first = None
        for position, record in _stored(store, Filter(agent=agent_id, intent="runs")):
            first = position if first is None else first
            if record.agent_id == agent_id:  # the filter takes a name, too
                yield _read(record, rehearsed, store.medium)
            update(position - first + 1, max(newest, position) - first + 1)


def _stored(store: SqliteStore, wanted: Filter) -> Iterator[tuple[int, ExchangeRecord]]:
    """Yield the position and the whole record of the exchanges, as `gateway.inspector.exports.oldest_first`."""
    after = 0
    while rows := store.newer(wanted, after, _PAGE):
        for row in rows:
            record = store.get(row.record.id)
            if record is not None:
                yield row.position, record
        after = rows[-1].position


def _read(record: ExchangeRecord, options: Options, medium: Medium) -> RecordedRun:
    body = record.request.body
    missing = body.omitted
    if not missing and body.text is None and body.size:
        missing = "its body was not recorded"
    kind = next((value for name, value in record.request.headers if name.lower() == "content-type"), "")
    if kind and not is_json(kind):
        missing = missing or f"the gateway forwards a body of the type {kind} unread"
    content = put_texts_back(body_bytes(body), medium)
    return read_run(record.id, content, record.intent == Intent.EXECUTE_STREAM, options, missing)


def _no_medium(_: str) -> None:
    return None


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar. Call the value with what is done, and the total."""
    columns = (TextColumn("rehearsing requests"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with progress_bar(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# The report


def _report(pair: _Pair, tally: Tally, options: _Options, met: bool) -> dict[str, Any]:
    same = tally.same_percent()
    return {
        "old": pair.about[0],
        "new": pair.about[1],
        "assumptions": list(pair.assumptions),
        "ignored": list(options.ignored),
        "requests": tally.count(),
        "counts": {kind.value.replace(" ", "_"): tally.count(kind) for kind in Kind},
        "same_percent": None if same is None else round(same, 3),
        "min_same": options.min_same,
        "met": met,
        "rows": [
            {"result": row.verdict.kind.value, "count": row.count, **row.verdict.as_json(), "examples": row.examples}
            for row in tally.rows()
        ],
    }


def _show(console: Console, report: dict[str, Any], cluster: Connected, options: _Options) -> None:
    for which in ("old", "new"):
        one = report[which]
        about = ", ".join(filter(None, (one["type"], one["version"], one["provider"], one["model"])))
        console.print(Text(f"{which}: {one['name'] or one['id']} ({about})"))
    console.print(_table(report["rows"]))
    console.print(Text(_summary(report), "bold"))
    for row in report["rows"]:
        if row["codes"]:
            lines = filter(None, (row["reason"], row["help"]))
            console.print(Text(f"{', '.join(row['codes'])}: {'. '.join(lines)}", "yellow"))
    for assumption in report["assumptions"]:
        console.print(Text(f"Assumed: {assumption}.", "dim"))
    if not options.har:
        console.print(Text("The page of an example: /inspector/exchanges/ID on the gateway's admin port.", "dim"))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = table_of()
    table.add_column("requests", justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("what", overflow="fold")
    table.add_column("example", overflow="fold", max_width=26)
    styles = {Kind.SAME: "green", Kind.ARRIVES_NOW: "green", Kind.REFUSED: "red", Kind.DIFFERENT: "yellow"}
    for row in rows:
        what = ", ".join((*row["differences"], *row["codes"]))
        style = styles.get(Kind(row["result"]), "")
        table.add_row(f"{row['count']:,}", Text(row["result"], style), Text(what), Text(row["examples"][0]))
    return table


def _summary(report: dict[str, Any]) -> str:
    counts, same = report["counts"], report["same_percent"]
    refused = counts["arrives_now"] + counts["refused_by_both"]
    base = report["requests"] - refused
    arrive = "arrives" if counts["same"] == 1 else "arrive"
    line = f"{counts['same']:,} of {base:,} {plural(base, 'request')} {arrive} the same"
    if same is not None:
        line += f" ({same:g} %)"
    if refused:
        which = "which doesn't count" if refused == 1 else "which don't count"
        line += f"; the old agent refuses {refused:,} more, {which}"
    if report["min_same"] is not None:
        line += f"; --min-same {report['min_same']:g} is {'met' if report['met'] else 'not met'}"
    return f"{line}."

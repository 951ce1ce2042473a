"""``mlc-gateway upgrade``: change connectors as little as possible, so that their agents accept every kind of input."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gateway.agents.rules import Rule
from gateway.cli.cluster import cluster_options, gateway_option
from gateway.cli.command import FILE, Command
from gateway.cli.output import PlainConsole, fail, print_json
from gateway.cli.upgrade_run import RunOptions, UpgradeRun, done_json, interrupted_by_signals, resume_elsewhere
from gateway.config.load import ConfigError
from gateway.delivery.template_change import Code
from gateway.execute.build import check_rules
from gateway.migrate.backup import DIRECTORY, BackupError, Journal, lock_directory, unfinished
from gateway.migrate.connection import ClusterError, ClusterOptions, Connected, connect
from gateway.migrate.credential import CredentialError
from gateway.migrate.display import as_json, show
from gateway.migrate.next_command import next_command
from gateway.migrate.reading import agent_ids, read_documents
from gateway.migrate.upgrade import Documents, Offer, Refused, offers

_EXAMPLES = """\
mlc-gateway upgrade --url http://127.0.0.1:9200 my-agent
mlc-gateway upgrade --url http://127.0.0.1:9200 --all --apply
mlc-gateway upgrade -c config/gateway.yaml my-agent --apply --credential-file credential.json
    (makes a new connector for the agent's model; without it, a shared connector is changed for all its agents)
mlc-gateway upgrade --url http://127.0.0.1:9200 --resume mlc-backups/20260101T120000Z-connectors-abc.json"""

_FINE = frozenset({Code.ALREADY_UPGRADED, Code.NO_GAIN})
_NOTHING_TO_DO = "Nothing to do: no connector can be upgraded."


@dataclass(frozen=True, slots=True)
class _Options(RunOptions):
    """The command's own options."""

    agents: tuple[str, ...]
    all: bool
    apply: bool
    verbose: bool
    resume: Path | None


@click.command("upgrade", cls=Command, short_help="Change connectors so that agents accept more.", examples=_EXAMPLES)
@click.argument(
    "agents", nargs=-1, metavar="[AGENT]...", help="Ids or names; write -- before one that starts with a dash."
)
@click.option("--all", is_flag=True, help="Every agent that a search finds.")
@click.option("--apply", is_flag=True, help="Make the changes. Without it, they are only shown.")
@click.option("-v", "--verbose", is_flag=True, help="Also show the calls, the diff and the agents.")
@click.option("--json", is_flag=True, help="Print JSON.")
@click.option("--shared", is_flag=True, help="Change a connector even if agents that you did not name use it, too.")
@click.option("--credential-file", type=FILE, metavar="FILE", help="JSON: make a new connector with this credential.")
@click.option("--ask-credential", is_flag=True, help="Make a new connector; ask for its credential.")
@click.option(
    "--probe",
    type=click.Choice(("documents", "template", "execute")),
    default="documents",
    help="The check after a change. documents: read the documents and prove the change again (default). template: also "
    "see that the models use the new template, with a request that is refused before the LLM is called. execute: also "
    "ask an agent a question; this calls the LLM, and the agent's tools may act.",
)
@click.option(
    "--backup-dir", type=FILE, default=Path(DIRECTORY), metavar="DIR", help=f"Backup folder (default: ./{DIRECTORY})."
)
@click.option("--resume", type=FILE, metavar="FILE", help="Finish the upgrade of this backup file.")
@gateway_option
@cluster_options
def command(cluster: ClusterOptions, **options: Any) -> int:
    """Show the smallest change to the connectors that lets the agents accept every kind of input.

    With --apply, make it. Every change is proved not to affect present callers, and a backup file is written first.
    """
    chosen = _Options(**options)
    if [bool(chosen.agents), chosen.all, bool(chosen.resume)].count(True) != 1:
        raise click.UsageError("Give the agents, --all, or --resume FILE.")
    try:
        with interrupted_by_signals():
            return _run(cluster, chosen)
    except (ClusterError, ConfigError, BackupError, CredentialError, OSError) as error:
        return fail("upgrade", 2, str(error))


def _run(cluster: ClusterOptions, options: _Options) -> int:
    connected = connect(cluster)
    check_rules(connected.settings)
    if not options.apply and not options.resume:
        return _show(connected, options)
    run = UpgradeRun(connected, options, rules_of(connected))
    if options.resume:
        with lock_directory(options.resume.parent):
            return _resume(run, Journal.load(options.resume), options)
    with lock_directory(options.backup_dir):
        return _apply(connected, options, run)


def rules_of(cluster: Connected) -> tuple[Rule, ...]:
    """Return the rules in the gateway's settings that name an agent's provider."""
    return tuple(Rule(rule.agent, rule.provider or None, rule.delivery) for rule in cluster.settings.agents.rules)


def _plan(cluster: Connected, options: _Options, tag: str) -> tuple[Documents, list[Offer | Refused]]:
    wanted = agent_ids(cluster, options.agents, listing=next_command(cluster.options, "agents"))
    documents = read_documents(cluster, cluster.version, wanted, rules_of(cluster))
    return documents, offers(documents, wanted, tag, bool(options.credential_file or options.ask_credential))


def _show(cluster: Connected, options: _Options) -> int:
    found = _plan(cluster, options, "0" * 32)[1]
    if options.json:
        print_json(as_json(found))
    else:
        show(PlainConsole(), found, options.verbose)
        if _ready(found):
            sys.stdout.write("Nothing was changed. Run again with --apply to make the changes.\n")
        else:
            sys.stdout.write(f"{_NOTHING_TO_DO}\n")
    return _status(found)


def _apply(cluster: Connected, options: _Options, run: UpgradeRun) -> int:
    """Finish what earlier runs began, then make the changes."""
    for journal in unfinished(options.backup_dir):
        if journal.is_of(cluster.url):
            run.finish_earlier(journal)
        else:
            where = f"{journal.path} is not finished; it is of {journal.record.url}"
            run.report(f"{where}. To finish it, with that cluster's account: {resume_elsewhere(journal)}")
    documents, found = _plan(cluster, options, secrets.token_hex(16))
    if not options.json:
        show(PlainConsole(), found, options.verbose)
    try:
        run.make(_ready(found), documents)
    finally:
        if run.done:
            run.sum_up()
    if not run.done:
        run.report(_NOTHING_TO_DO)
    if options.json:
        print_json({"found": as_json(found), "done": done_json(run.done)})
    return run.status() or _status(found)


def _resume(run: UpgradeRun, journal: Journal, options: _Options) -> int:
    """Finish one backup's upgrade."""
    if journal.record.outcome in ("applied", "reverted"):
        run.report(f"{journal.path}: already {journal.record.outcome}, nothing to do")
    else:
        run.finish(journal)
    if options.json:
        print_json({"found": [], "done": done_json(run.done)})
    return run.status()


def _ready(found: Iterable[Offer | Refused]) -> list[Offer]:
    return [one for one in found if isinstance(one, Offer)]


def _status(found: Iterable[Offer | Refused]) -> int:
    return int(any(isinstance(one, Refused) and one.code not in _FINE for one in found))

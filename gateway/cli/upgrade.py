"""``mlc-gateway upgrade``: change connectors as little as possible, so that their agents accept every kind of input."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console

from gateway.agents.rules import Rule
from gateway.cli.cluster import cluster_options
from gateway.cli.command import FILE, Command
from gateway.cli.output import fail, print_json
from gateway.config.load import ConfigError
from gateway.delivery.template_change import Code
from gateway.execute.build import check_rules
from gateway.migrate import probe
from gateway.migrate.backup import DIRECTORY, BackupError, Journal, lock_directory, unfinished
from gateway.migrate.connection import ClusterError, ClusterOptions, Connected, connect
from gateway.migrate.credential import CredentialError, ask_credential, credential_names, read_credential
from gateway.migrate.display import as_json, request_line, show
from gateway.migrate.reading import agent_ids, read_documents
from gateway.migrate.rollback import RolledBack, UndoFailed, carry_out, roll_back
from gateway.migrate.upgrade import Documents, Offer, Refused, offers

_EXAMPLES = """\
mlc-gateway upgrade --url http://127.0.0.1:9200 my-agent
mlc-gateway upgrade --url http://127.0.0.1:9200 --all --apply
mlc-gateway upgrade -c config/gateway.yaml my-agent --apply --credential-file credential.json
    (makes a new connector for the agent's model; without it, a shared connector is changed for all its agents)
mlc-gateway upgrade --url http://127.0.0.1:9200 --resume mlc-backups/20260101T120000Z-connectors-abc.json"""

_NOTHING_TO_DO = frozenset({Code.ALREADY_UPGRADED, Code.NO_GAIN})


@dataclass(frozen=True, slots=True)
class _Options:
    """The command's own options."""

    agents: tuple[str, ...]
    all: bool
    apply: bool
    verbose: bool
    json: bool
    shared: bool
    credential_file: Path | None
    ask_credential: bool
    probe: Literal["documents", "execute"]
    backup_dir: Path
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
    type=click.Choice(("documents", "execute")),
    default="documents",
    help="The check after a change. documents: read the documents and prove the change again (default). execute: "
    "also ask an agent a question; this calls the LLM, and the agent's tools may act.",
)
@click.option(
    "--backup-dir", type=FILE, default=Path(DIRECTORY), metavar="DIR", help=f"Backup folder (default: ./{DIRECTORY})."
)
@click.option("--resume", type=FILE, metavar="FILE", help="Finish the upgrade of this backup file.")
@cluster_options
def command(cluster: ClusterOptions, **options: Any) -> int:
    """Show the smallest change to the connectors that lets the agents accept every kind of input.

    With --apply, make it. Every change is proved not to affect present callers, and a backup file is written first.
    """
    chosen = _Options(**options)
    if [bool(chosen.agents), chosen.all, bool(chosen.resume)].count(True) != 1:
        raise click.UsageError("Give the agents, --all, or --resume FILE.")
    try:
        return _run(cluster, chosen)
    except RolledBack as error:
        return fail("upgrade", 3, f"failed, and everything is as it was before: {error}")
    except UndoFailed as error:
        calls = "".join(f"\n  {request_line(call)}" for call in error.calls)
        message = f"{error}\nThe change is half done. `mlc-gateway rollback FILE` sends the remaining calls:{calls}"
        return fail("upgrade", 4, message)
    except (ClusterError, ConfigError, BackupError, CredentialError, OSError) as error:
        return fail("upgrade", 2, str(error))


def _run(cluster: ClusterOptions, options: _Options) -> int:
    connected = connect(cluster)
    check_rules(connected.settings)
    if options.resume:
        with lock_directory(options.resume.parent):
            return _Run(connected, options).resume(Journal.load(options.resume))
    if not options.apply:
        return _show(connected, options)
    with lock_directory(options.backup_dir):
        return _Run(connected, options).apply()


def rules_of(cluster: Connected) -> tuple[Rule, ...]:
    """Return the rules in the gateway's settings that name an agent's provider."""
    return tuple(Rule(rule.agent, rule.provider or None, rule.delivery) for rule in cluster.settings.agents.rules)


def _plan(cluster: Connected, options: _Options, tag: str) -> tuple[Documents, list[Offer | Refused]]:
    wanted = agent_ids(cluster, options.agents)
    documents = read_documents(cluster, cluster.version, wanted, rules_of(cluster))
    return documents, offers(documents, wanted, tag, bool(options.credential_file or options.ask_credential))


def _show(cluster: Connected, options: _Options) -> int:
    found = _plan(cluster, options, "0" * 32)[1]
    if options.json:
        print_json(as_json(found))
    else:
        show(Console(highlight=False), found, options.verbose)
        sys.stdout.write("Nothing was changed. Run again with --apply to make the changes.\n")
    return _status(found)


def _status(found: list[Offer | Refused]) -> int:
    return int(any(isinstance(one, Refused) and one.code not in _NOTHING_TO_DO for one in found))


class _Run:
    """One `--apply` or `--resume`."""

    def __init__(self, cluster: Connected, options: _Options) -> None:
        self._cluster = cluster
        self._options = options

    def apply(self) -> int:
        """Finish what earlier runs began, then make the changes."""
        for journal in unfinished(self._options.backup_dir, self._cluster.url):
            self._print(f"{journal.path} is not finished; finishing it first")
            self._finish(journal)
        documents, found = _plan(self._cluster, self._options, secrets.token_hex(16))
        if not self._options.json:
            show(Console(highlight=False), found, self._options.verbose)
        ready = [one for one in found if isinstance(one, Offer)]
        self._require_consent(ready)
        credentials = self._credentials(ready)
        done = []
        for offer in ready:
            journal = Journal.create(self._options.backup_dir, offer, documents, self._cluster.url)
            self._print(f"backup: {journal.path}")
            self._carry_out(journal, credentials)
            done.append({"key": offer.key, "backup": str(journal.path), "outcome": journal.record.outcome})
        if self._options.json:
            print_json({"found": as_json(found), "done": done})
        return _status(found)

    def resume(self, journal: Journal) -> int:
        """Finish one backup's upgrade."""
        if journal.record.outcome in ("applied", "reverted"):
            self._print(f"{journal.path}: already {journal.record.outcome}, nothing to do")
            return 0
        self._finish(journal)
        return 0

    def _finish(self, journal: Journal) -> None:
        """Continue in the direction that was begun: apply or undo."""
        if journal.record.outcome == "reverting":
            roll_back(self._cluster, journal, self._print)
            self._print(f"{journal.record.key}: undone; an earlier run had begun to undo it")
            return
        given = self._options.credential_file
        self._carry_out(journal, read_credential(given) if given else None)

    def _carry_out(self, journal: Journal, credential: Mapping[str, str] | None) -> None:
        carry_out(self._cluster, journal, self._probe(journal), self._print, credential)
        self._print(f"{journal.record.key}: upgraded; to undo it: mlc-gateway rollback {journal.path}")

    def _probe(self, journal: Journal) -> Callable[[], None]:
        prove = partial(probe.prove_again, self._cluster, journal.record, rules_of(self._cluster))
        if self._options.probe == "documents":
            return prove

        def prove_and_execute() -> None:
            prove()
            probe.execute(self._cluster, journal.record)

        return prove_and_execute

    def _print(self, line: str) -> None:
        stream = sys.stderr if self._options.json else sys.stdout
        stream.write(f"{line}\n")
        stream.flush()

    def _require_consent(self, ready: list[Offer]) -> None:
        """Ask before a change that affects agents which were not named.

        Raises:
            ClusterError: the answer is no, or there is no terminal to ask on.
        """
        shared = {offer.key: offer.others for offer in ready if offer.others}
        if not shared or self._options.shared:
            return
        users = "; ".join(f"{key} also serves {', '.join(others)}" for key, others in shared.items())
        if sys.stdin.isatty() and input(f"{users}. Upgrade for these, too? [y/N] ").strip().lower() in ("y", "yes"):
            return
        raise ClusterError(f"{users}: add --shared to upgrade it for these agents, too. Nothing was changed.")

    def _credentials(self, ready: list[Offer]) -> Mapping[str, str] | None:
        new = {offer.key: offer for offer in ready if offer.makes_connector}
        if not new:
            return None
        if len(new) > 1:
            raise CredentialError("these agents use several connectors, but there is one credential: name fewer agents")
        if self._options.credential_file:
            return read_credential(self._options.credential_file)
        return ask_credential(credential_names(next(iter(new.values())).old))

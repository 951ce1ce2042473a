"""``mlc-gateway upgrade``: change connectors as little as possible, so that their agents accept every kind of input."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from gateway.cli.cluster import (
    CredentialError,
    ask_credential,
    cluster_options,
    confirm,
    gateway_option,
    interrupted_by_signals,
    read_credential,
    rules_of,
)
from gateway.cli.command import FILE, Command
from gateway.cli.output import PlainConsole, fail, print_json, print_progress, text_or_json
from gateway.config.load import ConfigError
from gateway.delivery.template_change import Code
from gateway.execute.build import check_rules
from gateway.migrate import probe
from gateway.migrate.apply import Gone, NeedsCredential, RolledBack, Runner, UndoFailed
from gateway.migrate.backup import DIRECTORY, BackupError, Journal, lock_directory, unfinished
from gateway.migrate.connection import ClusterError, ClusterOptions, Connected, connect
from gateway.migrate.display import as_json, next_command, request_line, show
from gateway.migrate.gateways import NamedGateways
from gateway.migrate.reading import agent_ids, read_documents
from gateway.migrate.steps import credential_names
from gateway.migrate.upgrade import Documents, Offer, Refused, offers

_EXAMPLES = """\
mlc-gateway upgrade --url http://127.0.0.1:9200 my-agent
mlc-gateway upgrade --url http://127.0.0.1:9200 --all --apply
mlc-gateway upgrade -c config/gateway.yaml my-agent --apply --credential-file credential.json
    (makes a new connector for the agent's model; without it, a shared connector is changed for all its agents)
mlc-gateway upgrade --url http://127.0.0.1:9200 --resume mlc-backups/20260101T120000Z-connectors-abc.json"""

_FINE = frozenset({Code.ALREADY_UPGRADED, Code.NO_GAIN})
_NOTHING_TO_DO = "Nothing to do: no connector can be upgraded."


Probe = Literal["documents", "template", "execute"]
Result = Literal["upgraded", "rolled back", "failed and undone", "half done"]
UNCHANGED = "everything is as it was before; that was read back from the cluster"


class _Options(msgspec.Struct, frozen=True):
    """The command's own options."""

    agents: tuple[str, ...]
    all: bool
    apply: bool
    verbose: bool
    for_tools: bool
    resume: Path | None
    json: bool
    shared: bool
    credential_file: Path | None
    ask_credential: bool
    probe: Probe
    backup_dir: Path
    gateways: tuple[str, ...]


@click.command("upgrade", cls=Command, examples=_EXAMPLES)
@click.argument(
    "agents",
    nargs=-1,
    metavar="[AGENT]...",
    help="Ids, their beginnings, or names; connectors/ID: all agents that use it; write -- before what starts with a "
    "dash.",
)
@click.option("--all", is_flag=True, help="Every agent that a search finds.")
@click.option("--apply", is_flag=True, help="Make the changes. Without it, they are only shown.")
@click.option("-v", "--verbose", is_flag=True, help="Also show the calls, the diff and the agents.")
@text_or_json
@click.option("--for-tools", is_flag=True, help="Also make a place for tools of the client, which flows can call.")
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
    run = UpgradeRun(connected, options)
    if options.resume:
        with lock_directory(options.resume.parent):
            return _resume(run, Journal.load(options.resume), options)
    with lock_directory(options.backup_dir):
        return _apply(connected, options, run)


def _plan(cluster: Connected, options: _Options, tag: str) -> tuple[Documents, list[Offer | Refused]]:
    wanted = agent_ids(cluster, options.agents, listing=next_command(cluster.options, "agents"))
    documents = read_documents(cluster, cluster.version, wanted, rules_of(cluster))
    new_connector = bool(options.credential_file or options.ask_credential)
    return documents, offers(documents, wanted, tag, new_connector, options.for_tools)


def _show(cluster: Connected, options: _Options) -> int:
    found = _plan(cluster, options, "0" * 32)[1]
    if options.json:
        print_json(as_json(found))
    else:
        show(PlainConsole(), found, options.verbose, options.shared)
        if _ready(found):
            sys.stdout.write("Nothing was changed. Run again with --apply to make the changes.\n")
        else:
            sys.stdout.write(f"{_NOTHING_TO_DO}\n")
    return _status(found)


def _apply(cluster: Connected, options: _Options, run: UpgradeRun) -> int:
    """Finish what earlier runs began, then make the changes."""
    for journal in unfinished(options.backup_dir):
        if journal.is_of(cluster.url):
            run.report(f"{journal.path} is not finished; finishing it first")
            run.finish(journal)
        else:
            where = f"{journal.path} is not finished; it is of {journal.record.url}"
            run.report(f"{where}. To finish it, with that cluster's account: {resume_elsewhere(journal)}")
    documents, found = _plan(cluster, options, secrets.token_hex(16))
    if not options.json:
        show(PlainConsole(), found, options.verbose, options.shared)
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


class Done(msgspec.Struct, frozen=True):
    """What became of one connector."""

    key: str
    backup: Path
    result: Result
    outcome: str


class UpgradeRun:
    """Makes upgrades one after the other. One that fails does not keep the next from being made."""

    def __init__(self, cluster: Connected, options: _Options) -> None:
        self.done: list[Done] = []
        self._cluster = cluster
        self._options = options
        self._gateways = NamedGateways(options.gateways, cluster.settings, self.report)

    def status(self) -> int:
        """Return the exit code: 4 if something is half done, 3 if something failed and was undone."""
        results = {one.result for one in self.done}
        return 4 if "half done" in results else 3 if "failed and undone" in results else 0

    def sum_up(self) -> None:
        """Print how many connectors were upgraded, and which were not."""
        results = Counter(one.result for one in self.done)
        self.report(", ".join(f"{number} {result}" for result, number in results.items()) + ".")
        for one in self.done:
            if one.result != "upgraded":
                self.report(f"  {one.result}: {one.key}, backup {one.backup}")

    def finish(self, journal: Journal) -> None:
        """Continue in the direction that was begun: apply or undo.

        Raises:
            CredentialError: it needs the credential of its new connector.
        """
        if journal.record.outcome == "reverting":
            self._attempt(journal, partial(self._undo, journal))
            return
        credential = None
        if self._options.credential_file:
            credential = read_credential(self._options.credential_file)
        elif self._options.ask_credential:
            old = journal.record.documents[journal.record.key]
            credential = ask_credential(credential_names(old))
        self._attempt(journal, partial(self._carry_out, journal, credential))

    def make(self, offers: Iterable[Offer], documents: Documents) -> None:
        """Make the upgrades.

        Raises:
            ClusterError: agents that were not named are affected, and there is no consent.
            CredentialError: the credential of a new connector can't be read.
            BackupError: a backup can't be written.
        """
        half_done = {one.key for one in self.done if one.result == "half done"}
        ready = [offer for offer in offers if offer.key not in half_done]
        self._require_consent(ready)
        credentials = self._credentials(ready)
        for offer in ready:
            journal = Journal.create(self._options.backup_dir, offer, documents, self._cluster.url)
            self.report(f"backup: {journal.path}")
            self._attempt(journal, partial(self._carry_out, journal, credentials))

    def _attempt(self, journal: Journal, work: Callable[[], Result]) -> None:
        """Do the work of one journal, and report how it ended."""
        try:
            result = work()
        except KeyboardInterrupt:
            self._complain(
                f"{journal.record.key}: interrupted. To finish it, run this again, or {self._resume_command(journal)}; "
                f"to undo it: {self._rollback_command(journal)}"
            )
            raise
        except NeedsCredential:
            raise CredentialError(
                f"{journal.path} is not finished and needs the credential of its new connector. To finish it: "
                f"{self._resume_command(journal)} --credential-file FILE; to undo it: {self._rollback_command(journal)}"
            ) from None
        except RolledBack as error:
            self._complain(f"{journal.record.key} failed and was undone: {error}")
            self._complain("\n".join(f"  but {line}" for line in error.left) or f"  {UNCHANGED}")
            result = "failed and undone"
        except UndoFailed as error:
            calls = "".join(f"\n  {request_line(call)}" for call in error.calls)
            rest = f"sends the remaining calls:{calls}" if calls else "undoes the rest once this is corrected."
            self._complain(
                f"{journal.record.key}: {error}\nThe change is half done. `{self._rollback_command(journal)}` {rest}"
            )
            result = "half done"
        self.done.append(Done(journal.record.key, journal.path, result, journal.record.outcome))

    def _carry_out(self, journal: Journal, credential: Mapping[str, str] | None) -> Result:
        left = self._runner(journal, credential).carry_out(self._probe(journal))
        self.report(f"{journal.record.key}: upgraded; to undo it: {self._rollback_command(journal)}")
        self._report_left(left)
        return "upgraded"

    def _runner(self, journal: Journal, credential: Mapping[str, str] | None = None) -> Runner:
        return Runner(self._cluster, journal, self.report, credential, gateways=self._gateways)

    def _undo(self, journal: Journal) -> Result:
        same = journal.is_of(self._cluster.url)
        try:
            left = self._runner(journal).roll_back(accept_gone=same)
            self.report(f"{journal.record.key}: undone; an earlier run had begun to undo it")
            self._report_left(left)
        except Gone as gone:
            self.report(f"{journal.path}: {gone}")
        return "rolled back"

    def _report_left(self, left: Iterable[str]) -> None:
        for line in left:
            self.report(f"  but {line}")

    def _probe(self, journal: Journal) -> Callable[[], None]:
        def check() -> None:
            probe.prove_again(self._cluster, journal.record, rules_of(self._cluster))
            if self._options.probe != "documents":
                for line in probe.in_use(self._cluster, journal.record):
                    self.report(line)
            if self._options.probe == "execute":
                probe.execute(self._cluster, journal.record)

        return check

    def _resume_command(self, journal: Journal) -> str:
        """Return the command that finishes a journal."""
        resume = ("--resume", str(journal.path))
        return next_command(self._cluster.options, "upgrade", options=resume, gateways=self._options.gateways)

    def _rollback_command(self, journal: Journal) -> str:
        """Return the command that undoes a journal."""
        gateways = self._options.gateways
        return next_command(self._cluster.options, "rollback", str(journal.path), gateways=gateways)

    def report(self, line: str) -> None:
        """Print a line: on standard error if standard output gets JSON."""
        print_progress(line, sys.stderr if self._options.json else sys.stdout)

    def _complain(self, line: str) -> None:
        print_progress(f"mlc-gateway upgrade: {line}", sys.stderr)

    def _require_consent(self, ready: list[Offer]) -> None:
        """Ask before a change that affects agents which were not named.

        Raises:
            ClusterError: the answer is no, or there is no terminal to ask on.
        """
        shared = {offer.key: offer.others for offer in ready if offer.others}
        if not shared or self._options.shared:
            return
        users = "; ".join(f"{key} also serves {', '.join(others)}" for key, others in shared.items())
        if confirm(f"{users}. Upgrade for these, too?"):
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


def resume_elsewhere(journal: Journal) -> str:
    """Return the command that finishes a journal of another cluster than this run's."""
    return next_command(ClusterOptions(url=journal.record.url), "upgrade", options=("--resume", str(journal.path)))


def done_json(done: Iterable[Done]) -> list[dict[str, Any]]:
    """Return what became of each connector as JSON data."""
    return [{"key": one.key, "backup": str(one.backup), "result": one.result, "outcome": one.outcome} for one in done]

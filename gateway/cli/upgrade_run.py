"""One ``upgrade --apply`` or ``--resume``: consent, credentials, every connector in turn, and the sum of it all."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIG_DFL, SIGHUP, SIGTERM, default_int_handler, getsignal, signal
from typing import Any, Literal

from gateway.agents.rules import Rule
from gateway.cli.output import print_progress
from gateway.migrate import probe
from gateway.migrate.apply import NeedsCredential
from gateway.migrate.backup import Journal
from gateway.migrate.connection import ClusterError, ClusterOptions, Connected
from gateway.migrate.credential import CredentialError, ask_credential, credential_names, read_credential
from gateway.migrate.display import request_line
from gateway.migrate.gateways import NamedGateways
from gateway.migrate.next_command import next_command
from gateway.migrate.rollback import Gone, RolledBack, UndoFailed, carry_out, roll_back
from gateway.migrate.upgrade import Documents, Offer

Probe = Literal["documents", "template", "execute"]
Result = Literal["upgraded", "rolled back", "failed and undone", "half done"]
UNCHANGED = "everything is as it was before; that was read back from the cluster"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How an upgrade is made. See the options of ``mlc-gateway upgrade``."""

    json: bool
    shared: bool
    credential_file: Path | None
    ask_credential: bool
    probe: Probe
    backup_dir: Path
    gateways: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one connector."""

    key: str
    backup: Path
    result: Result
    outcome: str


class UpgradeRun:
    """Makes upgrades one after the other. One that fails does not keep the next from being made.

    rules: those of the gateway's settings.
    """

    def __init__(self, cluster: Connected, options: RunOptions, rules: tuple[Rule, ...]) -> None:
        self.done: list[Done] = []
        self._cluster = cluster
        self._options = options
        self._rules = rules
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

    def finish_earlier(self, journal: Journal) -> None:
        """Finish what an earlier run began.

        Raises:
            CredentialError: it needs the credential of its new connector.
        """
        self.report(f"{journal.path} is not finished; finishing it first")
        self.finish(journal)

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
        left = carry_out(self._cluster, journal, self._probe(journal), self.report, credential, gateways=self._gateways)
        self.report(f"{journal.record.key}: upgraded; to undo it: {self._rollback_command(journal)}")
        self._report_left(left)
        return "upgraded"

    def _undo(self, journal: Journal) -> Result:
        same = journal.is_of(self._cluster.url)
        try:
            left = roll_back(self._cluster, journal, self.report, gateways=self._gateways, accept_gone=same)
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
            probe.prove_again(self._cluster, journal.record, self._rules)
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
        if sys.stdin.isatty():
            sys.stderr.write(
                f"{users}. Upgrade for these, too? [y/N] "
            )  # standard output may get JSON, or go to a file
            sys.stderr.flush()
            if input().strip().lower() in ("y", "yes"):
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


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt a change as Ctrl-C does: models that are parked get their connector back."""
    numbers = [number for number in (SIGTERM, SIGHUP) if getsignal(number) == SIG_DFL]
    for number in numbers:
        signal(number, default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal(number, SIG_DFL)


def resume_elsewhere(journal: Journal) -> str:
    """Return the command that finishes a journal of another cluster than this run's."""
    return next_command(ClusterOptions(url=journal.record.url), "upgrade", options=("--resume", str(journal.path)))


def done_json(done: Iterable[Done]) -> list[dict[str, Any]]:
    """Return what became of each connector as JSON data."""
    return [{"key": one.key, "backup": str(one.backup), "result": one.result, "outcome": one.outcome} for one in done]

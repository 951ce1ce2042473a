"""``mlc-gateway upgrade``: the smallest change of the connectors behind agents that lets every input through."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from gateway.agents.rules import Rule
from gateway.config.load import ConfigError
from gateway.delivery.template_change import Code
from gateway.execute.build import check_rules
from gateway.migrate import probe
from gateway.migrate.backup import DIRECTORY, BackupError, Journal, only_one, unfinished
from gateway.migrate.connection import ClusterError, Connected, connect
from gateway.migrate.connection import add_arguments as add_cluster
from gateway.migrate.credential import CredentialError, asked, from_file, names_in
from gateway.migrate.display import as_json, request_line, show
from gateway.migrate.reading import agent_ids, read_documents
from gateway.migrate.rollback import RolledBack, Stuck, carry_out, roll_back
from gateway.migrate.upgrade import Documents, Offer, Refused, offers

NAME = "upgrade"
HELP = (
    "Show, and with --apply make, the smallest change of the connectors behind agents that lets every kind of input "
    "through. Exit 0 when all is well, 1 when something is left alone that could take more, 2 when an option is "
    "wrong or the cluster can't be worked with, 3 when a change failed and was taken back, 4 when it could not be."
)
EXAMPLES = """  mlc-gateway upgrade --url http://127.0.0.1:9200 my-agent
  mlc-gateway upgrade --url http://127.0.0.1:9200 --all --apply
  mlc-gateway upgrade -c config/gateway.yaml my-agent --apply --credential-file credential.json
      (a connector of its own for the agent's model; without it, a shared connector is changed for all who use it)
  mlc-gateway upgrade --url http://127.0.0.1:9200 --resume mlc-backups/20260101T120000Z-connectors-abc.json"""

_DONE = frozenset({Code.ALREADY_UPGRADED, Code.NO_GAIN})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "agents", nargs="*", metavar="AGENT", help="ids or names (after -- where one starts with a dash)"
    )
    parser.add_argument("--all", action="store_true", help="every agent that a search shows")
    parser.add_argument("--apply", action="store_true", help="do it; without it, only show what would be done")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--shared", action="store_true", help="also where agents that are not named use the connector")
    parser.add_argument("--credential-file", type=Path, metavar="FILE", help="JSON: make a new connector with it")
    parser.add_argument("--ask-credential", action="store_true", help="make a new connector; ask for its credential")
    parser.add_argument(
        "--probe",
        choices=("documents", "execute"),
        default="documents",
        help="afterwards read the documents and prove again, or also ask an agent a question: that calls the LLM, "
        "and the agent's tools may act (documents)",
    )
    parser.add_argument(
        "--backup-dir", type=Path, default=Path(DIRECTORY), metavar="DIR", help=f"where backups go (./{DIRECTORY})"
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="finish what was begun with this backup")
    add_cluster(parser)


def run(args: argparse.Namespace) -> int:
    """Show or apply; the exit status as the command's help says."""
    try:
        if [bool(args.agents), args.all, bool(args.resume)].count(True) != 1:
            raise ClusterError("name agents, or --all, or --resume FILE")
        cluster = connect(args)
        check_rules(cluster.settings)
        if args.resume:
            with only_one(args.resume.parent):
                return _Run(cluster, args).resume(Journal.load(args.resume))
        if not args.apply:
            return _planned(cluster, args)
        with only_one(args.backup_dir):
            return _Run(cluster, args).apply()
    except RolledBack as error:
        return _failed(3, f"failed, and everything is as it was before: {error}")
    except Stuck as error:
        calls = "".join(f"\n  {request_line(call)}" for call in error.calls)
        return _failed(4, f"{error}\nWhat was begun stands; `mlc-gateway rollback FILE` sends what is left:{calls}")
    except (ClusterError, ConfigError, BackupError, CredentialError, OSError) as error:
        return _failed(2, str(error))


def _failed(status: int, message: str) -> int:
    sys.stderr.write(f"mlc-gateway upgrade: {message}\n")
    return status


def rules_of(cluster: Connected) -> tuple[Rule, ...]:
    """The rules of the gateway's settings that tell an agent's provider."""
    return tuple(Rule(rule.agent, rule.provider or None, rule.delivery) for rule in cluster.settings.agents.rules)


def _plan(cluster: Connected, args: argparse.Namespace, tag: str) -> tuple[Documents, list[Offer | Refused]]:
    wanted = agent_ids(cluster, args.agents)
    documents = read_documents(cluster, cluster.version, wanted, rules_of(cluster))
    return documents, offers(documents, wanted, tag, bool(args.credential_file or args.ask_credential))


def _planned(cluster: Connected, args: argparse.Namespace) -> int:
    found = _plan(cluster, args, "0" * 32)[1]
    if args.json:
        sys.stdout.write(json.dumps(as_json(found), ensure_ascii=False, indent=2) + "\n")
    else:
        show(Console(highlight=False), found)
        sys.stdout.write("Nothing was changed: --apply does it.\n")
    return _status(found)


def _status(found: list[Offer | Refused]) -> int:
    return int(any(isinstance(one, Refused) and one.code not in _DONE for one in found))


class _Run:
    """One `--apply` or `--resume`."""

    def __init__(self, cluster: Connected, args: argparse.Namespace) -> None:
        self._cluster = cluster
        self._args = args
        self._said: list[dict[str, Any]] = []

    def apply(self) -> int:
        for journal in unfinished(self._args.backup_dir, self._cluster.url):
            self._say(f"{journal.path} was begun and not finished: finishing it first")
            self._finish(journal)
        documents, found = _plan(self._cluster, self._args, secrets.token_hex(16))
        if not self._args.json:
            show(Console(highlight=False), found)
        ready = [one for one in found if isinstance(one, Offer)]
        self._require_consent(ready)
        credentials = self._credentials(ready)
        for offer in ready:
            journal = Journal.create(self._args.backup_dir, offer, documents, self._cluster.url)
            self._say(f"backup: {journal.path}")
            self._carry_out(journal, credentials)
            self._said.append({"key": offer.key, "backup": str(journal.path), "outcome": journal.record.outcome})
        if self._args.json:
            report = {"found": as_json(found), "done": self._said}
            sys.stdout.write(json.dumps(report, ensure_ascii=False, indent=2) + "\n")
        return _status(found)

    def resume(self, journal: Journal) -> int:
        if journal.record.outcome in ("applied", "reverted"):
            self._say(f"{journal.path}: {journal.record.outcome} already, nothing is left to do")
            return 0
        self._finish(journal)
        return 0

    def _finish(self, journal: Journal) -> None:
        """Goes on in the direction that was begun: on, or back."""
        if journal.record.outcome == "reverting":
            roll_back(self._cluster, journal, self._say)
            self._say(f"{journal.record.key}: taken back, as was begun")
            return
        given = self._args.credential_file
        self._carry_out(journal, from_file(given) if given else None)

    def _carry_out(self, journal: Journal, credential: Mapping[str, str] | None) -> None:
        carry_out(self._cluster, journal, self._probe(journal), self._say, credential)
        self._say(f"{journal.record.key}: upgraded; `mlc-gateway rollback {journal.path}` takes it back")

    def _probe(self, journal: Journal) -> Callable[[], None]:
        proved = partial(probe.prove_again, self._cluster, journal.record, rules_of(self._cluster))
        if self._args.probe == "documents":
            return proved

        def both() -> None:
            proved()
            probe.execute(self._cluster, journal.record)

        return both

    def _say(self, line: str) -> None:
        stream = sys.stderr if self._args.json else sys.stdout
        stream.write(f"{line}\n")
        stream.flush()

    def _require_consent(self, ready: list[Offer]) -> None:
        """Agents that nobody named are changed only when the user says so."""
        shared = {offer.key: offer.others for offer in ready if offer.others}
        if not shared or self._args.shared:
            return
        told = "; ".join(f"{key} also serves {', '.join(others)}" for key, others in shared.items())
        if sys.stdin.isatty() and input(f"{told}. Upgrade for these, too? [y/N] ").strip().lower() in ("y", "yes"):
            return
        raise ClusterError(f"{told}: say --shared to upgrade it for these agents, too. Nothing was changed.")

    def _credentials(self, ready: list[Offer]) -> Mapping[str, str] | None:
        made = {offer.key: offer for offer in ready if offer.makes_connector}
        if not made:
            return None
        if len(made) > 1:
            raise CredentialError("these agents use several connectors: one credential fits one, so name fewer agents")
        if self._args.credential_file:
            return from_file(self._args.credential_file)
        return asked(names_in(next(iter(made.values())).old))

"""``mlc-gateway rollback``: undo upgrades from their backup files."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from gateway.cli.cluster import cluster_options, gateway_option, interrupted_by_signals
from gateway.cli.command import FILE, Command
from gateway.cli.output import fail, print_progress
from gateway.config.load import ConfigError
from gateway.migrate.apply import Gone, Runner, UndoFailed
from gateway.migrate.backup import DIRECTORY, BackupError, Journal, lock_directory
from gateway.migrate.connection import ClusterError, ClusterOptions, Connected, connect
from gateway.migrate.display import request_line
from gateway.migrate.gateways import Gateways, NamedGateways

_EXAMPLES = """\
mlc-gateway rollback --url http://127.0.0.1:9200 mlc-backups/20260101T120000Z-connectors-abc.json
mlc-gateway rollback -c config/gateway.yaml --force mlc-backups/*.json
    (even if somebody changed the connectors since the upgrade)"""


@click.command("rollback", cls=Command, examples=_EXAMPLES)
@click.argument(
    "files", nargs=-1, required=True, type=FILE, metavar="FILE...", help="Backup files; the newest is undone first."
)
@click.option("--force", is_flag=True, help="Also undo where the documents were changed since.")
@gateway_option
@cluster_options
def command(cluster: ClusterOptions, files: tuple[Path, ...], force: bool, gateways: tuple[str, ...]) -> int:
    """Undo upgrades from their backup files, finished or not.

    It is safe to run this twice. An upgrade that can't be undone does not keep those of other models from being undone.
    """
    try:
        journals = sorted(map(_load, files), key=lambda journal: journal.record.created, reverse=True)
        connected = connect(cluster)
        named = NamedGateways(gateways, connected.settings, _print)
        stuck: set[str] = set()
        for journal in journals:
            if not stuck.isdisjoint(journal.record.models):
                _complain(f"{journal.path}: left as it is, as a later upgrade of the same models is not undone")
                continue
            with interrupted_by_signals():
                undone = _undo(connected, journal.path, force, named)
            if not undone:
                stuck.update(journal.record.models)
    except (ClusterError, ConfigError, BackupError, OSError) as error:
        return fail("rollback", 2, str(error))
    return 4 if stuck else 0


def _load(path: Path) -> Journal:
    """Return the journal in a file.

    Raises:
        BackupError: it is none; for the name of a connector, as `upgrade` prints it, with its backup files.
    """
    if path.exists():
        return Journal.load(path)
    backups = [one for one in Path(DIRECTORY).glob("*.json") if _key(one) == str(path)]
    if backups:
        raise BackupError(f"{path} is a connector: give a backup file of it: {', '.join(map(str, sorted(backups)))}")
    raise BackupError(
        f"{path}: No such file. `upgrade --apply` prints the backup file of each connector, by default in ./{DIRECTORY}"
    )


def _key(path: Path) -> str:
    with suppress(BackupError):
        return Journal.load(path).record.key
    return ""


def _undo(cluster: Connected, path: Path, force: bool, gateways: Gateways) -> bool:
    """Undo the upgrade of a backup file, and print what became of it. Return False if it could not be undone.

    Raises:
        BackupError: the file can't be read, or another run uses its directory.
    """
    with lock_directory(path.parent):
        journal = Journal.load(path)  # again: until the lock was taken, another run may have changed it
        same = journal.is_of(cluster.url)
        try:
            left = Runner(cluster, journal, _print, gateways=gateways).roll_back(force, accept_gone=same or force)
        except Gone as gone:
            _print(f"{path}: {gone}")
            return True
        except UndoFailed as error:
            other = ""
            if not same:
                other = f"\nThe backup is of the cluster at {journal.record.url}, and this is {cluster.url}."
                other += " If that is the same cluster, add --force." if not force else ""
            hint = " (--force undoes what somebody changed since, too)" if error.by_force else ""
            calls = "".join(f"\n  {request_line(call)}" for call in error.calls)
            _complain(f"{path}: {error}{other}" + (f"\nNot undone{hint}:{calls}" if calls else ""))
            return False
    _print(f"{path}: {journal.record.key} is {'undone' if left else 'as it was before'}")
    for line in left:
        _print(f"  but {line}")
    return True


def _print(line: str) -> None:
    print_progress(line, sys.stdout)


def _complain(line: str) -> None:
    print_progress(f"mlc-gateway rollback: {line}", sys.stderr)

"""``mlc-gateway rollback``: undo upgrades from their backup files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gateway.cli.cluster import cluster_options, gateway_option
from gateway.cli.command import FILE, Command
from gateway.cli.output import fail
from gateway.config.load import ConfigError
from gateway.migrate.backup import BackupError, Journal, lock_directory
from gateway.migrate.connection import ClusterError, ClusterOptions, connect
from gateway.migrate.display import request_line
from gateway.migrate.gateways import tell
from gateway.migrate.rollback import UndoFailed, roll_back

_EXAMPLES = """\
mlc-gateway rollback --url http://127.0.0.1:9200 mlc-backups/20260101T120000Z-connectors-abc.json
mlc-gateway rollback -c config/gateway.yaml --force mlc-backups/*.json
    (even if somebody changed the connectors since the upgrade)"""


@click.command("rollback", cls=Command, short_help="Undo upgrades from their backup files.", examples=_EXAMPLES)
@click.argument(
    "files", nargs=-1, required=True, type=FILE, metavar="FILE...", help="Backup files; the newest is undone first."
)
@click.option("--force", is_flag=True, help="Also undo where the documents were changed since.")
@gateway_option
@cluster_options
def command(cluster: ClusterOptions, files: tuple[Path, ...], force: bool, gateways: tuple[str, ...]) -> int:
    """Undo upgrades from their backup files, finished or not.

    It is safe to run this twice.
    """
    try:
        journals = sorted(map(Journal.load, files), key=lambda journal: journal.record.created, reverse=True)
        connected = connect(cluster)

        def tell_gateways() -> None:
            for line in tell(gateways, connected.settings):
                _print(line)

        for journal in journals:
            with lock_directory(journal.path.parent):
                left = roll_back(connected, journal, _print, force, changed=tell_gateways)
            _print(f"{journal.path}: {journal.record.key} is {'undone' if left else 'as it was before'}")
            for line in left:
                _print(f"  but {line}")
    except UndoFailed as error:
        calls = "".join(f"\n  {request_line(call)}" for call in error.calls)
        return fail("rollback", 4, f"{error}\nNot undone (--force undoes them, and overwrites others' changes):{calls}")
    except (ClusterError, ConfigError, BackupError, OSError) as error:
        return fail("rollback", 2, str(error))
    return 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

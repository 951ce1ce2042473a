"""``mlc-gateway rollback``: takes upgrades back, from their backup files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.config.load import ConfigError
from gateway.migrate.backup import BackupError, Journal, only_one
from gateway.migrate.connection import ClusterError, connect
from gateway.migrate.connection import add_arguments as add_cluster
from gateway.migrate.display import request_line
from gateway.migrate.rollback import Stuck, roll_back

NAME = "rollback"
HELP = (
    "Take an upgrade back, from its backup file, however far it came; twice does no harm. Exit 0 when it is taken "
    "back, 2 when an option is wrong or the cluster can't be worked with, 4 when something could not be taken back."
)
EXAMPLES = """  mlc-gateway rollback --url http://127.0.0.1:9200 mlc-backups/20260101T120000Z-connectors-abc.json
  mlc-gateway rollback -c config/gateway.yaml --force mlc-backups/*.json
      (also where somebody changed the connector since)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="backup files, taken back last first")
    parser.add_argument("--force", action="store_true", help="also where the documents were changed since")
    add_cluster(parser)


def run(args: argparse.Namespace) -> int:
    """Take each file's upgrade back; the exit status as the command's help says."""
    try:
        journals = sorted(map(Journal.load, args.files), key=lambda journal: journal.record.created, reverse=True)
        cluster = connect(args)
        for journal in journals:
            with only_one(journal.path.parent):
                left = roll_back(cluster, journal, _say, args.force)
            _say(f"{journal.path}: {journal.record.key} is as it was before")
            for line in left:
                _say(f"  but {line}")
    except Stuck as error:
        calls = "".join(f"\n  {request_line(call)}" for call in error.calls)
        sys.stderr.write(
            f"mlc-gateway rollback: {error}\nNot taken back (--force does, over others' changes):{calls}\n"
        )
        return 4
    except (ClusterError, ConfigError, BackupError, OSError) as error:
        sys.stderr.write(f"mlc-gateway rollback: {error}\n")
        return 2
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

"""``mlc-gateway check-config``: check the settings and print the ones in effect."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gateway.app import load_checked
from gateway.cli.command import FILE, Command
from gateway.config.describe import effective
from gateway.config.load import ConfigError, load
from gateway.memory.stores.registry import describe_store

_EXAMPLES = """\
mlc-gateway check-config -c config/gateway.yaml
GATEWAY__UPSTREAM__URL=https://search.example.org mlc-gateway check-config -c config/gateway.yaml"""


@click.command("check-config", cls=Command, examples=_EXAMPLES)
@click.option("-c", "--config", type=FILE, metavar="FILE", help="Settings file, YAML or TOML.")
def command(config: Path | None) -> int:
    """Check the settings and the files they name, and print the settings in effect, without secrets.

    If something is wrong, print every problem on standard error.
    """
    try:
        settings = load_checked(lambda: load(config))
    except ConfigError as error:
        return report(error)
    sys.stdout.write(effective(settings))
    if note := describe_store(settings.memory):
        sys.stdout.write(f"# {note}\n")
    return 0


def report(error: ConfigError) -> int:
    """Print each problem: the setting, its value and what is allowed. Return exit code 2."""
    for problem in error.problems:
        sys.stderr.write(f"{problem}\n")
    return 2

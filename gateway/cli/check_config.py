"""``mlc-gateway check-config``: are the settings right, and what do they come to."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.config.describe import effective
from gateway.config.load import ConfigError, load
from gateway.execute.build import check_rules

NAME = "check-config"
HELP = "Check the settings and print what they come to, secrets hidden; exit 2 when something is wrong."
EXAMPLES = """  mlc-gateway check-config -c config/gateway.yaml
  GATEWAY__UPSTREAM__URL=https://search.example.org mlc-gateway check-config -c config/gateway.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="settings, YAML or TOML")


def run(args: argparse.Namespace) -> int:
    """Print the effective settings; 0, or 2 with every problem on standard error."""
    try:
        settings = load(args.config)
        check_rules(settings)
    except ConfigError as exc:
        return report(exc)
    sys.stdout.write(effective(settings))
    return 0


def report(error: ConfigError) -> int:
    """Print each problem with its key's path, what came and what is allowed; 2."""
    for problem in error.problems:
        sys.stderr.write(f"{problem}\n")
    return 2

"""The commands of ``mlc-gateway``: a table of modules, each with one command.

A module has ``NAME``, ``HELP``, ``EXAMPLES`` (optional), ``add_arguments(parser)`` and ``run(args) -> int``. It
is imported when its command is called, or all of them for the general help.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

MODULES = {
    "serve": "gateway.cli.serve",
    "demo": "gateway.cli.demo",
    "rewrite": "gateway.cli.rewrite",
    "check-config": "gateway.cli.check_config",
    "agents": "gateway.cli.agents",
    "upgrade": "gateway.cli.upgrade",
    "rollback": "gateway.cli.rollback",
    "promote": "gateway.cli.promote",
    "cleanup": "gateway.cli.cleanup",
}


class Command(Protocol):
    """What a command's module offers."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit status."""


def run(argv: Sequence[str]) -> int:
    """Run the command that `argv` (without the program's name) calls for; its exit status."""
    named = [argv[0]] if argv and argv[0] in MODULES else MODULES
    args = _parser(_load(named)).parse_args(argv)
    status: int = args.run(args)
    return status


def _load(names: Iterable[str]) -> list[Command]:
    modules = [MODULES[name] for name in names]
    return [cast(Command, importlib.import_module(module)) for module in modules if importlib.util.find_spec(module)]


def _parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mlc-gateway",
        description="Lets OpenSearch ML Commons agents of any version take the unified `input`.",
        epilog="`mlc-gateway COMMAND --help` shows a command's options and examples.",
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        examples = getattr(command, "EXAMPLES", "")
        sub = subparsers.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.HELP,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser

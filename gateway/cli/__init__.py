"""The commands of ``mlc-gateway``. Each is a module with a click command named ``command``.

A module is imported when its command runs.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import sys
from collections.abc import Sequence

import click

from gateway import __version__
from gateway.cli.command import expand

SUMMARIES = {
    "serve": "Run the gateway in front of a cluster.",
    "mcp": "Serve agents as tools of MCP on standard input and output.",
    "demo": "Show what reaches the LLMs of simulated clusters.",
    "rewrite": "Print what the gateway would send for a request.",
    "check-config": "Check the settings and print the ones in effect.",
    "agents": "List what each agent of a cluster accepts.",
    "upgrade": "Change connectors so that agents accept more.",
    "rollback": "Undo upgrades from their backup files.",
    "rehearse": "Show what another agent's LLM would have been sent.",
    "move": "Copy agents to another cluster.",
    "shift": "Compare the targets of a route, and change their shares.",
    "promote": "Register a legacy agent as a unified one.",
    "cleanup": "Remove what unfinished registrations left behind.",
    "memory": "Manage the sessions that the gateway keeps.",
    "tail": "Print the exchanges of a running gateway.",
    "har": "Recorded exchanges as HAR files, and back.",
    "replay": "Send the requests of a HAR file again, and compare.",
    "help": "Show the help of a command, or a page of it.",
}
"""The commands in the order of the documentation, and what each does. Each is in the module of its name (`_` for `-`).
They stand here, so that the general help need not import the modules."""

TASKS = {
    "Run the gateway": ("serve", "mcp", "check-config", "demo"),
    "Let agents accept more": ("agents", "upgrade", "rollback", "rehearse", "move", "shift", "promote", "cleanup"),
    "See what it does": ("tail", "rewrite", "har", "replay"),
    "Keep conversations": ("memory",),
    "Learn more": ("help",),
}
"""The commands by task, for the general help. It lists others after them."""

_PROGRAM = "mlc-gateway"
_INTERRUPTED = 130
"""The shell's exit code for a program that SIGINT ended."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def _module(command: str) -> str:
    return f"gateway.cli.{command.replace('-', '_')}"


class Commands(click.Group):
    """The group of all commands, imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands that are installed, in the order of the help."""
        return [name for name in SUMMARIES if importlib.util.find_spec(_module(name))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None: there is none of this name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(_module(cmd_name)).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with.

        Raises:
            click.NoSuchCommand: there is none; the message suggests similar names.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command; they may be abbreviated."""
        first = next((index for index, arg in enumerate(args) if not arg.startswith("-")), len(args))
        return super().parse_args(ctx, [*expand(self.get_params(ctx), args[:first]), *args[first:]])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, by task."""
        names = self.list_commands(ctx)
        others = tuple(name for name in names if not any(name in listed for listed in TASKS.values()))
        spacing = max(map(len, names))
        for task, listed in {**TASKS, "Other commands": others}.items():
            if rows := [(name.ljust(spacing), SUMMARIES[name]) for name in listed if name in names]:
                with formatter.section(task):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where to find more."""
        lines = (
            (f"{_PROGRAM} COMMAND --help", "options and examples of a command"),
            (f"{_PROGRAM} help exit-codes", "what the exit codes mean"),
            (f"{_PROGRAM} help environment", "the environment variables that are read"),
        )
        width = max(len(line) for line, _ in lines)
        formatter.write("\n" + "".join(f"  {line:{width}}  {what}\n" for line, what in lines))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=_PROGRAM, message="%(prog)s %(version)s")
def commands() -> None:
    """Let OpenSearch ML Commons agents of any version accept the unified `input`."""


def run(argv: Sequence[str]) -> int:
    """Run the command that `argv` (without the program's name) calls for, and return its exit code."""
    try:
        status: int = commands.main(list(argv), prog_name=_PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as error:
        return _INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else 1
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        from gateway.cli.output import discard  # imports rich, which not every command needs

        discard(sys.stdout)
        sys.stderr.write(f"{_PROGRAM}: the output can't be written: {error.strerror}\n")
        return 2
    return status

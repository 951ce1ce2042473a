"""The parts that all commands share: help with examples and exit codes, and abbreviated options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

Run = Callable[..., int]
"""The function of a command."""
Decorator = Callable[[Run], Run]


class ExitCode(NamedTuple):
    """What an exit code means. commands: those that use it so; none: all of them."""

    code: int
    commands: tuple[str, ...]
    meaning: str


EXIT_CODES = (
    ExitCode(0, (), "Success."),
    ExitCode(1, ("serve",), "A port can't be opened."),
    ExitCode(1, ("demo",), "Part of an input was lost, or the demo can't start."),
    ExitCode(1, ("rewrite",), "The gateway would refuse the request."),
    ExitCode(1, ("agents",), "An agent does not accept a kind of input that --require names."),
    ExitCode(1, ("upgrade",), "A connector that limits its agents can't be upgraded."),
    ExitCode(1, ("rehearse",), "Less than --min-same of the requests arrive the same."),
    ExitCode(1, ("shift",), "A target has more errors than --max-error-ratio."),
    ExitCode(1, ("promote",), "The agent can't be promoted."),
    ExitCode(1, ("move",), "An agent can't be moved, or its copy refuses a kind of request that the agent takes."),
    ExitCode(1, ("cleanup",), "Something can't be removed."),
    ExitCode(
        1,
        tuple(f"memory {name}" for name in ("show", "export", "delete", "pin", "unpin")),
        "There is no such session, or several owners have one.",
    ),
    ExitCode(
        1,
        ("memory export", "memory copy", "memory import", "memory import-cluster", "memory import-agentcore"),
        "A session can't be exported, copied or imported.",
    ),
    ExitCode(1, ("replay",), "A request got no response, or with --compare, a response differs."),
    ExitCode(2, (), "An option, a setting or a file is wrong, or the cluster or the store can't be used."),
    ExitCode(3, ("agents",), "An agent can't be read, and --require was not given."),
    ExitCode(3, ("shift",), "With --max-error-ratio: a target has fewer than --min-runs runs, or none gets any."),
    ExitCode(3, ("upgrade", "move", "shift", "promote"), "A change failed and was undone."),
    ExitCode(4, ("upgrade", "rollback", "move", "promote"), "A change could not be undone."),
    ExitCode(4, ("shift",), "The settings file is changed, but not all gateways run with it: run the command again."),
    ExitCode(130, (), "It was interrupted with Ctrl-C."),
)


def exit_codes(command: str | None) -> list[ExitCode]:
    """Return the rows that apply to one command."""
    return [row for row in EXIT_CODES if not row.commands or command in row.commands]


FILE = click.Path(path_type=Path, readable=False)
"""A file name. The command that opens the file reports what is wrong with it."""


config_option = click.option("-c", "--config", type=FILE, metavar="FILE", help="The gateway's settings.")
"""The option of the commands that only read the settings."""


class _Percent(click.FloatRange):
    """A number from 0 to 100. The sign may follow it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail on one out of range."""
        number: Any = value.strip().removesuffix("%").rstrip() if isinstance(value, str) else value
        return float(super().convert(number, param, ctx))


PERCENT = _Percent(0, 100)


class _Url(click.ParamType[str]):
    """The address of a server, without a query."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the address; fail on one without scheme or host."""
        try:
            parts = urlsplit(value)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            self.fail(f"{value!r} is not an address such as http://127.0.0.1:9200.", param, ctx)
        return str(value)


URL = _Url()


def collected(name: str, make: Callable[..., Any], options: Mapping[str, Decorator]) -> Callable[[Run], Run]:
    """Return a decorator that adds options to a command. The function gets what `make` returns of their values.

    name: of its argument. options: by the names of their values.
    """

    def decorate(function: Run) -> Run:
        @functools.wraps(function)
        def run(**values: Any) -> int:
            own = {option: values.pop(option) for option in options}
            return function(**{name: make(**own)}, **values)

        command: Run = run
        for option in reversed(list(options.values())):
            command = option(command)
        return command

    return decorate


class ClusterOption(click.Option):
    """An option that says how to reach the cluster. The help lists these options apart."""


class Command(click.Command):
    """A command of `mlc-gateway`. examples: command lines, one a line, for the help and the documentation.

    full_name: with that of its group.
    """

    def __init__(self, *args: Any, examples: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples
        self.full_name = str(self.name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; an option may be abbreviated."""
        return super().parse_args(ctx, list(expand(self.get_params(ctx), args)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of the cluster last."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Cluster": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections["Cluster" if isinstance(param, ClusterOption) else "Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes and the examples."""
        _write_epilog(formatter, [(str(row.code), row.meaning) for row in exit_codes(self.full_name)], self.examples)


class Group(click.Group):
    """A group of commands of `mlc-gateway`. examples: as for `Command`."""

    command_class = Command

    def __init__(self, *args: Any, examples: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command of the group."""
        super().add_command(cmd, name)
        if isinstance(cmd, Command):
            cmd.full_name = f"{self.name} {cmd.name}"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they were added."""
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes of the commands, and examples."""
        rows = [row for row in EXIT_CODES if not row.commands or any(map(self._has, row.commands))]
        meanings = [
            (str(row.code), ": ".join(filter(None, (", ".join(filter(self._has, row.commands)), row.meaning))))
            for row in rows
        ]
        _write_epilog(formatter, meanings, self.examples)

    def _has(self, command: str) -> bool:
        return command.startswith(f"{self.name} ")


def _write_epilog(formatter: click.HelpFormatter, codes: list[tuple[str, str]], examples: str) -> None:
    with formatter.section("Exit codes"):
        formatter.write_dl(codes)
    with formatter.section("Examples"):
        for line in examples.splitlines():
            formatter.write(f"  {line}\n")


def expand(params: Iterable[click.Parameter], args: Sequence[str]) -> Iterable[str]:
    """Yield `args` with abbreviated long options written out, up to a ``--``.

    An abbreviation that fits several options stays as it is; click reports it with suggestions. ``-c=FILE`` becomes
    ``-c FILE``, as click would take the ``=`` for a part of the value.
    """
    names = [name for param in params if isinstance(param, click.Option) for name in param.opts]
    for index, arg in enumerate(args):
        if arg == "--":
            yield from args[index:]
            return
        name, equals, value = arg.partition("=")
        if equals and len(name) == 2 and name in names:
            yield from (name, value)
            continue
        found = [full for full in names if full.startswith(name)] if name.startswith("--") else []
        yield found[0] + equals + value if len(found) == 1 and name not in names else arg

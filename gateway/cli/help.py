"""``mlc-gateway help``: the help of a command, and pages on what all commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from gateway.cli.command import EXIT_CODES, Command

_EXAMPLES = """\
mlc-gateway help upgrade
mlc-gateway help exit-codes
mlc-gateway help environment"""


def _exit_codes() -> str:
    formatter = click.HelpFormatter()
    with formatter.section("Exit codes"):
        rows = [(str(row.code), f"{', '.join(row.commands) or 'all commands'}: {row.meaning}") for row in EXIT_CODES]
        formatter.write_dl(rows)
    return formatter.getvalue()


def _environment() -> str:
    from gateway.config.variables import READ  # here, as it loads all settings

    settings = "a setting, such as GATEWAY__UPSTREAM__URL for upstream.url; overrides the file"
    formatter = click.HelpFormatter()
    with formatter.section("Environment variables"):
        formatter.write_dl([("GATEWAY__SECTION__KEY", settings), *READ.items()])
    return formatter.getvalue()


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "exit-codes": ("What the exit codes of the commands mean.", _exit_codes),
    "environment": ("The environment variables that are read.", _environment),
}
"""The pages that no command has: what is on each, and the function that returns it."""


class _Topic(click.ParamType[str]):
    """A page of the help, or a command."""

    name = "topic"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete a topic."""
        return [CompletionItem(topic) for topic in _topics(ctx.find_root()) if topic.startswith(incomplete)]


def _topics(root: click.Context) -> list[str]:
    group = root.command
    assert isinstance(group, click.Group)
    return [*PAGES, *group.list_commands(root)]


@click.command("help", cls=Command, examples=_EXAMPLES)
@click.argument("topics", nargs=-1, type=_Topic(), metavar="[TOPIC]...", help="exit-codes, environment or a command.")
@click.pass_context
def command(ctx: click.Context, topics: tuple[str, ...]) -> int:
    """Show the help of a command, such as `memory list`, or a page: exit-codes, environment."""
    root = ctx.find_root()
    if len(topics) == 1 and topics[0] in PAGES:
        sys.stdout.write(PAGES[topics[0]][1]())
        return 0
    at, found = root, root.command
    for number, topic in enumerate(topics):
        inner = found.get_command(at, topic) if isinstance(found, click.Group) else None
        if inner is None:
            raise click.NoSuchCommand(topic, possibilities=[] if number else _topics(root), ctx=ctx)
        at, found = click.Context(inner, info_name=topic, parent=at), inner
    sys.stdout.write(found.get_help(at) + "\n")
    return 0

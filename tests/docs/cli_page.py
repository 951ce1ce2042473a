"""Write `docs/reference/cli.md` from the commands themselves: ``python -m tests.docs.cli_page`` (a test compares)."""

from __future__ import annotations

from collections.abc import Iterator

import click

from gateway.cli import SUMMARIES, commands
from gateway.cli.command import EXIT_CODES, ClusterOption, Command, Group
from tests.docs.pages import DOCS

_HEAD = """# The command line

`mlc-gateway COMMAND --help` shows the same. `python -m tests.docs.cli_page` writes this page; a test compares.
An option may be abbreviated as long as it is unambiguous: `--conf` for `--config`.
"""

_CLUSTER = """
## Options of the cluster
Every command that talks to a cluster has these. They override the settings file.

"""

_COMPLETION = """
## Shell completion
Put one of these lines into the start-up file of your shell:

```sh
eval "$(_MLC_GATEWAY_COMPLETE=bash_source mlc-gateway)"   # bash 4.4 or later: ~/.bashrc
eval "$(_MLC_GATEWAY_COMPLETE=zsh_source mlc-gateway)"    # zsh: ~/.zshrc
_MLC_GATEWAY_COMPLETE=fish_source mlc-gateway | source    # fish: ~/.config/fish/completions/mlc-gateway.fish
```
"""


def render() -> str:
    """Return the whole page."""
    found = [pair for name in SUMMARIES for pair in _commands(name)]
    sections = "".join(_section(name, command) for name, command in found)
    cluster = _options(next(command for name, command in found if name == "agents"), of_cluster=True)
    return _HEAD + _overview(found) + _exit_codes() + _COMPLETION + sections + _CLUSTER + cluster


def _commands(name: str) -> Iterator[tuple[str, Command]]:
    """Yield a command with its name, or those of a group."""
    command = commands.get_command(click.Context(commands), name)
    for one in command.commands.values() if isinstance(command, Group) else [command]:
        assert isinstance(one, Command)
        yield one.full_name, one


def _overview(found: list[tuple[str, Command]]) -> str:
    rows = "".join(
        f"| [`{name}`](#{name.replace(' ', '-')}) | {SUMMARIES.get(name) or command.short_help} |\n"
        for name, command in found
    )
    return f"\n| command | what it does |\n|---|---|\n{rows}"


def _exit_codes() -> str:
    rows = "".join(f"| {row.code} | {', '.join(row.commands) or 'all'} | {row.meaning} |\n" for row in EXIT_CODES)
    return f"\n## Exit codes\n\n| code | commands | meaning |\n|---|---|---|\n{rows}"


def _section(name: str, command: Command) -> str:
    shares = any(isinstance(param, ClusterOption) for param in command.params)
    more = "\nAnd the [options of the cluster](#options-of-the-cluster).\n" if shares else ""
    text = " ".join((command.help or "").split())
    return f"\n## {name}\n{text}\n\n{_options(command)}{more}\n```sh\n{command.examples}\n```\n"


def _options(command: Command, of_cluster: bool = False) -> str:
    rows = "".join(_rows(command, of_cluster))
    return f"| option | meaning |\n|---|---|\n{rows}"


def _rows(command: Command, of_cluster: bool) -> Iterator[str]:
    context = click.Context(command)
    for param in command.params:
        if isinstance(param, ClusterOption) != of_cluster:
            continue
        names = ", ".join(f"`{name}`" for name in param.opts)
        metavar = param.make_metavar(context)
        if "|" in metavar:
            metavar = metavar.strip("[]").replace("|", ", ")
        value = f" `{metavar}`" if isinstance(param, click.Option) and not param.is_flag else ""
        shown = names + value if isinstance(param, click.Option) else f"`{metavar}`"
        yield f"| {shown} | {param.help or ''} |\n"


if __name__ == "__main__":
    (DOCS / "reference" / "cli.md").write_text(render())

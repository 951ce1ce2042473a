"""Writes `docs/reference/cli.md` from the commands themselves: ``python -m tests.docs.cli_page`` (a test compares)."""

from __future__ import annotations

import argparse
import importlib

from gateway.cli import MODULES
from tests.docs.pages import DOCS

_HEAD = """# The command line

`mlc-gateway COMMAND --help` shows the same. Written by `python -m tests.docs.cli_page`; a test compares.
"""


def written() -> str:
    """The whole page."""
    return _HEAD + "".join(_section(name, module) for name, module in MODULES.items())


def _section(name: str, module_name: str) -> str:
    command = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    rows = "".join(_row(action) for action in parser._actions)
    examples = getattr(command, "EXAMPLES", "")
    shown = f"\n```sh\n{_dedented(examples)}\n```\n" if examples else ""
    return f"\n## {name}\n{command.HELP}\n\n| option | meaning |\n|---|---|\n{rows}{shown}"


def _row(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar}`"
    value = f" `{action.metavar}`" if action.metavar and action.option_strings else ""
    return f"| {names}{value} | {action.help or ''} |\n"


def _dedented(text: str) -> str:
    return "\n".join(line[2:] for line in text.split("\n"))


if __name__ == "__main__":
    (DOCS / "reference" / "cli.md").write_text(written())

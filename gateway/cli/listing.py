"""Listings: rows as a table or, if that is too wide, as blocks of lines; or JSON. No value is ever cut."""

from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Callable, Sequence

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Columns of space between two columns of a table."""
_INDENT = "  "


def form_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add `--json` and `--table`, of which the last counts; the function gets `as_json`.

    Without either, a terminal gets a table, and a pipe or a file JSON.
    """

    @functools.wraps(function)
    def collected(form: str | None, **values: object) -> int:
        return function(as_json=form == "json" or (form is None and not sys.stdout.isatty()), **values)

    table = click.option("--table", "form", flag_value="table", help="Print text to a pipe or a file, too.")
    return click.option("--json", "form", flag_value="json", help="Print JSON on a terminal, too.")(table(collected))


def text_or_json(function: Callable[..., int]) -> Callable[..., int]:
    """Add the same options, to a command that prints text everywhere without them; the function gets `json`."""

    @functools.wraps(function)
    def collected(form: str, **values: object) -> int:
        return function(json=form == "json", **values)

    table = click.option("--table", "form", flag_value="table", default="table", help="Print text (default).")
    return click.option("--json", "form", flag_value="json", help="Print JSON.")(table(collected))


def show_rows(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]], naming: int = 1) -> None:
    """Print rows of texts. naming: the first columns, which tell the rows apart.

    Columns without any value are left out. If a table does not fit, each row gets a line with what names it, and the
    rest in indented lines.
    """
    full = [number for number in range(len(titles)) if number < naming or any(row[number] for row in rows)]
    widths = [max(Text(text).cell_len for text in (titles[n], *(row[n] for row in rows))) for n in full]
    if sum(widths) + _GAP * (len(full) - 1) <= console.width:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for number in full:
            table.add_column(titles[number], no_wrap=True)
        for row in rows:
            table.add_row(*(Text(row[number]) for number in full))
        console.print(table)
        return
    for row in rows:
        console.print(Text(" ".join(filter(None, row[:naming])), "bold"), soft_wrap=True)
        about = [f"{titles[number]} {row[number]}" for number in full[naming:] if row[number]]
        for line in join(about, console.width - len(_INDENT)):
            console.print(_INDENT + line, soft_wrap=True)


def join(parts: Sequence[str], width: int, gap: str = "  ") -> list[str]:
    """Return the parts in as few lines as fit into `width`. A longer part has lines of its own; no word is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(gap) + len(part) <= width:
            lines[-1] += gap + part
        else:
            lines += textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False)
    return lines

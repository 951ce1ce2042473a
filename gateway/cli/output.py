"""Output that the commands have in common: texts, JSON, listings and progress bars.

A listing is a table or, if that is too wide, blocks of lines; or JSON. No value is ever cut.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text


def to_json(value: Any) -> str:
    """Format a report as indented JSON with a final line feed."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


class PlainConsole(Console):
    """Prints texts that others wrote, such as names of agents: without markup, and as `printable` text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of `renderable`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def plural(number: int, noun: str) -> str:
    """Return a noun as it stands after a number."""
    return noun if number == 1 else f"{noun}s"


def print_json(value: Any) -> None:
    """Print a report as JSON."""
    sys.stdout.write(to_json(value))


def fail(command: str, status: int, message: str) -> int:
    """Print `message` on standard error under the command's name, and return `status`."""
    sys.stderr.write(f"mlc-gateway {command}: {printable(message)}\n")
    return status


def print_progress(line: str, stream: TextIO) -> None:
    """Print a line on a change that is being made.

    If nobody reads the stream any more, or its disk is full, the change goes on, and later lines are discarded.
    """
    try:
        stream.write(f"{printable(line)}\n")
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Discard what is still to be written to the stream."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def printable(value: Any) -> str:
    """Return a value as text whose control characters, which could steer the terminal, are replaced."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(value))


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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


def table_of(*titles: str) -> Table:
    """Return a table whose cells are folded if they do not fit."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


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


def join(parts: Sequence[str], width: int) -> list[str]:
    """Return the parts in as few lines as fit into `width`. A longer part has lines of its own; no word is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + _GAP + len(part) <= width:
            lines[-1] += " " * _GAP + part
        else:
            lines += textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False)
    return lines


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Return a progress bar on standard error, which is shown if that is a terminal."""
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar. Call the value after each of `total` steps."""
    with progress_bar(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)

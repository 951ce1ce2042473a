"""What the suite prints, and the table it writes into a page."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.attacks.judge import Outcome, Size

COLUMNS = ("attack", "p99", "max", "direct", "waited", "peak", "left", "fds", "in flight", "rest", "SIGTERM", "")
MARKERS = "<!-- results: written by `make attacks` -->", "<!-- /results -->"


def cells(outcome: Outcome) -> list[str]:
    """The cells of a row, as text."""
    name = f"{outcome.group}: {outcome.name}"
    fault = "; ".join(outcome.faults)
    ended = f"{outcome.ended:.1f} s" if outcome.ended >= 0 else ""
    if not outcome.pings:
        return [name, *[""] * 9, ended, fault]
    return [
        name, f"{outcome.p99:.0f} ms", f"{outcome.most:.0f} ms", f"{outcome.direct:.0f} ms",
        f"{outcome.waited:.0f} ms", f"{outcome.peak:.0f} MiB",
        f"{outcome.left:.0f} MiB", f"{outcome.descriptors:+}", f"{outcome.in_flight}", f"{outcome.rest:.1f} s",
        ended, fault,
    ]  # fmt: skip


class Report:
    """Collects outcomes and shows them: a table on a terminal, else one JSON document. Progress goes to stderr."""

    def __init__(self, count: int, *, as_json: bool) -> None:
        self._count = count
        self._as_json = as_json
        self.outcomes: list[Outcome] = []

    @property
    def withstood(self) -> bool:
        return bool(self.outcomes) and all(outcome.withstood for outcome in self.outcomes)

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        fault = "; ".join(outcome.faults) or "withstood"
        figures = f"p99 {outcome.p99:.0f} ms, max {outcome.most:.0f} ms, direct {outcome.direct:.0f} ms, "
        figures += f"waited {outcome.waited:.0f} ms, "
        figures += f"peak {outcome.peak:+.0f} MiB, left {outcome.left:+.0f} MiB"
        sys.stderr.write(
            f"[{len(self.outcomes)}/{self._count}] {outcome.setup}: {outcome.group}: {outcome.name}: "
            f"{figures if outcome.pings else ''}: {fault}\n"
        )
        sys.stderr.flush()

    def end(self) -> None:
        """Show them all."""
        if self._as_json:
            print(json.dumps([outcome.document() for outcome in self.outcomes], indent=1))
            return
        console = Console()
        for setup, outcomes in self._by_setup().items():
            table = Table(title=setup, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
            for number, column in enumerate(COLUMNS):
                table.add_column(column, no_wrap=0 < number < len(COLUMNS) - 1)
            for outcome in outcomes:
                table.add_row(*cells(outcome), style="" if outcome.withstood else "red")
            console.print(table)
        failed = sum(not outcome.withstood for outcome in self.outcomes)
        console.print(f"{len(self.outcomes)} rows, {failed} failed")

    def write(self, file: Path, size: Size) -> None:
        """Put the tables into a page, between its markers."""
        page = file.read_text()
        lines = [f"{size.pings} pings beside each attack; {os.cpu_count()} cores, Python {platform.python_version()}."]
        for setup, outcomes in self._by_setup().items():
            lines += ["", f"#### Setup: {setup}", "", f"| {' | '.join(COLUMNS)} |"]
            lines.append("|---" * len(COLUMNS) + "|")
            lines += [f"| {' | '.join(cells(outcome)).replace('`', '')} |" for outcome in outcomes]
        begin, end = MARKERS
        part = "\n".join((begin, *lines, end))
        file.write_text(re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: part, page, flags=re.DOTALL))

    def _by_setup(self) -> dict[str, list[Outcome]]:
        found: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            found.setdefault(outcome.setup, []).append(outcome)
        return found

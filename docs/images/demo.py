"""Draws `docs/images/demo.svg` from what the demo prints: ``python docs/images/demo.py`` (``make docs`` runs it)."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_suffix(".svg")
TABLES = (1, 3)  # of the first cluster: an image, and a video, which one provider can't take
STYLES = {"✓": "green", "–": "yellow", "✗": "red"}
WIDTH = 140  # the demo's, where it does not print to a terminal


def tables(printed: str) -> list[str]:
    """Each table that the demo printed, with its title."""
    found: list[list[str]] = []
    lines = printed.splitlines()
    for title, line in pairwise(lines):
        if line.startswith("┏"):
            found.append([title])
        if line[:1] in "┏┃┡│├└" and found:
            found[-1].append(line)
    return ["\n".join(lines) for lines in found]


def styled(table: str) -> Text:
    """The table in colours: marks, and the words that belong to them in the last column."""
    text = Text()
    style = ""
    for number, line in enumerate(table.splitlines()):
        cell = line.rfind("│ ", 0, -2)
        if line[:1] != "│" or cell < 0:
            text.append(f"{line}\n", "bold" if number == 0 else "")
            style = ""
            continue
        style = STYLES.get(line[cell + 2 : cell + 3], style)
        text.append(line[: cell + 2])
        text.append(line[cell + 2 : -1], style)
        text.append(f"{line[-1]}\n")
    return text


def main() -> None:
    """Run the demo and draw it."""
    command = [sys.executable, "-m", "gateway", "demo", "--once", "--all"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    shown = tables(printed)
    for number in TABLES:
        console.print(styled(shown[number]))
    console.print(printed.splitlines()[-2], style="bold", highlight=False)
    picture = console.export_svg(title="mlc-gateway demo --once --all", unique_id="demo")
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL))  # nothing from the network


if __name__ == "__main__":
    main()

"""Output that the commands have in common."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


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

"""Output that the commands have in common."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, TextIO


def to_json(value: Any) -> str:
    """Format a report as indented JSON with a final line feed."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def print_json(value: Any) -> None:
    """Print a report as JSON."""
    sys.stdout.write(to_json(value))


def fail(command: str, status: int, message: str) -> int:
    """Print `message` on standard error under the command's name, and return `status`."""
    sys.stderr.write(f"mlc-gateway {command}: {message}\n")
    return status


def print_progress(line: str, stream: TextIO) -> None:
    """Print a line on a change that is being made.

    If nobody reads the stream any more, or its disk is full, the change goes on, and later lines are discarded.
    """
    try:
        stream.write(f"{line}\n")
        stream.flush()
    except OSError:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


def printable(value: Any) -> str:
    """Return a value as text whose control characters, which could steer the terminal, are replaced."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(value))


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

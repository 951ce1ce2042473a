"""Other Python processes that run modules of the gateway."""

from __future__ import annotations

import sys
from pathlib import Path


def module_command(name: str) -> list[str]:
    """Return the command that runs a module in this Python, which imports from the same places as this process.

    Without `-P` it imports from the working directory first. The command `mlc-gateway` does not import from there.
    """
    try:
        options = [] if str(Path.cwd()) in sys.path else ["-P"]
    except FileNotFoundError:  # the directory was deleted
        options = ["-P"]
    return [sys.executable, *options, "-m", name]

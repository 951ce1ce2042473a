"""The command line: ``mlc-gateway`` and ``python -m gateway``."""

from __future__ import annotations

import sys

from gateway.cli import run


def main() -> int:
    """Run the command that the arguments name, and return its exit code."""
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

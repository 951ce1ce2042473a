"""The command line: ``mlc-gateway`` and ``python -m gateway``."""

from __future__ import annotations

import os
import sys

from gateway.cli import run


def main() -> int:
    """Run the command that the arguments name, and return its exit code."""
    _open_standard_streams()
    return run(sys.argv[1:])


def _open_standard_streams() -> None:
    """Open ``/dev/null`` for each standard stream that is closed. Otherwise a socket would get its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


if __name__ == "__main__":
    sys.exit(main())

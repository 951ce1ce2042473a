"""The command line: ``mlc-gateway`` and ``python -m gateway``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command that the arguments name, and return its exit code."""
    _open_standard_streams()
    if sys.argv[1:2] == ["serve"]:  # until `gateway.app.process.on_hang_up`; imports take half a second
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from gateway.cli import run

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

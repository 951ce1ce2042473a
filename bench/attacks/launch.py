"""Starts a command that ends when its parent does, within a limit of memory: ``python -m bench.attacks.launch …``."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

MOST_MEMORY = 8 << 30
"""Bytes of address space. A bomb must not take the machine down with the gateway."""
_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.execv(sys.argv[1], sys.argv[1:])

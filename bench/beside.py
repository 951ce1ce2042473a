"""Small requests beside executes with a large body, which another process sends one after the other.

``python -m bench.beside <port> <body>`` is that process. It gives way to all others: building and sending such bodies
takes much of the core that load and upstream share, and what it takes from them is not the gateway's doing. Pings
straight to the upstream at the same time show what is left of that.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass

from bench.bodies import image_body, text_body
from bench.load import Ask, Connection
from bench.open_loop import Outcome, Schedule, run
from bench.process import give_way
from bench.upstream import EXECUTE

DIRECT = "direct"
"""Stands for the upstream, reached without a proxy."""
BODIES = {"images": lambda: image_body(1_000_000), "texts": lambda: text_body(8_000_000)}
_RATE = 50
"""Small requests a second."""
_LEAST = 200
"""As many of them at least."""


@dataclass(frozen=True)
class Beside:
    """through, direct: the small requests through the proxy and straight to the upstream. rate: executes a second."""

    through: Outcome
    direct: Outcome
    rate: float


def beside(port: int, upstream: int, ask: Ask, seconds: float, body: str) -> Beside:
    """Send `ask` 50 times a second, at least 200 times. Raises RuntimeError if the executes fail.

    body: of the executes, one of `BODIES`.
    """
    command = [sys.executable, "-m", "bench.beside", str(port), body]
    # In a session of its own, as Linux shares a core among sessions first (sched(7), "autogroup").
    sender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert sender.stdout is not None
        sender.stdout.readline()  # the first execute has been answered
        seconds = max(seconds, _LEAST / _RATE)
        schedules = [Schedule(one, ask.raw(), _RATE, seconds, connections=4) for one in (port, upstream)]
        began = time.perf_counter()
        through, direct = run(*schedules)
        took = time.perf_counter() - began
        executes, _ = sender.communicate(timeout=60)
    finally:
        sender.kill()
        sender.wait()
    if sender.returncode:
        raise RuntimeError("the executes with a large body failed")
    return Beside(through, direct, int(executes) / took)


def main(port: int, body: str) -> None:
    """Send executes until standard input ends; print how many after the first."""
    give_way(os.getpid(), 10)
    raw = Ask(EXECUTE, BODIES[body]()).raw()
    connection = Connection(port)
    connection.exchange(raw)
    print("ready", flush=True)
    count = 0
    while not select.select((sys.stdin,), (), (), 0)[0]:
        connection.exchange(raw)
        count += 1
    print(count)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

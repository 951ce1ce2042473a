"""What the gateway uses: memory, descriptors, requests in flight."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.request
from dataclasses import dataclass

from bench.process import PROC, Process

_IN_FLIGHT = re.compile(r"^mlc_gateway_in_flight(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Use:
    """memory: resident bytes. peak: the most since the last `forget`. descriptors, in_flight: -1 for unknown."""

    memory: int
    peak: int
    descriptors: int
    in_flight: int


def _in_flight(admin: int) -> list[float]:
    """Requests being answered by each worker that tells."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=5) as page:
            return [float(value) for value in _IN_FLIGHT.findall(page.read().decode())]
    except OSError:
        return []


def in_flight(admin: int) -> int:
    """Requests being answered, over all workers; -1 where the admin port does not answer."""
    counts = _in_flight(admin)
    return round(sum(counts)) if counts else -1


def running_workers(admin: int) -> int:
    """How many workers answer."""
    return len(_in_flight(admin))


def descriptors(process: Process) -> int:
    """Open descriptors of the process and its children."""
    total = 0
    for pid in process.pids():
        with contextlib.suppress(OSError):
            total += len(list((PROC / f"{pid}/fd").iterdir()))
    return total


def waited(process: Process) -> float:
    """Seconds that its threads were ready to run while others had the core, as the scheduler counts them."""
    total = 0
    for pid in process.pids():
        for task in PROC.glob(f"{pid}/task/*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(task.read_text().split()[1])
    return total / 1e9


def use(process: Process, admin: int) -> Use:
    """What it uses now. Raises OSError where a process has just ended."""
    running = in_flight(admin)  # first: asking takes a connection
    return Use(process.memory(), process.memory("VmHWM"), descriptors(process), running)


def forget(process: Process) -> None:
    """Count the peak from here on, where the system allows that."""
    with contextlib.suppress(OSError):
        process.forget_peak()


def wait_for_rest(process: Process, admin: int, most: int, descriptors: int, seconds: float = 5.0) -> tuple[Use, float]:
    """Wait until nothing is in flight, and memory and descriptors are no more than these; what is used then, and when.

    After `seconds` at the latest.
    """
    start = time.monotonic()
    while True:
        now = use(process, admin)
        passed = time.monotonic() - start
        resting = now.in_flight == 0 and now.descriptors <= descriptors and now.memory <= most
        if resting or passed > seconds:
            return now, passed
        time.sleep(0.1)

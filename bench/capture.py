"""``make bench-capture``: CPU time of the whole gateway process a request, with and without recording, in turns.

Each ratio is the median of the rounds' ratios of on to off, so that a machine whose speed drifts does not matter. Exits
with 1 where a ratio is above its limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.load import Ask, Connection, counted
from bench.process import Process, allow_many_files, free_port
from bench.rewrite import image_body, text_body
from bench.upstream import EXECUTE

LOADS = {
    "GET 1 KB": (Ask("/bytes/1000"), 1.10),
    "execute, 1 KB of text": (Ask(EXECUTE, text_body(1000)), 1.15),
    "execute, 1 MB image": (Ask(EXECUTE, image_body(1_000_000)), None),
}
"""Request and limit of its ratio; None: it is only shown."""


def settings(folder: Path, stores: str | None) -> dict[str, list[str]]:
    """Return arguments of ``serve``: without and with recording. stores: as JSON; None for the default."""
    files = {"off": "{}", "on": '{"inspector": {"enabled": true%s}}' % (f', "stores": {stores}' if stores else "")}
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return {name: ["--config", str(folder / f"{name}.yaml")] for name in files}


_IDLE = 0.015
"""Seconds of CPU time in 0.3 s, below which a process counts as idle."""


class Rounds:
    """Gateways with and without recording, before one upstream."""

    def __init__(self, folder: Path, seconds: float, stores: str | None) -> None:
        self._folder, self._seconds = folder, seconds
        self._arguments = settings(folder, stores)
        cores = sorted(os.sched_getaffinity(0))
        self._load_core, self._proxy_core = {cores[0]}, {cores[-1]}
        self.ratios: dict[str, list[float]] = {what: [] for what in LOADS}
        self.micros: dict[str, list[float]] = {what: [] for what in LOADS}
        """CPU time a request without recording, in microseconds."""

    def run(self, rounds: int) -> None:
        """Measure."""
        os.sched_setaffinity(0, self._load_core)
        port = free_port()
        upstream = Process("upstream", [sys.executable, "-m", "bench.upstream", str(port)], port)
        gateways = {}
        try:
            upstream.wait_until_up()
            gateways = {name: self._start(name, port) for name in self._arguments}
            for number in range(rounds):
                self._round(gateways, number % 2 == 1)
                print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
        finally:
            for gateway in gateways.values():
                gateway.stop()
            upstream.stop()

    def _start(self, name: str, upstream: int) -> Process:
        port = free_port()
        command = [sys.executable, "-P", "-m", "gateway", "serve", "--upstream", f"http://127.0.0.1:{upstream}"]
        command += ["--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--log-level", "warning"]
        state = {"XDG_STATE_HOME": str(self._folder / name), "PYTHONPATH": str(Path(__file__).parent.parent)}
        process = Process(name, [*command, *self._arguments[name]], port, state)
        process.wait_until_up()
        process.pin(self._proxy_core)
        return process

    def _round(self, gateways: dict[str, Process], reverse: bool) -> None:
        for what, (ask, _) in LOADS.items():
            times = {}
            for name in sorted(gateways, reverse=reverse):
                times[name] = self._cpu(gateways[name], ask)
            self.ratios[what].append(times["on"] / times["off"])
            self.micros[what].append(times["off"] * 1e6)

    def _cpu(self, process: Process, ask: Ask) -> float:
        """Seconds of CPU time a request. What a request leaves to the recorder's thread is included."""
        connection = Connection(process.port)
        connection.exchange(ask.raw())
        connection.close()
        before = process.cpu()
        answers, _ = counted(process.port, ask, self._seconds, self._load_core, self._folder)
        return (_settled(process) - before) / max(answers, 1)


def _settled(process: Process) -> float:
    """Wait until the process is idle; return its CPU time until then."""
    cpu = process.cpu()
    while True:
        time.sleep(0.3)
        now = process.cpu()
        if now - cpu < _IDLE:
            return now
        cpu = now


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--stores", help="sinks, as a JSON list, such as []; else as by default")
    arguments = parser.parse_args()
    allow_many_files()
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(Path(folder), arguments.seconds, arguments.stores)
        rounds.run(arguments.rounds)
    failed = False
    print("| request | CPU without | with recording | limit |\n|---|---|---|---|")
    for what, (_, limit) in LOADS.items():
        ratio = statistics.median(rounds.ratios[what])
        failed |= limit is not None and ratio > limit
        shown = f"{limit:.2f}" if limit is not None else ""
        print(f"| {what} | {statistics.median(rounds.micros[what]):.0f} µs | {ratio:.2f} | {shown} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()

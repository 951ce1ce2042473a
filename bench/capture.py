"""``make bench-capture``: CPU time of the gateway a request, with and without recording, in turns.

In a round, both gateways get requests in turns of 50 ms, and each ratio is the median of many rounds, so that a machine
whose speed drifts does not matter. Both gateways are started again every few rounds: two processes with the same
settings differ for as long as they run. ± is the standard error of a median. Exits with 1 where a ratio is above its
limit, or exchanges were dropped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.bodies import image_body, text_body
from bench.load import CONNECTIONS, Ask, counted, in_turns
from bench.process import Process, allow_many_files, free_port
from bench.upstream import EXECUTE

LOADS = {
    "GET 1 KB": Ask("/bytes/1000"),
    "execute, 1 KB of text": Ask(EXECUTE, text_body(1000)),
    "execute, 1 MB image": Ask(EXECUTE, image_body(1_000_000)),
}
RECORDING = {"GET 1 KB": 1.5, "execute, 1 KB of text": 2.5, "execute, 1 MB image": 2.5}
TRACING = {"execute, 1 KB of text": 1.05}
"""Limits of the ratios; other ratios are only shown."""


def settings(folder: Path, on: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return arguments of ``serve``: with default settings, and with `on`."""
    for name, document in {"off": {}, "on": on}.items():
        (folder / f"{name}.yaml").write_text(json.dumps(document))
    return {name: ["--config", str(folder / f"{name}.yaml")] for name in ("off", "on")}


_SHARE = 1 / 5
"""Of the requests a second that a gateway answers at most. Both gateways get as many, as a busier one needs less CPU
time a request. The recorder can keep up with them."""
_ROUNDS_A_START = 2
"""Rounds after which the gateways are started again."""
_WARM_UP = 1.0
"""Seconds of each load right after a start, which do not count: the kernel gives the process its memory meanwhile."""
_IDLE = 0.015
"""Seconds of CPU time in 0.3 s, below which a process counts as idle."""


class Rounds:
    """Gateways with default settings and with `on`, before one upstream."""

    def __init__(self, folder: Path, seconds: float, on: Mapping[str, Any], loads: Mapping[str, Ask] = LOADS) -> None:
        self._folder, self._seconds, self._loads = folder, seconds, loads
        self._arguments = settings(folder, on)
        self._admin = {name: free_port() for name in self._arguments}
        self.dropped = 0.0
        """Exchanges that were not recorded."""
        cores = sorted(os.sched_getaffinity(0))
        self._load_core, self._proxy_core = {cores[0]}, {cores[-1]}
        self.rates: dict[str, float] = {}
        """Requests a second of each load."""
        self.ratios: dict[str, list[float]] = {what: [] for what in loads}
        self.micros: dict[str, list[float]] = {what: [] for what in loads}
        """CPU time a request with default settings, in microseconds."""

    def run(self, rounds: int) -> None:
        """Measure."""
        os.sched_setaffinity(0, self._load_core)
        port = free_port()
        upstream = Process("upstream", [sys.executable, "-m", "bench.upstream", str(port)], port)
        gateways: dict[str, Process] = {}
        try:
            upstream.wait_until_up()
            for start in range(0, rounds, _ROUNDS_A_START):
                gateways = {name: self._start(name, port) for name in self._arguments}
                if not self.rates:
                    self.rates = {what: self._rate(gateways["off"], ask) for what, ask in self._loads.items()}
                for what, ask in self._loads.items():
                    in_turns([p.port for p in gateways.values()], ask, _WARM_UP, CONNECTIONS, self.rates[what])
                for number in range(start, min(start + _ROUNDS_A_START, rounds)):
                    self._round(gateways, number % 2 == 1)
                    print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
                self.dropped += _read_dropped(self._admin["on"])
                while gateways:
                    gateways.popitem()[1].stop()
        finally:
            for gateway in gateways.values():
                gateway.stop()
            upstream.stop()

    def _start(self, name: str, upstream: int) -> Process:
        port = free_port()
        command = [sys.executable, "-P", "-m", "gateway", "serve", "--upstream", f"http://127.0.0.1:{upstream}"]
        command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{self._admin[name]}"]
        command += ["--log-level", "warning"]
        state = {"XDG_STATE_HOME": str(self._folder / name), "PYTHONPATH": str(Path(__file__).parent.parent)}
        process = Process(name, [*command, *self._arguments[name]], port, state)
        process.wait_until_up()
        process.pin(self._proxy_core)
        return process

    def _round(self, gateways: dict[str, Process], reverse: bool) -> None:
        in_order = [gateways[name] for name in sorted(gateways, reverse=reverse)]
        for what, ask in self._loads.items():
            times = self._cpu(in_order, ask, self.rates[what])
            self.ratios[what].append(times["on"] / times["off"])
            self.micros[what].append(times["off"] * 1e6)

    def _rate(self, process: Process, ask: Ask) -> float:
        """Return a part of the requests a second that a gateway answers at most."""
        answers, seconds = counted(process.port, ask, 1.0, self._load_core, self._folder)
        return answers / seconds * _SHARE

    def _cpu(self, gateways: Sequence[Process], ask: Ask, rate: float) -> dict[str, float]:
        """CPU time a request of each gateway. What a request leaves to the recorder is included."""
        before = [_settled(process) for process in gateways]
        answers = in_turns([process.port for process in gateways], ask, self._seconds, CONNECTIONS, rate)
        spent = {}
        for process, then, count in zip(gateways, before, answers, strict=True):
            spent[process.name] = (_settled(process) - then) / count
        return spent


def _read_dropped(admin: int) -> float:
    """Return how many exchanges a gateway has not recorded. admin: its port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("mlc_gateway_records_dropped_total"))


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
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--stores", help="sinks, as a JSON list, such as []; else as by default")
    parser.add_argument(
        "--traces",
        type=float,
        metavar="RATIO",
        help="measure traces of this share of runs instead, sent to a collector",
    )
    arguments = parser.parse_args()
    allow_many_files()
    inspector: dict[str, Any] = {"enabled": True}
    if arguments.stores:
        inspector["stores"] = json.loads(arguments.stores)
    on: dict[str, Any] = {"inspector": inspector}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if arguments.traces is not None:
            port = free_port()
            collector = Process("collector", [sys.executable, "-m", "bench.collector", str(port)], port)
            stack.callback(collector.stop)
            collector.wait_until_up()
            traces = {"endpoint": f"http://127.0.0.1:{port}/v1/traces", "queue": 1_000_000, "ratio": arguments.traces}
            on = {"telemetry": {"traces": traces}}
        rounds = Rounds(Path(folder), arguments.seconds, on)
        rounds.run(arguments.rounds)
    limits, what = (RECORDING, "recording") if arguments.traces is None else (TRACING, f"{arguments.traces:.0%} traced")
    failed = rounds.dropped > 0
    print(f"| request | a second | CPU without | with {what} | limit |\n|---|---|---|---|---|")
    for load in LOADS:
        ratios, limit = rounds.ratios[load], limits.get(load)
        ratio, error = statistics.median(ratios), 1.25 * statistics.pstdev(ratios) / len(ratios) ** 0.5
        failed |= limit is not None and ratio > limit
        shown = f"{limit:.2f}" if limit is not None else ""
        without = f"{rounds.rates[load]:,.0f} | {statistics.median(rounds.micros[load]):.0f} µs"
        print(f"| {load} | {without} | {ratio:.2f} ± {error:.2f} | {shown} |")
    print(f"Exchanges that were dropped: {rounds.dropped:.0f}")
    sys.exit(failed)


if __name__ == "__main__":
    main()

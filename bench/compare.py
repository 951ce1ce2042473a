"""``make bench-compare ARGS="--against REV"``: this tree beside an older commit, interleaved; ratios new to old.

Both run on the same core, one at a time, in turns whose order alternates; each ratio is the median of the rounds'
ratios, so that a machine whose speed drifts does not matter. Exits with 1 where a ratio is above `--limit`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bench.bodies import image_body, text_body
from bench.load import Ask, Connection, many
from bench.memory import growth, idle_connection
from bench.process import Process, allow_many_files, free_port
from bench.upstream import EXECUTE

ROOT = Path(__file__).parent.parent
BIG = 50 * 1024 * 1024
LOADS = {
    "GET 1 KB": Ask("/bytes/1000"),
    "GET 100 KB": Ask("/bytes/100000"),
    "POST 1 KB": Ask("/index/_search", text_body(1000)),
    "execute, 1 KB of text": Ask(EXECUTE, text_body(1000)),
    "execute, 1 KB image": Ask(EXECUTE, image_body(1000)),
    "execute, 1 MB image": Ask(EXECUTE, image_body(1_000_000)),
}


class Comparison:
    """Two trees before one upstream. trees: name → folder. measured: figure → name → one value a round."""

    def __init__(self, trees: dict[str, Path], folder: Path, seconds: float, requests: int, idle: int) -> None:
        self.trees, self.folder = trees, folder
        self.seconds, self.requests, self.idle = seconds, requests, idle
        self.measured: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        cores = sorted(os.sched_getaffinity(0))
        self.load_core, self.proxy_core = {cores[0]}, {cores[-1]}

    def run(self, rounds: int) -> None:
        """Measure all figures in so many rounds."""
        os.sched_setaffinity(0, self.load_core)
        port = free_port()
        upstream = Process("upstream", [sys.executable, "-m", "bench.upstream", str(port)], port)
        try:
            upstream.wait_until_up()
            upstream.pin(self.load_core)
            for number in range(rounds):
                names = list(self.trees)
                if number % 2:
                    names.reverse()
                for name in names:
                    self._round(name, port)
                print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
        finally:
            upstream.stop()

    def _round(self, name: str, upstream: int) -> None:
        process = self._started(name, upstream)
        try:
            for what, ask in LOADS.items():
                self._note(f"CPU, {what}", name, self._cpu(process, ask))
            connection = Connection(process.port)
            self._note(
                "p50 at concurrency 1, GET 1 KB", name, connection.median(LOADS["GET 1 KB"].raw(), self.requests)
            )
            connection.close()
        finally:
            process.stop()
        for what, measure in (
            ("peak memory, 50 MB answer", lambda one: self._growth(one, Ask(f"/bytes/{BIG}").raw(), 0.0005)),
            ("peak memory, 50 MB request", lambda one: self._growth(one, Ask("/slow", b"x" * BIG).raw())),
            ("peak memory, execute of 50 MB", lambda one: self._growth(one, Ask(EXECUTE, image_body(BIG)).raw())),
            ("memory of an idle connection", self._idle_connection),
        ):
            self._fresh(what, name, upstream, measure)

    def _fresh(self, what: str, name: str, upstream: int, measure: Callable[[Process], float]) -> None:
        process = self._started(name, upstream)
        try:
            connection = Connection(process.port)
            for _ in range(100):
                connection.exchange(LOADS["GET 1 KB"].raw())
            connection.exchange(LOADS["execute, 1 KB image"].raw())
            connection.close()
            self._note(what, name, measure(process))
        finally:
            process.stop()

    def _started(self, name: str, upstream: int) -> Process:
        port = free_port()
        command = [sys.executable, "-P", "-m", "gateway", "serve", "--upstream", f"http://127.0.0.1:{upstream}"]
        command += ["--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--log-level", "warning"]
        process = Process(name, command, port, {"PYTHONPATH": str(self.trees[name])})
        process.wait_until_up()
        process.pin(self.proxy_core)
        return process

    def _cpu(self, process: Process, ask: Ask) -> float:
        """CPU seconds a request."""
        connection = Connection(process.port)
        connection.exchange(ask.raw())
        connection.close()
        before = process.cpu()
        answers = many(process.port, ask, self.seconds, self.load_core, self.folder)
        return (process.cpu() - before) / max(answers, 1)

    def _growth(self, process: Process, raw: bytes, pause: float = 0.0) -> float:
        """Bytes by which the peak rises; a tenth of the body is added, so that a ratio of small numbers says little."""
        return growth(process, raw, pause) + BIG / 10

    def _idle_connection(self, process: Process) -> float:
        return idle_connection(process, LOADS["GET 1 KB"].raw(), self.idle)

    def _note(self, what: str, name: str, value: float) -> None:
        self.measured[what][name].append(value)

    def ratios(self) -> dict[str, float]:
        """Figure → median of new by old."""
        new, old = self.trees
        return {
            what: statistics.median(a / b for a, b in zip(values[new], values[old], strict=True))
            for what, values in self.measured.items()
        }

    def table(self) -> str:
        """The figures as Markdown."""
        new, old = self.trees
        lines = [f"| figure | {old} | {new} | ratio |", "|---|---|---|---|"]
        for what, ratio in self.ratios().items():
            values = self.measured[what]
            shown = [_shown(what, statistics.median(values[name])) for name in (old, new)]
            lines.append(f"| {what} | {shown[0]} | {shown[1]} | {ratio:.3f}× |")
        return "\n".join(lines)


def _shown(what: str, value: float) -> str:
    return f"{value / 1e3:.1f} KB" if "memory" in what else f"{value * 1e6:.1f} µs"


def main() -> int:
    """Compare, print the table; 1 if a ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", required=True, metavar="REV", help="the older commit, or a folder that holds it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load in each measurement")
    parser.add_argument("--requests", type=int, default=1000, help="for a latency")
    parser.add_argument(
        "--idle", type=int, default=8000, help="idle connections; few fit in memory that was free before"
    )
    parser.add_argument("--limit", type=float, default=1.05, help="largest ratio that is no miss")
    args = parser.parse_args()
    idle = min(args.idle, allow_many_files() // 2 - 200)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(args.against)
        if not other.is_dir():
            other = Path(folder) / "older"
            subprocess.run(["git", "worktree", "add", "--quiet", "--detach", other, args.against], cwd=ROOT, check=True)
        try:
            comparison = Comparison({"new": ROOT, "old": other}, Path(folder), args.seconds, args.requests, idle)
            comparison.run(args.rounds)
        finally:
            if not Path(args.against).is_dir():
                subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)
    print(comparison.table())
    missed = {what: ratio for what, ratio in comparison.ratios().items() if ratio > args.limit}
    print(f"{len(missed)} of {len(comparison.measured)} figures are above {args.limit}×")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

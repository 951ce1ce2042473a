"""``make bench``: the gateway beside its peers, in one run, interleaved; medians; ratios first.

ARGS="--quick" takes about a minute; ARGS="--only textbook,gateway" leaves the other peers out. The proxies run on
one core each time, load and upstream on another; for latencies all run on one. Writes ``bench/results.md``.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import proxies
from bench.figures import FIGURES, Figure
from bench.load import Ask, Connection, many
from bench.process import Process, allow_many_files, free_port
from bench.rewrite import SIZES, fastest_json, image_body, median, profile, rewrite, text_body, turns_body
from bench.upstream import AGENT
from bench.workers import GET, REWRITE, scaling
from gateway.delivery.plan_cache import PlanCache

RESULTS = Path(__file__).parent / "results.md"
BIG = 50 * 1024 * 1024
_A_SECOND = 50
"""Small requests a second beside large ones."""
EXECUTE = f"/_plugins/_ml/agents/{AGENT}/_execute"
EXECUTES = {
    "text": Ask(EXECUTE, text_body(1000)),
    "image": Ask(EXECUTE, image_body(1000)),
    "conversation": Ask(EXECUTE, turns_body(1000)),
    "large image": Ask(EXECUTE, image_body(1_000_000)),
}
"""Figures that compare what the gateway rewrites with what Envoy passes on."""
SMALL, LARGE = Ask("/bytes/1000"), Ask("/bytes/100000")


class Bench:
    """One run. raw: measurement → proxy → one value a round; figures: what the table shows; remarks: lines below it.

    instead: what stands for a figure that this machine can't give.
    """

    def __init__(self, names: list[str], folder: Path, rounds: int, seconds: float, requests: int, idle: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.proxy_core, self.load_core = {cores[-1]}, {cores[0]}
        self.cores = cores
        self.names = names
        self.folder = folder
        self.rounds, self.seconds, self.requests, self.idle = rounds, seconds, requests, idle
        self.raw: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.figures: dict[str, float] = {}
        self.instead: dict[str, str] = {}
        self.remarks: list[str] = []
        self.versions: dict[str, str] = {}

    def run(self) -> None:
        """Start everything, measure everything, stop everything."""
        os.sched_setaffinity(0, self.load_core)
        port = free_port()
        upstream = Process("upstream", [sys.executable, "-m", "bench.upstream", str(port)], port)
        running: dict[str, Process] = {}
        try:
            upstream.wait_until_up()
            upstream.pin(self.load_core)
            for name in self.names:
                try:
                    running[name] = proxies.started(name, port, self.folder, self.proxy_core)
                    self.versions[name] = proxies.version(name)
                except proxies.Missing as missing:
                    self._remark(f"left out: {missing}")
            for number in range(self.rounds):
                self._round(number, running, upstream)
            for name in running:
                with self._fresh(name, port) as process:
                    self._memory(process)
                with self._fresh(name, port) as process:
                    self._idle(process)
            if "gateway" in running:
                self._workers(upstream)
        finally:
            for process in [*running.values(), upstream]:
                process.stop()
        self._rewrite()
        self._conclude()

    def _remark(self, text: str) -> None:
        print(text, flush=True)
        self.remarks.append(text)

    def _round(self, number: int, running: dict[str, Process], upstream: Process) -> None:
        order = list(running.values())
        order = order[number % len(order) :] + order[: number % len(order)]
        for ask, what in ((SMALL, "GET 1 KB"), (LARGE, "GET 100 KB")):
            for process in order:
                self._cpu(process, ask, what)
        if "gateway" in running:
            body = text_body(1000)
            self._cpu(running["gateway"], Ask("/index/_search", body), "POST 1 KB")
            for what, ask in EXECUTES.items():
                for process in order:
                    if process.name in ("gateway", "envoy"):
                        self._cpu(process, ask, f"execute, {what}")
            self._beside(running["gateway"])
        with self._on_one_core([*order, upstream]):
            for name, port in [("direct", upstream.port), *((process.name, process.port) for process in order)]:
                connection = Connection(port)
                self.raw["p50 at concurrency 1"][name].append(connection.median(SMALL.raw(), self.requests))
                connection.close()
        print(f"round {number + 1} of {self.rounds} done", flush=True)

    def _cpu(self, process: Process, ask: Ask, what: str) -> None:
        """CPU time a request, as the kernel counts it for the proxy's process and its children."""
        connection = Connection(process.port)  # warms up: profile cached, connections made
        try:
            connection.exchange(ask.raw())
        except OSError as error:
            raise RuntimeError(f"{process.name} does not answer {ask.path}: {error}") from error
        connection.close()
        before = process.cpu()
        answers = many(process.port, ask, self.seconds, self.load_core, self.folder)
        self.raw[f"CPU, {what}"][process.name].append((process.cpu() - before) / max(answers, 1))

    @contextmanager
    def _on_one_core(self, processes: list[Process]) -> Iterator[None]:
        """Everything, this process too, on one core."""
        for process in processes:
            process.pin(self.proxy_core)
        os.sched_setaffinity(0, self.proxy_core)
        yield
        os.sched_setaffinity(0, self.load_core)
        for process in processes:
            process.pin(self.load_core if process.name == "upstream" else self.proxy_core)

    def _beside(self, process: Process) -> None:
        """How long small requests take while one client sends executes with a large image, one after the other."""
        raw = Ask(EXECUTE, image_body(10_000_000)).raw()
        ended = threading.Event()

        def send() -> None:
            connection = Connection(process.port)
            while not ended.is_set():
                connection.exchange(raw)
            connection.close()

        sender = threading.Thread(target=send)
        connection, times = Connection(process.port), []
        connection.exchange(SMALL.raw())
        sender.start()
        try:
            for _ in range(round(self.seconds * _A_SECOND)):
                began = time.perf_counter()
                connection.exchange(SMALL.raw())
                times.append(time.perf_counter() - began)
                time.sleep(max(0.0, 1 / _A_SECOND - times[-1]))
        finally:
            ended.set()
            sender.join()
            connection.close()
        self.raw["p99 beside 10 MB executes"][process.name].append(statistics.quantiles(times, n=100)[98])

    @contextmanager
    def _fresh(self, name: str, upstream: int) -> Iterator[Process]:
        """The proxy, started again: memory that an earlier measurement left behind would hide what this one takes."""
        process = proxies.started(name, upstream, self.folder, self.proxy_core)
        connection = Connection(process.port)
        for _ in range(100):
            connection.exchange(SMALL.raw())
        connection.close()
        yield process
        process.stop()

    def _memory(self, process: Process) -> None:
        """Growth of the peak over what was there, for big bodies whose reader is slower than their sender."""
        self.raw["memory, 50 MB answer"][process.name].append(
            self._growth(process, Ask(f"/bytes/{BIG}").raw(), pause=0.0005)
        )
        self.raw["memory, 50 MB request"][process.name].append(self._growth(process, Ask("/slow", b"x" * BIG).raw()))
        if process.name == "gateway":
            self._growth(process, Ask(EXECUTE, image_body(1000)).raw())
            body = image_body(BIG)
            self.figures["peak"] = self._growth(process, Ask(EXECUTE, body).raw()) / len(body)

    def _growth(self, process: Process, raw: bytes, pause: float = 0.0) -> float:
        connection = Connection(process.port)
        before = process.memory()
        process.forget_peak()
        connection.exchange(raw, pause)
        grown = process.memory("VmHWM") - before
        connection.close()
        return max(0, grown)

    def _idle(self, process: Process) -> None:
        """Memory of a connection that has been answered once and stays open."""
        connections = []
        try:
            before = 0
            for number in range(-self.idle // 5, self.idle):  # the first fifth uses up what is free already
                if number == 0:
                    before = process.memory()
                connections.append(Connection(process.port))
                connections[-1].exchange(SMALL.raw())
            grown = process.memory() - before
            connections[0].exchange(SMALL.raw())  # it is still there
            self.raw["memory, idle connection"][process.name].append(grown / self.idle)
        except (OSError, RuntimeError) as error:
            self._remark(f"idle connections of {process.name} not measured: {error}")
        finally:
            for connection in connections:
                connection.close()

    def _workers(self, upstream: Process) -> None:
        """Two workers against one; where the cores for that are not there, what `bench.workers` says of it."""
        if len(self.cores) < 2:
            return
        found = scaling(upstream, SMALL, EXECUTE, self.folder, self.cores, self.rounds, self.seconds)
        self._remark(str(found))
        if REWRITE not in found.answers:
            self.figures["workers"] = found.of_answers(GET)
        else:
            ratio = found.of_answers(REWRITE)
            self.instead["workers"] = f"answers to heavy rewrites, load and upstream on the same cores: {ratio:.2f}×"
            self._remark(
                "a heavy rewrite is a conversation of ten images; beside one worker, load and upstream have the other "
                "core to themselves, beside two they have none, so two free cores should give no less (not measured)"
            )

    def _rewrite(self) -> None:
        """The rewrite function against the fastest JSON library, both in this process."""
        os.sched_setaffinity(0, self.proxy_core)
        plans = PlanCache(profile())
        library, round_trip = fastest_json()
        for name, size in SIZES.items():
            body = image_body(size)
            seconds = min(self.seconds, 2.0)
            mine = median(lambda body=body: rewrite(plans, body), seconds)  # type: ignore[misc]
            theirs = median(lambda body=body: round_trip(body), seconds)  # type: ignore[misc]
            self.raw[f"rewrite of an image, {name}"]["gateway"].append(mine)
            self.raw[f"rewrite of an image, {name}"][library].append(theirs)
        mine, theirs = (self._median("rewrite of an image, 10 MB", name) for name in ("gateway", library))
        self.figures["rewrite"] = theirs / mine
        if library != "orjson":
            self._remark("orjson can't be had: the rewrite is compared with the standard library's json")

    def _median(self, what: str, name: str) -> float:
        return statistics.median(self.raw[what][name])

    def _conclude(self) -> None:
        for key, what in (("textbook", "GET 1 KB"), ("envoy", "GET 1 KB"), ("nginx", "GET 100 KB")):
            measured = self.raw[f"CPU, {what}"]
            if measured["gateway"] and measured[key]:
                pairs = zip(measured["gateway"], measured[key], strict=True)
                self.figures[key] = statistics.median(mine / other for mine, other in pairs)
        for key in EXECUTES:
            measured = self.raw[f"CPU, execute, {key}"]
            if measured["gateway"] and measured["envoy"]:
                pairs = zip(measured["gateway"], measured["envoy"], strict=True)
                self.figures[key] = statistics.median(mine / other for mine, other in pairs)
        executed, passed = self.raw["CPU, execute, text"]["gateway"], self.raw["CPU, POST 1 KB"]["gateway"]
        if executed:
            self.figures["execute"] = statistics.median(e / p for e, p in zip(executed, passed, strict=True))
            self.figures["latency"] = self.added("gateway")
            self.figures["beside"] = self._median("p99 beside 10 MB executes", "gateway")
            self.figures["down"] = self._median("memory, 50 MB answer", "gateway")
            self.figures["up"] = self._median("memory, 50 MB request", "gateway")
        if self.raw["memory, idle connection"]["gateway"]:
            self.figures["idle"] = self._median("memory, idle connection", "gateway")

    def added(self, name: str) -> float:
        """Seconds that `name` adds to the median answer: of the rounds' differences the median."""
        measured = self.raw["p50 at concurrency 1"]
        return statistics.median(p - d for p, d in zip(measured[name], measured["direct"], strict=True))

    def report(self) -> str:
        """The results as Markdown."""
        lines = [
            "# Results of `make bench`",
            "",
            "One machine, one run; other machines give other numbers. The ratios carry over better than the rest.",
            "",
            "| figure | must | aim | measured |",
            "|---|---|---|---|",
            *(self._row(figure) for figure in FIGURES),
            "",
            "## Behind it",
            "",
            *self._details(),
            "",
            "## How",
            "",
            f"{_machine()}; {len(self.cores)} cores. Each proxy has one worker on one core, no access log "
            "(the gateway: log level `warning`, all else at its defaults) and keeps its connections; load (16 "
            "connections) and upstream share another core. CPU is what the kernel's scheduler counts for the proxy's "
            f"process and its children, a request; medians of {self.rounds} interleaved rounds of {self.seconds:g} s. "
            f"Latency: {self.requests} requests one after the other over one connection, all on one core; the time "
            "straight to the upstream is taken off. Memory: growth of the peak (`VmHWM`) over what was resident "
            "before, the reader slower than the sender; for idle connections growth of what is resident, over "
            f"{self.idle} of them. The rewrite's peak includes the body itself.",
            "",
            "; ".join(f"{name}: {version}" for name, version in self.versions.items()) + ".",
            *(f"\n{remark[0].upper()}{remark[1:]}." for remark in self.remarks),
        ]
        return "\n".join(lines) + "\n"

    def _row(self, figure: Figure) -> str:
        value = self.figures.get(figure.key)
        measured = "; ".join(filter(None, (figure.absent(len(self.cores)), self.instead.get(figure.key))))
        if value is not None:
            envoy = self.raw["p50 at concurrency 1"]["envoy"]
            must = self.added("envoy") if figure.key == "latency" and envoy else None
            beside = f" (Envoy: {figure.shown(must)})" if must is not None else ""
            measured = f"{figure.shown(value)}{beside}: {figure.verdict(value, must)}"
        return f"| {figure.name} | {figure.bound(figure.must)} | {figure.bound(figure.aim)} | {measured} |"

    def _details(self) -> list[str]:
        names = [
            name for name in (*proxies.PROXIES, "direct", "orjson", "json") if any(m[name] for m in self.raw.values())
        ]
        lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
        for what, measured in self.raw.items():
            cells = [_shown(what, measured[name]) for name in names]
            lines.append(f"| {what} | {' | '.join(cells)} |")
        return lines


def _shown(what: str, values: list[float]) -> str:
    if not values:
        return ""
    value = statistics.median(values)
    if what.startswith("memory"):
        return f"{value / 1e3:.1f} KB" if "idle" in what else f"{value / 1e6:+.1f} MB"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.1f} µs"


def _machine() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{models[0] if models else platform.machine()}, Linux {kernel}, Python {platform.python_version()}"


def main() -> None:
    """Measure, print the table and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute; rougher numbers")
    parser.add_argument("--only", metavar="NAMES", help=f"comma list of {', '.join(proxies.PROXIES)}")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5; quick: 2)")
    parser.add_argument("--seconds", type=float, help="of load in each measurement (3; quick: 1)")
    parser.add_argument("--requests", type=int, help="for a latency (2000; quick: 500)")
    parser.add_argument("--idle", type=int, help="idle connections (2000; quick: 500)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="bench/results.md")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(proxies.PROXIES)
    if unknown := set(names) - set(proxies.PROXIES):
        parser.error(f"no such proxy: {', '.join(sorted(unknown))}")
    rounds, seconds, requests, idle = (2, 1.0, 500, 500) if args.quick else (5, 3.0, 2000, 2000)
    idle = min(args.idle or idle, allow_many_files() // 2 - 200)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            names, Path(folder), args.rounds or rounds, args.seconds or seconds, args.requests or requests, idle
        )
        bench.run()
    report = bench.report()
    args.output.write_text(report)
    print(report)


if __name__ == "__main__":
    main()

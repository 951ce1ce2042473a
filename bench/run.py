"""``make bench``: the gateway beside its peers, in one run, interleaved; medians; ratios first.

ARGS="--quick" takes some minutes; ARGS="--only nginx,gateway" leaves the other peers out. The proxies run on one core
each time, load and upstream on another. Writes ``bench/results.md``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from bench import bodies, proxies
from bench.beside import DIRECT, beside
from bench.capture import Rounds
from bench.load import Ask, Connection, Load, many
from bench.memory import growth, idle_connection
from bench.process import Process, allow_many_files, free_port
from bench.report import Results, report
from bench.upstream import EXECUTE

RESULTS = Path(__file__).parent / "results.md"
BIG = 50 * 1024 * 1024
SMALL, LARGE = Ask("/bytes/1000"), Ask("/bytes/100000")
EXECUTES = {
    "1 KB of text": bodies.text_body(1000),
    "1 KB image": bodies.image_body(1000),
    "3 turns": bodies.turns_body(3),
    "31 turns": bodies.turns_body(31),
    "33 turns": bodies.turns_body(33),
    "201 turns": bodies.turns_body(201),
    "65,400 bytes of text": bodies.text_body(65_400),
    "65,700 bytes of text": bodies.text_body(65_700),
    "100 KB of text": bodies.text_body(100_000),
    "1 MB of text": bodies.text_body(1_000_000),
    "8 MB of text": bodies.text_body(8_000_000),
    "a document": bodies.document_body(10_000),
    "$ and braces": bodies.special_body(1000),
    "parameters": bodies.parameters_body(1000),
    "1 MB image": bodies.image_body(1_000_000),
}
"""What the gateway rewrites, and Envoy passes on."""
TEXT, IMAGE = (Ask(EXECUTE, EXECUTES[name]) for name in ("1 KB of text", "1 KB image"))
AGENTS: dict[str, Load] = {
    "one agent": [Ask(EXECUTE.replace("/bench/", "/bench-0/"), TEXT.body)],
    "1,200 agents": [Ask(EXECUTE.replace("/bench/", f"/bench-{n}/"), TEXT.body) for n in range(1200)],
    "50 agents, 51 callers": [
        Ask(EXECUTE.replace("/bench/", f"/bench-{n}/"), TEXT.body, {"Authorization": f"Bearer caller-{caller}"})
        for caller in range(51)
        for n in range(50)
    ],
}
FEW, MANY = "16 connections", "2,000 connections"


class Bench:
    """One run. names: of the peers."""

    def __init__(self, names: list[str], folder: Path, results: Results, cores: list[int]) -> None:
        self.proxy_core, self.load_core = {cores[-1]}, {cores[0]}
        self.names = names
        self.folder = folder
        self.results, self.raw, self.figures = results, results.raw, results.figures

    def run(self) -> None:
        """Start everything, measure everything, stop everything."""
        os.sched_setaffinity(0, self.load_core)
        port = free_port()
        upstream = Process("upstream", [sys.executable, "-m", "bench.upstream", str(port)], port)
        running: dict[str, Process] = {}
        try:
            upstream.wait_until_up()
            upstream.pin(self.load_core)
            self._start(port, running)
            for number in range(self.results.rounds):
                self._round(number, running)
            for name in running:
                with self._fresh(name, port) as process:
                    self._memory(process)
                with self._fresh(name, port) as process:
                    self._idle(process)
            if "gateway" in running:
                self._beside(port)
        finally:
            for process in [*running.values(), upstream]:
                process.stop()
        if "gateway" in running:
            self._with_settings()
            self._commands()
        self._conclude()

    def _start(self, port: int, running: dict[str, Process]) -> None:
        """Start the peers that can be had, into `running`. port: of the upstream."""
        for name in self.names:
            try:
                running[name] = proxies.started(name, port, self.folder, self.proxy_core)
                self.results.versions[name] = proxies.version(name)
            except proxies.Missing as missing:
                self.results.remark(f"left out: {missing}")

    def _round(self, number: int, running: dict[str, Process]) -> None:
        order = list(running.values())
        order = order[number % len(order) :] + order[: number % len(order)]
        for ask, what in ((SMALL, "GET 1 KB"), (LARGE, "GET 100 KB")):
            for process in order:
                self._cpu(process, ask, what)
        for process in order:
            if process.name in ("gateway", "nginx", "envoy"):
                self._cpu(process, SMALL, FEW)
                self._cpu(process, SMALL, MANY, min(2000, self.results.idle * 4))
        for what, body in EXECUTES.items():
            for process in order:
                if process.name in ("gateway", "envoy"):
                    self._cpu(process, Ask(EXECUTE, body), what)
        if "gateway" in running:
            for what, asks in AGENTS.items():
                self._cpu(running["gateway"], asks, what)
        print(f"round {number + 1} of {self.results.rounds} done", flush=True)

    def _cpu(self, process: Process, ask: Load, what: str, connections: int = 16) -> None:
        """CPU time a request, as the kernel counts it for the proxy's process and its children.

        Large bodies come over few connections: those that are under way at the end are counted without an answer.
        """
        if isinstance(ask, Ask) and len(ask.body) > 1_000_000:
            connections = 2
        connection = Connection(process.port)  # warms up: profiles cached, connections made
        for one in [ask] if isinstance(ask, Ask) else ask:
            try:
                connection.exchange(one.raw())
            except OSError as error:
                raise RuntimeError(f"{process.name} does not answer {one.path}: {error}") from error
        connection.close()
        before = process.cpu()
        answers = many(process.port, ask, self.results.seconds, self.load_core, self.folder, connections)
        self.raw[what][process.name].append((process.cpu() - before) / max(answers, 1))

    @contextmanager
    def _fresh(self, name: str, upstream: int, settings: Mapping[str, str] | None = None) -> Iterator[Process]:
        """The proxy, started again: memory that an earlier measurement left behind would hide what this one takes."""
        process = proxies.started(name, upstream, self.folder, self.proxy_core, settings)
        connection = Connection(process.port)
        for _ in range(100):
            connection.exchange(SMALL.raw())
        connection.close()
        yield process
        process.stop()

    def _memory(self, process: Process) -> None:
        """Growth of the peak over what was there, for big bodies whose reader is slower than their sender."""
        for what, raw, pause in (
            ("memory, 50 MB answer", Ask(f"/bytes/{BIG}").raw(), 0.0005),
            ("memory, 50 MB request", Ask("/slow", b"x" * BIG).raw(), 0.0),
        ):
            self.raw[what][process.name].append(growth(process, raw, pause))
        if process.name == "gateway":
            growth(process, IMAGE.raw())
            body = bodies.image_body(BIG)
            self.figures["peak"] = growth(process, Ask(EXECUTE, body).raw()) / len(body)

    def _idle(self, process: Process) -> None:
        try:
            self.raw["memory, idle connection"][process.name].append(
                idle_connection(process, SMALL.raw(), self.results.idle)
            )
        except (OSError, RuntimeError) as error:
            self.results.remark(f"idle connections of {process.name} not measured: {error}")

    def _beside(self, upstream: int) -> None:
        """How long small requests take while another process sends executes with a large body."""
        recorded = {"GATEWAY__INSPECTOR__ENABLED": "true"}
        for kind, settings in (("images", recorded), ("texts", {})):
            for name in ("gateway", "envoy") if "envoy" in self.results.versions else ("gateway",):
                with self._fresh(name, upstream, settings) as process:
                    found = beside(process.port, upstream, SMALL, self.results.seconds, kind)
                self.raw[f"p99 beside {kind}"][name].append(found.through.p99)
                self.raw[f"p99 beside {kind}"][DIRECT].append(found.direct.p99)
            self.figures[f"beside {kind}"] = self.results.median(f"p99 beside {kind}", "gateway")

    def _with_settings(self) -> None:
        """The gateway with something switched on, beside itself without."""
        port = free_port()
        guardrail = Process("guardrail", [sys.executable, "-m", "bench.run", "--guardrail", str(port)], port)
        small = {"text": TEXT, "image": IMAGE}
        settings: dict[str, tuple[dict[str, Any], dict[str, Ask]]] = {
            "budget": ({"policy": {"budgets": [{"tokens": 10**15}]}}, small),
            "guardrail": ({"policy": {"guardrails": [{"name": "check", "url": f"http://127.0.0.1:{port}/"}]}}, small),
            "memory": ({"agents": {"rules": [{"agent": "*", "memory": "gateway"}]}}, small),
            "recording": (
                {"inspector": {"enabled": True}},
                {"GET": SMALL, "text": TEXT, "1 MB image": Ask(EXECUTE, EXECUTES["1 MB image"])},
            ),
        }
        try:
            guardrail.wait_until_up()
            for name, (on, loads) in settings.items():
                rounds = Rounds(Path(tempfile.mkdtemp(dir=self.folder)), min(self.results.seconds, 0.7), on, loads)
                rounds.run(self.results.rounds)
                for load, ratios in rounds.ratios.items():
                    self.figures[f"{name}, {load}"] = statistics.median(ratios)
                if rounds.dropped:
                    self.results.remark(f"{rounds.dropped:.0f} exchanges were not recorded")
        finally:
            guardrail.stop()

    def _commands(self) -> None:
        """How long a command takes to say how it is used, and the gateway to start."""
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-m", "gateway", "--help"], capture_output=True, check=True)
            times.append(time.perf_counter() - begun)
        self.figures["help"] = statistics.median(times)
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            process = proxies.started("gateway", free_port(), self.folder, self.proxy_core)
            times.append(time.perf_counter() - begun)
            process.stop()
        self.figures["start"] = statistics.median(times)

    def _conclude(self) -> None:
        results = self.results
        for what, name in (("GET 1 KB", "envoy"), ("GET 1 KB", "nginx"), ("GET 100 KB", "nginx")):
            results.note(f"{what}, {name}", what, name)
        for what in EXECUTES:
            results.note(what, what, "envoy")
        for what in AGENTS:
            if what != "one agent":
                results.note(what, what, "gateway", "one agent")
        results.note("connections", MANY, "gateway", FEW)
        if "gateway" in results.versions:
            self.figures["down"] = results.median("memory, 50 MB answer", "gateway")
            self.figures["up"] = results.median("memory, 50 MB request", "gateway")
        if self.raw["memory, idle connection"]["gateway"]:
            self.figures["idle"] = results.median("memory, idle connection", "gateway")


async def allow(request: web.Request) -> web.Response:
    """Allow what a guardrail is asked about."""
    await request.read()
    return web.json_response({"verdict": "allow"})


def main() -> None:
    """Measure, print the table and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="some minutes; rougher numbers")
    parser.add_argument("--only", metavar="NAMES", help=f"comma list of {', '.join(proxies.PROXIES)}")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5; quick: 2)")
    parser.add_argument("--seconds", type=float, help="of load in each measurement (2; quick: 0.7)")
    parser.add_argument("--idle", type=int, help="idle connections (2000; quick: 500)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="bench/results.md")
    parser.add_argument("--guardrail", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.guardrail:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_post("/", allow)
        web.run_app(application, host="127.0.0.1", port=args.guardrail, print=None, access_log=None)
        return
    names = args.only.split(",") if args.only else list(proxies.PROXIES)
    if unknown := set(names) - set(proxies.PROXIES):
        parser.error(f"no such proxy: {', '.join(sorted(unknown))}")
    rounds, seconds, idle = (2, 0.7, 500) if args.quick else (5, 2.0, 2000)
    idle = min(args.idle or idle, allow_many_files() // 2 - 200)
    cores = sorted(os.sched_getaffinity(0))
    results = Results(len(cores), args.rounds or rounds, args.seconds or seconds, idle)
    with tempfile.TemporaryDirectory() as folder:
        Bench(names, Path(folder), results, cores).run()
    text = report(results)
    args.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

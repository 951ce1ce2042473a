"""``make bench``: the gateway beside its peers, in one run, interleaved; medians; ratios first.

ARGS="--quick" takes about two minutes; ARGS="--only textbook,gateway" leaves the other peers out. The proxies run on
one core each time, load and upstream on another; for latencies all run on one. Writes ``bench/results.md``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import chat, proxies
from bench.beside import beside
from bench.load import Ask, Connection, many
from bench.memory import growth, idle_connection
from bench.process import Process, allow_many_files, free_port
from bench.report import LATENCY, Results, report
from bench.rewrite import beside_json, image_body, text_body, turns_body
from bench.tail import DIRECT, Tail, half_rate
from bench.upstream import EXECUTE
from bench.workers import GET, REWRITE, scaling

RESULTS = Path(__file__).parent / "results.md"
BIG = 50 * 1024 * 1024
EXECUTES = {
    "text": Ask(EXECUTE, text_body(1000)),
    "image": Ask(EXECUTE, image_body(1000)),
    "conversation": Ask(EXECUTE, turns_body(1000)),
    "large image": Ask(EXECUTE, image_body(1_000_000)),
}
"""Figures that compare what the gateway rewrites with what Envoy passes on."""
SMALL, LARGE = Ask("/bytes/1000"), Ask("/bytes/100000")
BESIDE = "p99 beside 10 MB executes"
CHAT = "image of 100 KB and a text"
TAIL_EXECUTE = "execute, text"
"""Name of a load, as `GET` is."""


class Bench:
    """One run. names: of the peers. tail: the load at half of Envoy's saturation rate; None without Envoy."""

    def __init__(self, names: list[str], folder: Path, results: Results, cores: list[int]) -> None:
        self.proxy_core, self.load_core = {cores[-1]}, {cores[0]}
        self.cores = cores
        self.names = names
        self.folder = folder
        self.results, self.raw, self.figures = results, results.raw, results.figures
        self.tail: Tail | None = None
        self.executes: list[float] = []

    def run(self) -> None:
        """Start everything, measure everything, stop everything."""
        os.sched_setaffinity(0, self.load_core)
        port = free_port()
        upstream = Process("upstream", [sys.executable, "-m", "bench.upstream", str(port)], port)
        running: dict[str, Process] = {}
        try:
            upstream.wait_until_up()
            upstream.pin(self.load_core)
            self._start([name for name in self.names if name in proxies.PROXIES], port, running)
            if "envoy" in running:
                self.tail = half_rate(running["envoy"], SMALL, self.results.seconds, self.load_core, self.folder)
                self.results.remark(f"Envoy answers {2 * self.tail.rate:,.0f} GETs of 1 KB a second at its most")
            for number in range(self.results.rounds):
                self._round(number, running, upstream)
            for name in running:
                with self._fresh(name, port) as process:
                    self._memory(process)
                with self._fresh(name, port) as process:
                    self._idle(process)
            if "gateway" in running:
                self._chats(running["gateway"], port)
                self._workers(upstream)
        finally:
            for process in [*running.values(), upstream]:
                process.stop()
        self._rewrite()
        self._conclude()

    def _start(self, names: list[str], port: int, running: dict[str, Process]) -> None:
        """Start the peers that can be had, into `running`. port: of the upstream."""
        for name in names:
            try:
                running[name] = proxies.started(name, port, self.folder, self.proxy_core)
                self.results.versions[name] = proxies.version(name)
            except proxies.Missing as missing:
                self.results.remark(f"left out: {missing}")

    def _round(self, number: int, running: dict[str, Process], upstream: Process) -> None:
        order = list(running.values())
        order = order[number % len(order) :] + order[: number % len(order)]
        for ask, what in ((SMALL, "GET 1 KB"), (LARGE, "GET 100 KB")):
            for process in order:
                self._cpu(process, ask, what)
        if "gateway" in running:
            body = text_body(1000)
            self._cpu(running["gateway"], Ask("/index/_search", body), "POST 1 KB")
            compared = [process for process in order if process.name in ("gateway", "envoy")]
            for what, ask in EXECUTES.items():
                for process in compared:
                    self._cpu(process, ask, f"execute, {what}")
            for process in compared:
                self._beside(process, upstream)
        if self.tail is not None:
            self._tails(self.tail, {DIRECT: upstream.port} | {process.name: process.port for process in order})
        with self._on_one_core([*order, upstream]):
            for name, port in [(DIRECT, upstream.port), *((process.name, process.port) for process in order)]:
                connection = Connection(port)
                self.raw[LATENCY][name].append(connection.median(SMALL.raw(), self.results.requests))
                connection.close()
        print(f"round {number + 1} of {self.results.rounds} done", flush=True)

    def _cpu(self, process: Process, ask: Ask, what: str) -> None:
        """CPU time a request, as the kernel counts it for the proxy's process and its children."""
        connection = Connection(process.port)  # warms up: profile cached, connections made
        try:
            connection.exchange(ask.raw())
        except OSError as error:
            raise RuntimeError(f"{process.name} does not answer {ask.path}: {error}") from error
        connection.close()
        before = process.cpu()
        answers = many(process.port, ask, self.results.seconds, self.load_core, self.folder)
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

    def _beside(self, process: Process, upstream: Process) -> None:
        """How long small requests take while another process sends executes with a large image."""
        found = beside(process.port, upstream.port, SMALL, self.results.seconds)
        self.raw[BESIDE][process.name].append(found.through.p99)
        if process.name == "gateway":
            self.raw[BESIDE][DIRECT].append(found.direct.p99)
            self.executes.append(found.rate)

    def _tails(self, tail: Tail, ports: dict[str, int]) -> None:
        """Latencies at half of Envoy's saturation rate."""
        tail.measure(GET, SMALL, ports)
        if "gateway" in ports:
            tail.measure(TAIL_EXECUTE, EXECUTES["text"], {name: ports[name] for name in (DIRECT, "gateway", "envoy")})

    def _chats(self, gateway: Process, port: int) -> None:
        """The gateway beside gateways to LLMs, which are started only now: they work when they are idle, too."""
        running: dict[str, Process] = {}
        try:
            self._start([name for name in self.names if name in proxies.AI_GATEWAYS], port, running)
            order = [gateway, *(process for process in running.values() if self._answers(process, port))]
            for number in range(self.results.rounds):
                for process in order[number % len(order) :] + order[: number % len(order)]:
                    self._cpu(process, chat.ask(process.name, port), CHAT)
        finally:
            for process in running.values():
                process.stop()

    def _answers(self, process: Process, port: int) -> bool:
        """Whether it answers under load, which also makes it compile what is compiled at run time."""
        try:
            many(process.port, chat.ask(process.name, port), self.results.seconds, self.load_core, self.folder)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            self.results.remark(f"left out: {process.name} does not answer a chat completion ({error})")
            return False
        return True

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
        for what, raw, pause in (
            ("memory, 50 MB answer", Ask(f"/bytes/{BIG}").raw(), 0.0005),
            ("memory, 50 MB request", Ask("/slow", b"x" * BIG).raw(), 0.0),
        ):
            self.raw[what][process.name].append(growth(process, raw, pause))
        if process.name == "gateway":
            growth(process, Ask(EXECUTE, image_body(1000)).raw())
            body = image_body(BIG)
            self.figures["peak"] = growth(process, Ask(EXECUTE, body).raw()) / len(body)

    def _idle(self, process: Process) -> None:
        try:
            self.raw["memory, idle connection"][process.name].append(
                idle_connection(process, SMALL.raw(), self.results.idle)
            )
        except (OSError, RuntimeError) as error:
            self.results.remark(f"idle connections of {process.name} not measured: {error}")

    def _workers(self, upstream: Process) -> None:
        """Two workers against one; where the cores for that are not there, what `bench.workers` says of it."""
        if len(self.cores) < 2:
            return
        found = scaling(upstream, SMALL, EXECUTE, self.folder, self.cores, self.results.rounds, self.results.seconds)
        self.results.remark(str(found))
        if REWRITE not in found.answers:
            self.figures["workers"] = found.of_answers(GET)
        else:
            ratio = found.of_answers(REWRITE)
            self.results.instead["workers"] = (
                f"answers to heavy rewrites, load and upstream on the same cores: {ratio:.2f}×"
            )
            self.results.remark(
                "a heavy rewrite is a conversation of ten images; beside one worker, load and upstream have the other "
                "core to themselves, beside two they have none, so two free cores should give no less (not measured)"
            )

    def _rewrite(self) -> None:
        """The rewrite function against the fastest JSON library, both in this process."""
        os.sched_setaffinity(0, self.proxy_core)
        library, times = beside_json(min(self.results.seconds, 2.0))
        for name, (mine, theirs) in times.items():
            self.raw[f"rewrite of an image, {name}"]["gateway"].append(mine)
            self.raw[f"rewrite of an image, {name}"][library].append(theirs)
        mine, theirs = times["10 MB"]
        self.figures["rewrite"] = theirs / mine
        if library != "orjson":
            self.results.remark("orjson can't be had: the rewrite is compared with the standard library's json")

    def _conclude(self) -> None:
        results = self.results
        for key, what in (("textbook", "GET 1 KB"), ("envoy", "GET 1 KB"), ("nginx", "GET 100 KB")):
            results.note(key, results.ratio(f"CPU, {what}", "gateway", key))
        for key in EXECUTES:
            results.note(key, results.ratio(f"CPU, execute, {key}", "gateway", "envoy"))
        results.note("portkey", results.ratio(f"CPU, {CHAT}", "gateway", "portkey"))
        if self.tail is not None:
            self._conclude_tail(self.tail)
        executed, passed = self.raw["CPU, execute, text"]["gateway"], self.raw["CPU, POST 1 KB"]["gateway"]
        if executed:
            self.figures["execute"] = statistics.median(e / p for e, p in zip(executed, passed, strict=True))
            self.figures["latency"] = results.added("gateway")
            self.figures["beside"] = results.median(BESIDE, "gateway")
            self.figures["down"] = results.median("memory, 50 MB answer", "gateway")
            self.figures["up"] = results.median("memory, 50 MB request", "gateway")
            results.remark(f"beside the small requests: {statistics.median(self.executes):.0f} executes a second")
        if self.raw["memory, idle connection"]["gateway"]:
            self.figures["idle"] = results.median("memory, idle connection", "gateway")

    def _conclude_tail(self, tail: Tail) -> None:
        for key, what in (("tail", GET), ("tail execute", TAIL_EXECUTE)):
            for name in (DIRECT, *self.names):
                self.raw[f"p99 at {tail.rate:,.0f}/s, {what}"][name] += tail.p99(what, name)
            if "gateway" in self.results.versions:
                self.results.note(key, tail.ratio(what, "gateway", (GET, "envoy")))
        for doubt in tail.doubts():
            self.results.remark(doubt)
        self.results.instead |= dict.fromkeys(("tail", "tail execute"), "; ".join(tail.doubts()))


def main() -> None:
    """Measure, print the table and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about two minutes; rougher numbers")
    parser.add_argument(
        "--only", metavar="NAMES", help=f"comma list of {', '.join((*proxies.PROXIES, *proxies.AI_GATEWAYS))}"
    )
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5; quick: 2)")
    parser.add_argument("--seconds", type=float, help="of load in each measurement (3; quick: 1)")
    parser.add_argument("--requests", type=int, help="for a latency (2000; quick: 500)")
    parser.add_argument("--idle", type=int, help="idle connections (2000; quick: 500)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="bench/results.md")
    args = parser.parse_args()
    known = [*proxies.PROXIES, *proxies.AI_GATEWAYS]
    names = args.only.split(",") if args.only else known
    if unknown := set(names) - set(known):
        parser.error(f"no such proxy: {', '.join(sorted(unknown))}")
    rounds, seconds, requests, idle = (2, 1.0, 500, 500) if args.quick else (5, 3.0, 2000, 2000)
    idle = min(args.idle or idle, allow_many_files() // 2 - 200)
    cores = sorted(os.sched_getaffinity(0))
    results = Results(len(cores), args.rounds or rounds, args.seconds or seconds, args.requests or requests, idle)
    with tempfile.TemporaryDirectory() as folder:
        Bench(names, Path(folder), results, cores).run()
    text = report(results)
    args.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""What a run of the benchmark found, and the Markdown that shows it."""

from __future__ import annotations

import math
import platform
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from bench import proxies
from bench.figures import FIGURES, Figure
from bench.tail import DIRECT

LATENCY = "p50 at concurrency 1"
_COLUMNS = (*proxies.PROXIES, *proxies.AI_GATEWAYS, DIRECT, "orjson", "json")


@dataclass
class Results:
    """What was measured, and how: cores of the machine, rounds, seconds of load, requests for a latency, idle ones.

    raw: measurement → proxy → one value a round; figures: what the table shows; remarks: lines below it. instead: what
    stands for a figure that this machine can't give.
    """

    cores: int
    rounds: int
    seconds: float
    requests: int
    idle: int
    raw: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    figures: dict[str, float] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def remark(self, text: str) -> None:
        """Print it, and write it down."""
        print(text, flush=True)
        self.remarks.append(text)

    def median(self, what: str, name: str) -> float:
        """Of the rounds."""
        return statistics.median(self.raw[what][name])

    def ratio(self, what: str, name: str, other: str) -> float | None:
        """What `name` takes by what `other` takes: of the rounds' ratios the median; None if either is not there."""
        mine, theirs = self.raw[what][name], self.raw[what][other]
        if not mine or not theirs:
            return None
        return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))

    def added(self, name: str) -> float:
        """Seconds that `name` adds to the median answer: of the rounds' differences the median."""
        measured = self.raw[LATENCY]
        return statistics.median(p - d for p, d in zip(measured[name], measured[DIRECT], strict=True))

    def note(self, key: str, value: float | None) -> None:
        """Set a figure, unless there is no value."""
        if value is not None:
            self.figures[key] = value


def report(results: Results) -> str:
    """The results as Markdown."""
    lines = [
        "# Results of `make bench`",
        "",
        "One machine, one run; other machines give other numbers. The ratios carry over better than the rest.",
        "",
        "| figure | must | aim | measured |",
        "|---|---|---|---|",
        *(_row(results, figure) for figure in FIGURES),
        "",
        "## Behind it",
        "",
        *_details(results),
        "",
        "## How",
        "",
        f"{_machine()}; {results.cores} cores. Each proxy has one worker on one core, no access log "
        "(the gateway: log level `warning`, all else at its defaults) and keeps its connections; load (16 "
        "connections) and upstream share another core. CPU is what the kernel's scheduler counts for the proxy's "
        f"process and its children, a request; medians of {results.rounds} interleaved rounds of {results.seconds:g} "
        f"s. p50: {results.requests} requests one after the other over one connection, all on one core; the time "
        "straight to the upstream is taken off. p99: requests due at fixed times, over 64 connections, and each time "
        "counts from when the request was due. Memory: growth of the peak (`VmHWM`) over what was resident "
        "before, the reader slower than the sender; for idle connections growth of what is resident, over "
        f"{results.idle} of them. The rewrite's peak includes the body itself.",
        "",
        "; ".join(f"{name}: {version}" for name, version in results.versions.items()) + ".",
        *(f"\n{remark[0].upper()}{remark[1:]}." for remark in results.remarks),
    ]
    return "\n".join(lines) + "\n"


def _row(results: Results, figure: Figure) -> str:
    value = results.figures.get(figure.key)
    measured = "; ".join(filter(None, (figure.absent(results.cores), results.instead.get(figure.key))))
    if value is not None:
        envoy = results.raw[LATENCY]["envoy"]
        must = results.added("envoy") if figure.key == "latency" and envoy else None
        beside = f" (Envoy: {figure.shown(must)})" if must is not None else ""
        measured = f"{figure.shown(value)}{beside}: {figure.verdict(value, must)}"
    return f"| {figure.name} | {figure.bound(figure.must)} | {figure.bound(figure.aim)} | {measured} |"


def _details(results: Results) -> list[str]:
    names = [name for name in _COLUMNS if any(measured[name] for measured in results.raw.values())]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for what, measured in results.raw.items():
        cells = [_shown(what, measured[name]) for name in names]
        if any(cells):
            lines.append(f"| {what} | {' | '.join(cells)} |")
    return lines


def _shown(what: str, values: list[float]) -> str:
    if not values:
        return ""
    value = statistics.median(values)
    if math.isinf(value):
        return "overloaded"
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

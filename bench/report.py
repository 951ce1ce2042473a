"""What a run of the benchmark found, and the Markdown that shows it."""

from __future__ import annotations

import platform
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from bench import proxies
from bench.beside import DIRECT
from bench.figures import FIGURES, Figure

_COLUMNS = (*proxies.PROXIES, DIRECT)


@dataclass
class Results:
    """What was measured, and how: cores of the machine, rounds, seconds of load, idle connections.

    raw: measurement → proxy → one value a round; figures: what the table shows; remarks: lines below it.
    """

    cores: int
    rounds: int
    seconds: float
    idle: int
    raw: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    figures: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def remark(self, text: str) -> None:
        """Print it, and write it down."""
        print(text, flush=True)
        self.remarks.append(text)

    def median(self, what: str, name: str) -> float:
        """Of the rounds."""
        return statistics.median(self.raw[what][name])

    def note(self, key: str, what: str, other: str, than: str = "") -> None:
        """Set a figure: what the gateway takes by what `other` takes, the median of the rounds' ratios.

        than: what `other` is measured at, if it is something else. Without values there is no figure.
        """
        mine, theirs = self.raw[what]["gateway"], self.raw[than or what][other]
        if mine and theirs:
            self.figures[key] = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def report(results: Results) -> str:
    """The results as Markdown."""
    lines = [
        "# Results of `make bench`",
        "",
        "One machine, one run; other machines give other numbers. The ratios carry over better than the rest.",
        "",
        "| figure | must | measured |",
        "|---|---|---|",
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
        "s. p99: requests due at fixed times, and each time counts from when the request was due. Memory: growth of "
        "the peak (`VmHWM`) over what was resident before, the reader slower than the sender; for idle connections "
        f"growth of what is resident, over {results.idle} of them. The peak of an execute includes the body itself.",
        "",
        "; ".join(f"{name}: {version}" for name, version in results.versions.items()) + ".",
        *(f"\n{remark[0].upper()}{remark[1:]}." for remark in results.remarks),
    ]
    return "\n".join(lines) + "\n"


def _row(results: Results, figure: Figure) -> str:
    value = results.figures.get(figure.key)
    measured = "not measured" if value is None else f"{figure.shown(value)}: {figure.verdict(value)}"
    return f"| {figure.name} | ≤ {figure.shown(figure.must)} | {measured} |"


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

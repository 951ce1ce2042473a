"""What is to be measured, what must and should come out, and how it is written down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A row of the table. must, aim: the most (at_least: the least) that is asked for. unit: how numbers are shown.

    cores: as many must be there to measure it.
    """

    key: str
    name: str
    must: float | None
    aim: float
    unit: str
    at_least: bool = False
    cores: int = 1

    def absent(self, cores: int) -> str:
        """What stands in the table where there is no value. cores: of this machine."""
        return "not measured" if cores >= self.cores else f"needs ≥ {self.cores} cores for the throughput figure"

    def shown(self, value: float | None) -> str:
        """A number in the figure's unit."""
        match self.unit:
            case _ if value is None:
                return "below Envoy's"
            case "share":
                return f"1/{1 / value:.1f}"
            case "µs":
                return f"{value * 1e6:.0f} µs"
            case "ms":
                return f"{value * 1e3:.1f} ms"
            case "MB":
                return f"{value / 1e6:+.1f} MB"
            case "KB":
                return f"{value / 1e3:.1f} KB"
        return f"{value:.2f}×"

    def bound(self, value: float | None) -> str:
        """A bound as the table shows it."""
        sign = "" if value is None else "≥ " if self.at_least else "≤ "
        return sign + self.shown(value).removesuffix(".0")

    def verdict(self, value: float, must: float | None = None) -> str:
        """Which of the bounds `value` keeps. must: the bound where another measurement sets it."""
        must = self.must if self.must is not None else must

        def keeps(bound: float) -> bool:
            return value >= bound if self.at_least else value <= bound

        if keeps(self.aim):
            return "aim met"
        return "must met" if must is None or keeps(must) else "**missed**"


FIGURES = (
    Figure("textbook", "GET 1 KB, CPU vs textbook aiohttp", 1 / 3.5, 1 / 6, "share"),
    Figure("envoy", "GET 1 KB, CPU vs Envoy", 1.0, 0.6, "×"),
    Figure("nginx", "GET 100 KB, CPU vs nginx", 3.0, 1.6, "×"),
    Figure("latency", "added p50 at concurrency 1, GET 1 KB", None, 45e-6, "µs"),
    Figure("tail", "GET 1 KB, added p99 at half of Envoy's saturation rate vs Envoy's", 2.0, 1.0, "×"),
    Figure(
        "tail execute",
        "1 KB text execute, added p99 at that rate vs Envoy's for the GET",
        3.0,
        1.5,
        "×",
    ),
    Figure("down", "pass-through memory, 50 MB answer", 3e6, 1e6, "MB"),
    Figure("up", "pass-through memory, 50 MB request", 3e6, 1e6, "MB"),
    Figure("peak", "`_execute` rewrite, 50 MB of base64: peak memory over the body's size", 1.25, 1.05, "×"),
    Figure(
        "rewrite",
        "rewrite function at 10 MB, validation included, vs orjson without it: faster by",
        2.0,
        3.5,
        "×",
        True,
    ),
    Figure("execute", "1 KB text execute (profile cached) vs plain passthrough, CPU", 1.6, 1.3, "×"),
    Figure("text", "1 KB text execute, CPU vs Envoy passing the same bytes", 0.7, 0.6, "×"),
    Figure("image", "1 KB image execute, CPU vs Envoy passing the same bytes", 2.5, 1.6, "×"),
    Figure("conversation", "three-turn conversation of 1 KB, CPU vs Envoy passing the same bytes", 2.5, 1.6, "×"),
    Figure("large image", "1 MB image execute, CPU vs Envoy passing the same bytes", 1.5, 1.1, "×"),
    Figure("beside", "p99 of 50 GETs a second beside executes with a 10 MB image", 10e-3, 4e-3, "ms"),
    Figure("portkey", "100 KB image, CPU vs Portkey's gateway (execute vs chat completion)", 1 / 10, 1 / 20, "share"),
    Figure("idle", "idle keep-alive connection", 9e3, 3e3, "KB"),
    Figure("workers", "two workers (SO_REUSEPORT) vs one, throughput on two free cores", 1.8, 2.0, "×", True, 4),
)

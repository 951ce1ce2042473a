"""What is to be measured, what must come out, and how it is written down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A row of the table. must: the most that is allowed. unit: how numbers are shown."""

    key: str
    name: str
    must: float
    unit: str = "×"

    def shown(self, value: float) -> str:
        """A number in the figure's unit."""
        match self.unit:
            case "ms":
                return f"{value * 1e3:.1f} ms"
            case "s":
                return f"{value:.2f} s"
            case "MB":
                return f"{value / 1e6:+.1f} MB"
            case "KB":
                return f"{value / 1e3:.1f} KB"
        return f"{value:.2f}×"

    def verdict(self, value: float) -> str:
        """Whether the bound is kept."""
        return "met" if value <= self.must else "**missed**"


ENVOY = "CPU to that of Envoy passing the same bytes"
FIGURES = (
    Figure("GET 1 KB, envoy", "GET 1 KB, CPU to Envoy's", 0.55),
    Figure("GET 1 KB, nginx", "GET 1 KB, CPU to nginx's", 1.5),
    Figure("GET 100 KB, nginx", "GET 100 KB, CPU to nginx's", 1.25),
    Figure("1 KB of text", f"execute, 1 KB of text: {ENVOY}", 1.2),
    Figure("1 KB image", "1 KB image", 2),
    Figure("3 turns", "3 turns", 2),
    Figure("31 turns", "31 turns", 4),
    Figure("33 turns", "33 turns", 4),
    Figure("201 turns", "201 turns", 15),
    Figure("65,400 bytes of text", "65,400 bytes of text", 4),
    Figure("65,700 bytes of text", "65,700 bytes of text", 4),
    Figure("100 KB of text", "100 KB of text", 4),
    Figure("1 MB of text", "1 MB of text", 4),
    Figure("8 MB of text", "8 MB of text", 8),
    Figure("a document", "a document of 10 KB", 4),
    Figure("$ and braces", "1 KB of text with `$` and braces", 4),
    Figure("parameters", "1 KB of text with `parameters`", 4),
    Figure("1 MB image", "1 MB image", 1.5),
    Figure("1,200 agents", "1,200 agents in rotation, CPU to that with one", 2),
    Figure("50 agents, 51 callers", "50 agents, each with 51 callers, CPU to that with one of each", 2),
    Figure("connections", "2,000 connections, CPU to that with 16", 1.8),
    Figure("budget, text", "1 KB of text with a budget, CPU to that without", 2),
    Figure("budget, image", "1 KB image with a budget", 2),
    Figure("guardrail, text", "1 KB of text with a guardrail, its webhook's own time excluded", 4),
    Figure("guardrail, image", "1 KB image with a guardrail", 4),
    Figure("memory, text", "1 KB of text in a new session, store `sqlite`", 6),
    Figure("memory, image", "1 KB image in a new session", 6),
    Figure("recording, GET", "GET 1 KB, recorded, CPU to that without", 1.5),
    Figure("recording, text", "1 KB of text, recorded", 2.5),
    Figure("recording, 1 MB image", "1 MB image, recorded", 2.5),
    Figure("beside images", "p99 of 50 GETs a second beside recorded 1 MB images", 15e-3, "ms"),
    Figure("beside texts", "p99 of 50 GETs a second beside 8 MB texts", 15e-3, "ms"),
    Figure("help", "`mlc-gateway --help`", 0.3, "s"),
    Figure("start", "start, until the port takes connections", 0.8, "s"),
    Figure("idle", "idle keep-alive connection", 3e3, "KB"),
    Figure("down", "pass-through memory, 50 MB answer", 1e6, "MB"),
    Figure("up", "pass-through memory, 50 MB request", 1e6, "MB"),
    Figure("peak", "execute with 50 MB of base64: peak memory over the body's size", 1.25),
)

"""Values of a call that only the cluster knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeValues:
    """Run-time values the gateway can't know: what memory replays and what earlier tools answer."""

    history: str | None = None
    tool_output: str = ""

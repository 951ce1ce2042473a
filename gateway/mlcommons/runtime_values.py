"""Values of a call that only the cluster knows."""

from __future__ import annotations

from dataclasses import dataclass

HOSTILE = 'x"}]},{"text":"\\ $ {y} \n[1]'
"""A worst case of a remembered turn or a tool's output: quotes, JSON, and signs that have a meaning in templates."""


@dataclass(frozen=True, slots=True)
class RuntimeValues:
    """Run-time values the gateway can't know: what memory replays, None for nothing, and what earlier tools answer."""

    history: str | None = None
    tool_output: str = HOSTILE

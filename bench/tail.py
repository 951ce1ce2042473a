"""The 99th percentile of latency at a fixed rate: half of what Envoy answers at its most, on one core.

Load and upstream share another core. What a proxy adds is its p99 without that of the same load straight to the
upstream.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from bench.load import Ask, counted
from bench.open_loop import Outcome, outcome
from bench.process import Process

DIRECT = "direct"
_LATE = 0.5e-3
"""Seconds by which the load may be late (p99) for its run to count."""
_TRIES = 3
_OVERLOADED = 0.01
"""Share of requests without an answer from which a proxy can't keep up with the rate."""
_BUSY = 0.9
"""Share of its core from which a proxy counts as saturated."""


class Tail:
    """Loads at `rate` requests a second. rounds: load → one mapping a round, from proxy to what came out.

    saturated: share of its core that Envoy used when its saturation rate was measured.
    """

    def __init__(self, rate: float, saturated: float, seconds: float) -> None:
        self.rate = rate
        self.saturated = saturated
        self.seconds = seconds
        self.rounds: dict[str, list[dict[str, Outcome]]] = defaultdict(list)

    def measure(self, what: str, ask: Ask, ports: Mapping[str, int]) -> None:
        """One round. what: the load's name. ports: of `DIRECT` and the proxies."""
        self.rounds[what].append({name: self._on_time(port, ask) for name, port in ports.items()})

    def _on_time(self, port: int, ask: Ask) -> Outcome:
        """What came out, of up to three runs the first in which the load was on time."""
        for _ in range(_TRIES):
            found = outcome(port, ask, self.rate, self.seconds)
            if found.late <= _LATE:
                break
        return found

    def p99(self, what: str, name: str) -> list[float]:
        """Seconds, of the rounds in which the load was on time; infinite where the proxy could not keep up."""
        found = [outcomes[name] for outcomes in self.rounds[what] if name in outcomes]
        return [_p99(one) for one in found if one.late <= _LATE]

    def added(self, what: str, name: str) -> float | None:
        """Seconds that a proxy adds to the p99: the median of the rounds. None: no round in which load was on time."""
        pairs = [(outcomes[name], outcomes[DIRECT]) for outcomes in self.rounds[what] if name in outcomes]
        times = [
            _p99(one) - direct.p99
            for one, direct in pairs
            if max(one.late, direct.late) <= _LATE and direct.unanswered <= _OVERLOADED
        ]
        return statistics.median(times) if times else None

    def ratio(self, what: str, name: str, base: tuple[str, str]) -> float | None:
        """What a proxy adds, by what `base`, a load and a proxy, adds; None where that can't be had."""
        if self.saturated < _BUSY:
            return None
        mine, theirs = self.added(what, name), self.added(*base)
        return mine / theirs if mine is not None and theirs is not None and theirs > 0 else None

    def doubts(self) -> list[str]:
        """Why there may be no ratio, or one of fewer rounds."""
        doubts = []
        if self.saturated < _BUSY:
            doubts.append(f"Envoy was not saturated: the load made it use {self.saturated:.0%} of its core")
        late = [one.late for rounds in self.rounds.values() for outcomes in rounds for one in outcomes.values()]
        if missed := [seconds for seconds in late if seconds > _LATE]:
            doubts.append(
                f"the load could not send {self.rate:,.0f} requests a second on time: {len(missed)} of {len(late)} "
                f"runs do not count, as 1 % of their requests were late by {min(missed) * 1e3:.1f} ms or more"
            )
        return doubts


def _p99(one: Outcome) -> float:
    return math.inf if one.unanswered > _OVERLOADED else one.p99


def half_rate(process: Process, ask: Ask, seconds: float, core: set[int], folder: Path) -> Tail:
    """A load at half of what the process answers in a closed loop. core: of the load. seconds: of both loads."""
    before = process.cpu()
    answers, took = counted(process.port, ask, seconds, core, folder)
    return Tail(answers / took / 2, (process.cpu() - before) / took, seconds)

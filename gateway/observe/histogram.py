"""Histograms of seconds for Prometheus, as plain numbers: one thread observes, the page is made on request."""

from __future__ import annotations

import itertools
from bisect import bisect_left

from prometheus_client.utils import floatToGoString

WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Bounds for waits on the cluster."""
SHORT = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""Bounds for the gateway's own work."""


class Histogram:
    """Counts of seconds, one for each interval between `bounds`, and their sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count `seconds`."""
        self.total += seconds
        self._counts[bisect_left(self._bounds, seconds)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts that Prometheus expects."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(bounds, itertools.accumulate(map(float, self._counts)), strict=True))

"""Prometheus metrics of what a process holds, read when metrics are collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Sizes(Collector):
    """profiles: agents in the cache. sessions: sessions of gateway memory that requests use."""

    def __init__(self, profiles: Callable[[], int], sessions: Callable[[], int]) -> None:
        self._profiles = profiles
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield GaugeMetricFamily("mlc_gateway_cached_profiles", "Agents in the cache.", self._profiles())
        yield GaugeMetricFamily("mlc_gateway_session_runs", "Sessions that requests use now.", self._sessions())

"""Metrics for Prometheus, served on the admin port; ``docs/reference/metrics.md`` explains each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observe.traffic_metrics import Lookups, Running, TrafficMetrics
from gateway.observe.usage_metrics import UsageMetrics

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The gateway's counters, in a registry of their own so that a process can have several gateways.

    traffic: those of every request, which the code on its path changes directly.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.traffic = TrafficMetrics()
        self.registry.register(self.traffic)
        self.usage = UsageMetrics()
        self.registry.register(self.usage)

    @property
    def lookups(self) -> Lookups:
        """The counts of look-ups of agents; the resolver adds to them."""
        return self.traffic.lookups

    def watch(self, source: Running) -> None:
        """Include the requests of `source` in those that are being answered now, while `source` exists."""
        self.traffic.sources.add(source)

    def refused(self, code: str) -> None:
        """Count a request that got an error response of the gateway's own. code: of a problem, or the error's type."""
        refusals = self.traffic.refusals
        refusals[code] = refusals.get(code, 0) + 1

    def notice(self, code: str) -> None:
        """Count a limitation that was reported to a client."""
        notices = self.traffic.notices
        notices[code] = notices.get(code, 0) + 1

    def registration(self, outcome: str) -> None:
        """Count a registration. outcome: made, reused, quick or failed."""
        made = self.traffic.registrations
        made[outcome] = made.get(outcome, 0) + 1

    def turn(self, outcome: str) -> None:
        """Count a turn of gateway memory. outcome: stored or failed."""
        self.traffic.turns[outcome] += 1

    def record_dropped(self, reason: str, count: int = 1) -> None:
        """Count exchanges that were not recorded; see `mlc_gateway_records_dropped_total`.

        reason: such as ``sqlite``, or ``sqlite:TypeError`` with the class of the error of a single record.
        """
        dropped = self.traffic.dropped
        dropped[reason] = dropped.get(reason, 0) + count

    def records_dropped(self) -> dict[str, int]:
        """Return how many exchanges were not recorded, by reason."""
        return dict(self.traffic.dropped)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class Sizes(Collector):
    """profiles: agents in the cache. sessions: sessions of gateway memory that requests use."""

    def __init__(self, profiles: Callable[[], int], sessions: Callable[[], int]) -> None:
        self._profiles = profiles
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield GaugeMetricFamily("mlc_gateway_cached_profiles", "Agents in the cache.", self._profiles())
        yield GaugeMetricFamily("mlc_gateway_session_runs", "Sessions that requests use now.", self._sessions())

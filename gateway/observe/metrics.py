"""Counters for Prometheus, served on the admin port; ``docs/reference/settings.md`` explains each."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from typing import Protocol
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.observe.usage_metrics import UsageMetrics

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Running(Protocol):
    """Has requests that are being answered now; see `gateway.proxy.lifecycle.Lifecycle`."""

    running: int


class Metrics:
    """The gateway's counters, in a registry of their own so that a process can have several gateways."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._traffic = _Traffic()
        self.registry.register(self._traffic)
        self.usage = UsageMetrics()
        self.registry.register(self.usage)
        self._notices = Counter(
            "mlc_gateway_notices",
            "Limitations reported to clients, by code.",
            ("code",),
            registry=self.registry,
        )
        self._registrations = Counter(
            "mlc_gateway_registrations",
            "Agents that the gateway made, found made, made for one run, or failed to make.",
            ("outcome",),
            registry=self.registry,
        )

    def watch(self, source: Running) -> None:
        """Include the requests of `source` in those that are being answered now, while `source` exists."""
        self._traffic.sources.add(source)

    def finished(self, intent: str, status: int) -> None:
        """Count a request that is over. status: of the response; 0 if the connection was cut before or within it."""
        answered = self._traffic.answered
        answered[intent, status] = answered.get((intent, status), 0) + 1

    def rewritten(self, provider: str, strategy: str, outcome: str) -> None:
        """Count a unified input that was delivered or refused. provider, strategy: "" if not known yet."""
        rewrites = self._traffic.rewrites
        rewrites[provider, strategy, outcome] = rewrites.get((provider, strategy, outcome), 0) + 1

    def notice(self, code: str) -> None:
        """Count a limitation that was reported to a client."""
        self._notices.labels(code).inc()

    def registration(self, outcome: str) -> None:
        """Count a registration. outcome: made, reused, quick or failed."""
        self._registrations.labels(outcome).inc()

    def waited(self, intent: str, seconds: float) -> None:
        """Record the time from a request to the head of the cluster's response."""
        waits = self._traffic.waits.get(intent)
        if waits is None:
            waits = self._traffic.waits[intent] = _Waits()
        waits.total += seconds
        waits.counts[bisect_left(_SECONDS, seconds)] += 1

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Waits:
    """Histogram of one intent's waits: the count of each interval of `_SECONDS`, and the sum of all."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total = 0.0

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts that Prometheus expects."""
        bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
        return list(zip(bounds, itertools.accumulate(map(float, self.counts)), strict=True))


class _Traffic(Collector):
    """Counters of every request: plain numbers of the loop's thread, converted to metrics on request.

    A counter of prometheus_client takes a lock and two look-ups, which costs a tenth of a whole request.
    """

    def __init__(self) -> None:
        self.answered: dict[tuple[str, int], int] = {}
        self.rewrites: dict[tuple[str, str, str], int] = {}
        self.waits: dict[str, _Waits] = {}
        self.sources: WeakSet[Running] = WeakSet()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        requests = CounterMetricFamily(
            "mlc_gateway_requests",
            "Requests answered, by what they were for and the answer's status.",
            labels=("intent", "status"),
        )
        for (intent, status), count in self.answered.items():
            requests.add_metric((str(intent), str(status)), count)
        yield requests
        rewrites = CounterMetricFamily(
            "mlc_gateway_rewrites",
            "Unified inputs, by the agent's provider, the strategy and what became of them.",
            labels=("provider", "strategy", "outcome"),
        )
        for labels, count in self.rewrites.items():
            rewrites.add_metric(labels, count)
        yield rewrites
        upstream = HistogramMetricFamily(
            "mlc_gateway_upstream_seconds",
            "Seconds from the request to the head of the cluster's answer.",
            labels=("intent",),
        )
        for intent, waits in self.waits.items():
            upstream.add_metric((str(intent),), waits.buckets(), waits.total)
        yield upstream
        running = sum(source.running for source in self.sources)
        yield GaugeMetricFamily("mlc_gateway_in_flight", "Requests being answered now.", running)

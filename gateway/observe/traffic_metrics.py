"""Counters of every request: plain numbers of the loop's thread, converted to metrics on request.

A counter of prometheus_client takes a lock and two look-ups, which costs a tenth of a whole request.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Protocol
from weakref import WeakSet

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
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


class Running(Protocol):
    """Has requests that are being answered now; see `gateway.proxy.lifecycle.Lifecycle`."""

    running: int


class Received:
    """Bytes that clients have sent, heads included, after TLS."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class Lookups:
    """How agents were found: cached, read from the cluster, or not (`failed`)."""

    __slots__ = ("cached", "failed", "read")

    def __init__(self) -> None:
        self.cached = self.read = self.failed = 0


class TrafficMetrics(Collector):
    """The counters, by their labels. sources: whose requests are being answered now.

    answered: requests that are over, by intent and status; 0 if the connection was cut before or within the response.
    rewrites: unified inputs that were delivered or refused, by provider, strategy ("" if not known yet) and outcome.
    In seconds: waits: from a request to the head of the cluster's response, by intent. added: from a whole request to
    its sending to the cluster, by intent. rewriting: from the whole body of a request to its rewritten form.
    """

    def __init__(self) -> None:
        self.answered: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.rewrites: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self.refusals: dict[str, int] = {}
        self.notices: dict[str, int] = {}
        self.registrations: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.turns: dict[str, int] = {"stored": 0, "failed": 0}
        self.waits: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(WAITS))
        self.added: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SHORT))
        self.rewriting = Histogram(SHORT)
        self.received = Received()
        self.lookups = Lookups()
        self.sources: WeakSet[Running] = WeakSet()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield self._requests()
        yield self._rewrites()
        yield _counter("mlc_gateway_refusals", "Requests that the gateway refused.", "code", self.refusals)
        yield _counter("mlc_gateway_notices", "Limitations reported to clients, by code.", "code", self.notices)
        yield _counter(
            "mlc_gateway_registrations",
            "Agents that the gateway made, found made, made for one run, or failed to make.",
            "outcome", self.registrations,
        )  # fmt: skip
        yield self._dropped()
        yield _histogram(
            "mlc_gateway_upstream_seconds", "Seconds from the request to the head of the cluster's answer.",
            "intent", self.waits,
        )  # fmt: skip
        yield _histogram(
            "mlc_gateway_added_seconds", "Seconds from the whole request to its sending to the cluster.",
            "intent", self.added,
        )  # fmt: skip
        yield HistogramMetricFamily(
            "mlc_gateway_rewrite_seconds",
            "Seconds from the whole body of a request to its rewritten form.",
            self.rewriting.buckets(),
            self.rewriting.total,
        )
        yield CounterMetricFamily(
            "mlc_gateway_client_received_bytes", "Bytes received from clients.", self.received.size
        )
        yield _counter("mlc_gateway_session_turns", "Turns of gateway memory.", "outcome", self.turns)
        found = self.lookups
        outcomes = {"cached": found.cached, "read": found.read, "failed": found.failed}
        yield _counter("mlc_gateway_profile_lookups", "Look-ups of agents.", "outcome", outcomes)
        running = sum(source.running for source in self.sources)
        yield GaugeMetricFamily("mlc_gateway_in_flight", "Requests being answered now.", running)

    def _requests(self) -> Metric:
        requests = CounterMetricFamily(
            "mlc_gateway_requests",
            "Requests answered, by what they were for and the answer's status.",
            labels=("intent", "status"),
        )
        for (intent, status), count in self.answered.items():
            requests.add_metric((str(intent), str(status)), count)
        return requests

    def _dropped(self) -> Metric:
        dropped = CounterMetricFamily(
            "mlc_gateway_records_dropped",
            "Exchanges that were not recorded, by why: the queue was full, a store or a record failed, the gateway "
            "stopped. error: the class, if it was one record.",
            labels=("reason", "error"),
        )
        for reason, count in self.dropped.copy().items():
            name, _, error = reason.partition(":")
            dropped.add_metric((name, error), count)
        return dropped

    def _rewrites(self) -> Metric:
        rewrites = CounterMetricFamily(
            "mlc_gateway_rewrites",
            "Unified inputs, by the agent's provider, the strategy and what became of them.",
            labels=("provider", "strategy", "outcome"),
        )
        for labels, count in self.rewrites.items():
            rewrites.add_metric(labels, count)
        return rewrites


def _counter(name: str, help: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family


def _histogram(name: str, help: str, label: str, histograms: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, help, labels=(label,))
    for value, histogram in histograms.items():
        family.add_metric((str(value),), histogram.buckets(), histogram.total)
    return family

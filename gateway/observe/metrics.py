"""Metrics for Prometheus, served on the admin port; ``docs/reference/metrics.md`` explains each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gateway.observe.histogram import SHORT, WAITS, Histogram
from gateway.observe.traffic_metrics import Lookups, Received, Running, TrafficMetrics
from gateway.observe.usage_metrics import UsageMetrics

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The gateway's counters, in a registry of their own so that a process can have several gateways."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._traffic = TrafficMetrics()
        self.registry.register(self._traffic)
        self.usage = UsageMetrics()
        self.registry.register(self.usage)

    @property
    def received(self) -> Received:
        """The count of bytes from clients; their connections add to it."""
        return self._traffic.received

    @property
    def lookups(self) -> Lookups:
        """The counts of look-ups of agents; the resolver adds to them."""
        return self._traffic.lookups

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

    def refused(self, code: str) -> None:
        """Count a request that got an error response of the gateway's own. code: of a problem, or the error's type."""
        refusals = self._traffic.refusals
        refusals[code] = refusals.get(code, 0) + 1

    def notice(self, code: str) -> None:
        """Count a limitation that was reported to a client."""
        notices = self._traffic.notices
        notices[code] = notices.get(code, 0) + 1

    def registration(self, outcome: str) -> None:
        """Count a registration. outcome: made, reused, quick or failed."""
        made = self._traffic.registrations
        made[outcome] = made.get(outcome, 0) + 1

    def turn(self, outcome: str) -> None:
        """Count a turn of gateway memory. outcome: stored or failed."""
        self._traffic.turns[outcome] += 1

    def record_dropped(self, reason: str, count: int = 1) -> None:
        """Count exchanges that were not recorded; see `mlc_gateway_records_dropped_total`."""
        dropped = self._traffic.dropped
        dropped[reason] = dropped.get(reason, 0) + count

    def records_dropped(self) -> dict[str, int]:
        """Return how many exchanges were not recorded, by reason."""
        return dict(self._traffic.dropped)

    def waited(self, intent: str, seconds: float) -> None:
        """Record the time from a request to the head of the cluster's response."""
        waits = self._traffic.waits.get(intent)
        if waits is None:
            waits = self._traffic.waits[intent] = Histogram(WAITS)
        waits.observe(seconds)

    def added(self, intent: str, seconds: float) -> None:
        """Record the time from a whole request to its sending to the cluster."""
        added = self._traffic.added.get(intent)
        if added is None:
            added = self._traffic.added[intent] = Histogram(SHORT)
        added.observe(seconds)

    def rewriting(self, path: str, seconds: float) -> None:
        """Record the time from the whole body of a request to its rewritten form. path: prepared or decided."""
        rewriting = self._traffic.rewriting.get(path)
        if rewriting is None:
            rewriting = self._traffic.rewriting[path] = Histogram(SHORT)
        rewriting.observe(seconds)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

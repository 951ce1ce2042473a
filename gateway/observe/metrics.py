"""Counters for Prometheus, served on the admin port; ``docs/configuration.md`` explains each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The gateway's own counters, in a registry of their own so that several gateways fit in a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "mlc_gateway_requests",
            "Requests answered, by what they were for and the answer's status.",
            ("intent", "status"),
            registry=self.registry,
        )
        self._rewrites = Counter(
            "mlc_gateway_rewrites",
            "Unified inputs, by the agent's provider, the strategy and what became of them.",
            ("provider", "strategy", "outcome"),
            registry=self.registry,
        )
        self._notices = Counter(
            "mlc_gateway_notices",
            "Limitations met and told to the client, by their code.",
            ("code",),
            registry=self.registry,
        )
        self._upstream = Histogram(
            "mlc_gateway_upstream_seconds",
            "Seconds from the request to the head of the cluster's answer.",
            ("intent",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge("mlc_gateway_in_flight", "Requests being answered now.", registry=self.registry)

    def request(self, intent: str, status: int) -> None:
        """One request was answered; status 0: the connection was cut before or within the answer."""
        self._requests.labels(intent, str(status)).inc()

    def rewritten(self, provider: str, strategy: str, outcome: str) -> None:
        """One unified input was delivered or refused; "" for a provider or strategy that was not known yet."""
        self._rewrites.labels(provider, strategy, outcome).inc()

    def notice(self, code: str) -> None:
        """One limitation was told to a client."""
        self._notices.labels(code).inc()

    def waited(self, intent: str, seconds: float) -> None:
        """The head of the cluster's answer came so long after the request."""
        self._upstream.labels(intent).observe(seconds)

    def render(self) -> bytes:
        """All counters in Prometheus' text format."""
        return generate_latest(self.registry)

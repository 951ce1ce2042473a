"""Metrics for Prometheus: of nodes, runs, budgets and guardrails; ``docs/reference/metrics.md`` explains each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observe.traffic_metrics import Lookups, Running, TrafficMetrics


class NodeState(NamedTuple):
    """A node. address: host and port. requests: number sent to it. failures: requests without a valid response, by
    kind.

    pending: requests it is working on. down, ejected: reasons for not using it now. rebuilds: of its connection pool.
    received: bytes from it. idle, busy, connecting: its connections. waiting: requests that wait for one.
    """

    address: str
    requests: int
    failures: Mapping[str, int]
    pending: int
    down: bool
    ejected: bool
    rebuilds: int
    received: int = 0
    idle: int = 0
    busy: int = 0
    connecting: int = 0
    waiting: int = 0


class Nodes(Collector):
    """Reads the nodes from `states` when metrics are collected, so a request costs nothing."""

    def __init__(self, states: Callable[[], Iterable[NodeState]]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        label = ("node",)
        requests = CounterMetricFamily("mlc_gateway_node_requests", "Requests sent to a node.", labels=label)
        failures = CounterMetricFamily(
            "mlc_gateway_node_failures",
            "Requests that got no valid answer from a node, by why: connect, reset, invalid or timeout.",
            labels=("node", "kind"),
        )
        pending = GaugeMetricFamily("mlc_gateway_node_pending", "Requests a node is working on.", labels=label)
        down = GaugeMetricFamily("mlc_gateway_node_down", "Whether a node's probes say that it is down.", labels=label)
        ejected = GaugeMetricFamily("mlc_gateway_node_ejected", "Whether a node is ejected now.", labels=label)
        rebuilds = CounterMetricFamily(
            "mlc_gateway_node_pool_rebuilds",
            "Connection pools that were rebuilt because no request got a connection although the node was well.",
            labels=label,
        )
        received = CounterMetricFamily("mlc_gateway_node_received_bytes", "Bytes received from a node.", labels=label)
        connections = GaugeMetricFamily(
            "mlc_gateway_node_connections",
            "Connections to a node: idle, busy or connecting.",
            labels=("node", "state"),
        )
        waiting = GaugeMetricFamily(
            "mlc_gateway_node_waiting", "Requests that wait for a connection to a node.", labels=label
        )
        for node in self._states():
            requests.add_metric((node.address,), node.requests)
            for kind, count in node.failures.items():
                failures.add_metric((node.address, kind), count)
            pending.add_metric((node.address,), node.pending)
            down.add_metric((node.address,), node.down)
            ejected.add_metric((node.address,), node.ejected)
            rebuilds.add_metric((node.address,), node.rebuilds)
            received.add_metric((node.address,), node.received)
            connections.add_metric((node.address, "idle"), node.idle)
            connections.add_metric((node.address, "busy"), node.busy)
            connections.add_metric((node.address, "connecting"), node.connecting)
            waiting.add_metric((node.address,), node.waiting)
        yield from (requests, failures, pending, down, ejected, rebuilds, received, connections, waiting)


MOST_MODELS = 100
"""Most different values of the label `model`, which come from the clusters' documents."""
OTHER = "other"
"""The label of further models."""


class UsageMetrics(Collector):
    """The counters. Methods run on the loop's thread."""

    def __init__(self) -> None:
        self._models: set[str] = set()
        self._tokens: dict[tuple[str, str, str], int] = {}
        self._cost: dict[tuple[str, str, str], float] = {}
        self._unknown: dict[str, int] = {}
        self._budgets = dict.fromkeys(("refused", "read_failed", "write_failed"), 0)
        self._guardrails: dict[tuple[str, str, str], int] = {}

    def tokens(self, provider: str, model: str, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a run."""
        model = self._model(model)
        for direction, count in (("input", input_tokens), ("output", output_tokens)):
            key = (provider, model, direction)
            self._tokens[key] = self._tokens.get(key, 0) + count

    def cost(self, provider: str, model: str, currency: str, amount: float) -> None:
        """Count what a run cost."""
        key = (provider, self._model(model), currency)
        self._cost[key] = self._cost.get(key, 0.0) + amount

    def unknown(self, provider: str) -> None:
        """Count a run whose answer did not report its tokens."""
        self._unknown[provider] = self._unknown.get(provider, 0) + 1

    def budget(self, outcome: str) -> None:
        """Count a budget's effect. outcome: refused, read_failed or write_failed."""
        self._budgets[outcome] += 1

    def guardrail(self, name: str, stage: str, verdict: str) -> None:
        """Count a check. stage: input or answer. verdict: allow, change, refuse or failed."""
        key = (name, stage, verdict)
        self._guardrails[key] = self._guardrails.get(key, 0) + 1

    def _model(self, model: str) -> str:
        if model not in self._models:
            if len(self._models) >= MOST_MODELS:
                return OTHER
            self._models.add(model)
        return model

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield _family(
            "mlc_gateway_tokens",
            "Tokens that answers of agents reported.",
            ("provider", "model", "direction"),
            self._tokens,
        )
        yield _family(
            "mlc_gateway_cost",
            "Cost of these tokens, by the settings' prices.",
            ("provider", "model", "currency"),
            self._cost,
        )
        unknown = {(provider,): count for provider, count in self._unknown.items()}
        yield _family("mlc_gateway_usage_unknown", "Runs whose answers did not report tokens.", ("provider",), unknown)
        budgets = {(outcome,): count for outcome, count in self._budgets.items()}
        yield _family("mlc_gateway_budget_events", "Budgets: refusals, failures of the store.", ("outcome",), budgets)
        yield _family(
            "mlc_gateway_guardrail_checks",
            "Checks by guardrails.",
            ("name", "stage", "verdict"),
            self._guardrails,
        )


def _family(name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(name, help, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


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

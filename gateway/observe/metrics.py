"""Metrics for Prometheus, of requests, nodes, runs and policies; ``docs/reference/metrics.md`` explains each."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
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
        self.refusals: Counter[str] = Counter()
        self.notices: Counter[str] = Counter()
        self.registrations: Counter[str] = Counter()
        self.stream_errors: dict[str, int] = {"reported": 0, "broken": 0, "cut": 0}
        self.dropped: defaultdict[str, int] = defaultdict(int)
        self.turns: dict[str, int] = {"stored": 0, "failed": 0}
        self.cluster_copies: dict[str, int] = {"deleted": 0, "left": 0}
        self.waits: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(WAITS))
        self.added: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SHORT))
        self.rewriting = Histogram(SHORT)
        self.received = Received()
        self.lookups = Lookups()
        self.sources: WeakSet[Running] = WeakSet()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield _counter(
            "mlc_gateway_requests",
            "Requests answered, by what they were for and the answer's status.",
            ("intent", "status"),
            {(str(intent), str(status)): count for (intent, status), count in self.answered.items()},
        )
        yield _counter(
            "mlc_gateway_rewrites",
            "Unified inputs, by the agent's provider, the strategy and what became of them.",
            ("provider", "strategy", "outcome"),
            self.rewrites,
        )
        yield _counter("mlc_gateway_refusals", "Requests that the gateway refused.", ("code",), self.refusals)
        yield _counter("mlc_gateway_notices", "Limitations reported to clients, by code.", ("code",), self.notices)
        yield _counter("mlc_gateway_stream_errors", "Errors in event streams of runs.", ("kind",), self.stream_errors)
        yield _counter(
            "mlc_gateway_registrations",
            "Agents that the gateway made, found made, made for one run, or failed to make.",
            ("outcome",),
            self.registrations,
        )
        dropped = {reason.partition(":")[::2]: count for reason, count in dict(self.dropped).items()}
        yield _counter(
            "mlc_gateway_records_dropped",
            "Exchanges that were not recorded, by why: the queue was full, a store or a record failed, the gateway "
            "stopped. error: the class, if it was one record.",
            ("reason", "error"),
            dropped,
        )
        yield _histogram(
            "mlc_gateway_upstream_seconds",
            "Seconds from the request to the head of the cluster's answer.",
            ("intent",),
            self.waits,
        )
        yield _histogram(
            "mlc_gateway_added_seconds",
            "Seconds from the whole request to its sending to the cluster.",
            ("intent",),
            self.added,
        )
        yield HistogramMetricFamily(
            "mlc_gateway_rewrite_seconds",
            "Seconds from the whole body of a request to its rewritten form.",
            self.rewriting.buckets(),
            self.rewriting.total,
        )
        yield CounterMetricFamily(
            "mlc_gateway_client_received_bytes", "Bytes received from clients.", self.received.size
        )
        yield _counter("mlc_gateway_session_turns", "Turns of gateway memory.", ("outcome",), self.turns)
        yield _counter(
            "mlc_gateway_cluster_copies",
            "Conversations of agents with gateway memory in the cluster's own memory.",
            ("outcome",),
            self.cluster_copies,
        )
        found = self.lookups
        outcomes = {"cached": found.cached, "read": found.read, "failed": found.failed}
        yield _counter("mlc_gateway_profile_lookups", "Look-ups of agents.", ("outcome",), outcomes)
        running = sum(source.running for source in self.sources)
        yield GaugeMetricFamily("mlc_gateway_in_flight", "Requests being answered now.", running)


def _counter(name: str, help: str, labels: tuple[str, ...], counts: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(name, help, labels=labels)
    for values, count in counts.items():
        family.add_metric(_labels(values), count)
    return family


def _gauge(name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=labels)
    for key, value in values.items():
        family.add_metric(_labels(key), value)
    return family


def _histogram(name: str, help: str, labels: tuple[str, ...], histograms: Mapping[Any, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, help, labels=labels)
    for values, histogram in histograms.items():
        family.add_metric(_labels(values), histogram.buckets(), histogram.total)
    return family


def _labels(values: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of a metric's labels; a single one may stand by itself."""
    return values if isinstance(values, tuple) else (str(values),)


class NodeState(NamedTuple):
    """A node. address: host and port. requests: number sent to it. failures: requests without a valid response, by
    kind.

    pending: requests it is working on. down, ejected: reasons for not using it now. rebuilds: of its connection pool.
    received: bytes from it. idle, busy, connecting: its connections. waiting: requests that wait for one. cluster: ""
    for the one of `upstream`.
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
    cluster: str = ""


class Nodes(Collector):
    """Reads the nodes from `states` when metrics are collected, so a request costs nothing."""

    def __init__(self, states: Callable[[], Iterable[NodeState]]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        nodes = [((node.cluster, node.address), node) for node in self._states()]
        label = ("cluster", "node")
        failures = {(*place, kind): count for place, node in nodes for kind, count in node.failures.items()}
        connections = {
            (*place, state): getattr(node, state) for place, node in nodes for state in ("idle", "busy", "connecting")
        }

        def counts(field: str) -> dict[tuple[str, ...], float]:
            return {place: getattr(node, field) for place, node in nodes}

        yield _counter("mlc_gateway_node_requests", "Requests sent to a node.", label, counts("requests"))
        yield _counter(
            "mlc_gateway_node_failures",
            "Requests that got no valid answer from a node, by why: connect, reset, invalid or timeout.",
            (*label, "kind"),
            failures,
        )
        yield _gauge("mlc_gateway_node_pending", "Requests a node is working on.", label, counts("pending"))
        yield _gauge("mlc_gateway_node_down", "Whether a node's probes say that it is down.", label, counts("down"))
        yield _gauge("mlc_gateway_node_ejected", "Whether a node is ejected now.", label, counts("ejected"))
        yield _counter(
            "mlc_gateway_node_pool_rebuilds",
            "Connection pools that were rebuilt because no request got a connection although the node was well.",
            label,
            counts("rebuilds"),
        )
        yield _counter("mlc_gateway_node_received_bytes", "Bytes received from a node.", label, counts("received"))
        yield _gauge(
            "mlc_gateway_node_connections",
            "Connections to a node: idle, busy or connecting.",
            (*label, "state"),
            connections,
        )
        yield _gauge(
            "mlc_gateway_node_waiting", "Requests that wait for a connection to a node.", label, counts("waiting")
        )


RouteLabels = tuple[str, str, str]
"""A route's id, the agent that runs, its cluster ("" for the one of `upstream`)."""
_ROUTE = ("route", "agent", "cluster")


class RouteMetrics(Collector):
    """What the targets of routes do. shares: the current share of new conversations of each target."""

    def __init__(self) -> None:
        self.shares: Callable[[], Mapping[RouteLabels, float]] = dict
        self._runs: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._tokens: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._cost: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._mirrors: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._seconds: defaultdict[RouteLabels, Histogram] = defaultdict(lambda: Histogram(WAITS))

    def run(self, labels: RouteLabels, outcome: str, seconds: float | None = None) -> None:
        """Count a run. outcome: answered, failed or refused. seconds: from the request to the end of its answer."""
        self._runs[*labels, outcome] += 1
        if seconds is not None:
            self._seconds[labels].observe(seconds)

    def tokens(self, labels: RouteLabels, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a run."""
        self._tokens[*labels, "input"] += input_tokens
        self._tokens[*labels, "output"] += output_tokens

    def cost(self, labels: RouteLabels, currency: str, amount: float) -> None:
        """Count what a run cost."""
        self._cost[*labels, currency] += amount

    def mirror(self, labels: RouteLabels, outcome: str) -> None:
        """Count a copy of a run. outcome: ran, failed or dropped."""
        self._mirrors[*labels, outcome] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield _counter("mlc_gateway_route_runs", "Runs through routes.", (*_ROUTE, "outcome"), self._runs)
        yield _histogram(
            "mlc_gateway_route_seconds", "Seconds from a request to the end of its answer.", _ROUTE, self._seconds
        )
        yield _counter("mlc_gateway_route_tokens", "Tokens of these runs.", (*_ROUTE, "kind"), self._tokens)
        yield _counter("mlc_gateway_route_cost", "Cost of these tokens.", (*_ROUTE, "currency"), self._cost)
        yield _counter("mlc_gateway_mirrors", "Copies of runs.", (*_ROUTE, "outcome"), self._mirrors)
        yield _gauge("mlc_gateway_route_share", "Share of new conversations, from 0 to 1.", _ROUTE, self.shares())


MOST_MODELS = 100
"""Most different values of the label `model`, which come from the clusters' documents."""
OTHER = "other"
"""The label of further models."""


class UsageMetrics(Collector):
    """The counters. Methods run on the loop's thread."""

    def __init__(self) -> None:
        self._models: set[str] = set()
        self._tokens: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._cost: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        self._unknown: defaultdict[str, int] = defaultdict(int)
        self._budgets = dict.fromkeys(("refused", "read_failed", "write_failed"), 0)
        self._guardrails: defaultdict[tuple[str, str, str], int] = defaultdict(int)

    def tokens(self, provider: str, model: str, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a run."""
        model = self._model(model)
        self._tokens[provider, model, "input"] += input_tokens
        self._tokens[provider, model, "output"] += output_tokens

    def cost(self, provider: str, model: str, currency: str, amount: float) -> None:
        """Count what a run cost."""
        self._cost[provider, self._model(model), currency] += amount

    def unknown(self, provider: str) -> None:
        """Count a run whose answer did not report its tokens."""
        self._unknown[provider] += 1

    def budget(self, outcome: str) -> None:
        """Count a budget's effect. outcome: refused, read_failed or write_failed."""
        self._budgets[outcome] += 1

    def guardrail(self, name: str, stage: str, verdict: str) -> None:
        """Count a check. stage: input or answer. verdict: allow, change, refuse or failed."""
        self._guardrails[name, stage, verdict] += 1

    def _model(self, model: str) -> str:
        if model not in self._models:
            if len(self._models) >= MOST_MODELS:
                return OTHER
            self._models.add(model)
        return model

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield _counter(
            "mlc_gateway_tokens",
            "Tokens that answers of agents reported.",
            ("provider", "model", "direction"),
            self._tokens,
        )
        yield _counter(
            "mlc_gateway_cost",
            "Cost of these tokens, by the settings' prices.",
            ("provider", "model", "currency"),
            self._cost,
        )
        yield _counter(
            "mlc_gateway_usage_unknown", "Runs whose answers did not report tokens.", ("provider",), self._unknown
        )
        yield _counter(
            "mlc_gateway_budget_events", "Budgets: refusals, failures of the store.", ("outcome",), self._budgets
        )
        yield _counter(
            "mlc_gateway_guardrail_checks",
            "Checks by guardrails.",
            ("name", "stage", "verdict"),
            self._guardrails,
        )


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
        self.routes = RouteMetrics()
        self.registry.register(self.routes)

    @property
    def lookups(self) -> Lookups:
        """The counts of look-ups of agents; the resolver adds to them."""
        return self.traffic.lookups

    def watch(self, source: Running) -> None:
        """Include the requests of `source` in those that are being answered now, while `source` exists."""
        self.traffic.sources.add(source)

    def refused(self, code: str) -> None:
        """Count a request that got an error response of the gateway's own. code: of a problem, or the error's type."""
        self.traffic.refusals[code] += 1

    def notice(self, code: str) -> None:
        """Count a limitation that was reported to a client."""
        self.traffic.notices[code] += 1

    def stream_error(self, kind: str) -> None:
        """Count an error in an event stream. kind: reported, broken or cut."""
        self.traffic.stream_errors[kind] += 1

    def registration(self, outcome: str) -> None:
        """Count a registration. outcome: made, reused, quick or failed."""
        self.traffic.registrations[outcome] += 1

    def turn(self, outcome: str) -> None:
        """Count a turn of gateway memory. outcome: stored or failed."""
        self.traffic.turns[outcome] += 1

    def cluster_copy(self, outcome: str) -> None:
        """Count what the cluster has of a turn of gateway memory. outcome: deleted or left."""
        self.traffic.cluster_copies[outcome] += 1

    def record_dropped(self, reason: str, count: int = 1) -> None:
        """Count exchanges that were not recorded; see `mlc_gateway_records_dropped_total`.

        reason: such as ``sqlite``, or ``sqlite:TypeError`` with the class of the error of a single record.
        """
        self.traffic.dropped[reason] += count

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

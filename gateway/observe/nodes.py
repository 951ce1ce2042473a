"""Prometheus metrics of the cluster's nodes: one series for each configured node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


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

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
    """

    address: str
    requests: int
    failures: Mapping[str, int]
    pending: int
    down: bool
    ejected: bool
    rebuilds: int


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
        for node in self._states():
            requests.add_metric((node.address,), node.requests)
            for kind, count in node.failures.items():
                failures.add_metric((node.address, kind), count)
            pending.add_metric((node.address,), node.pending)
            down.add_metric((node.address,), node.down)
            ejected.add_metric((node.address,), node.ejected)
            rebuilds.add_metric((node.address,), node.rebuilds)
        yield from (requests, failures, pending, down, ejected, rebuilds)

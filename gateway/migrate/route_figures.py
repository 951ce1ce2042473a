"""What the targets of a route did since its weights changed: the gateways' counters of two times, compared.

The counters are those of one process each: of a gateway, or of one of its workers. A process whose counters went down
was restarted, so it counts from 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

_DETAILS = {
    "mlc_gateway_route_runs_total": "outcome",
    "mlc_gateway_route_seconds_bucket": "le",
    "mlc_gateway_route_tokens_total": "kind",
    "mlc_gateway_route_cost_total": "currency",
}
"""The counters that are compared, and the label of each besides those of the target."""
_RUNS, _SECONDS, _TOKENS, _COST = _DETAILS
_SHARE = "mlc_gateway_route_share"


class Series(NamedTuple):
    """One counter of a target. detail: an outcome, a bound in seconds, a kind of tokens or a currency."""

    metric: str
    agent: str
    cluster: str
    detail: str


Counts = Mapping[Series, float]
Processes = Mapping[str, Counts]
"""The counters of a gateway by the number of the worker; "" for a gateway of one process."""


class Reading(NamedTuple):
    """What a gateway's page of metrics says about a route. shares: of each agent in each process, from 0 to 1."""

    processes: Processes
    shares: Mapping[str, Mapping[str, float]]


def read_page(page: str, route: str) -> Reading:
    """Read a page in Prometheus' text format. route: the agent's id that clients send."""
    processes: dict[str, dict[Series, float]] = {}
    shares: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = sample.labels
            worker = labels.get("worker", "")
            if labels.get("route") != route:
                continue
            if sample.name == _SHARE:
                shares.setdefault(worker, {})[labels["agent"]] = sample.value
            elif (detail := _DETAILS.get(sample.name)) is not None:
                series = Series(sample.name, labels["agent"], labels["cluster"], labels[detail])
                processes.setdefault(worker, {})[series] = sample.value
    return Reading(processes, shares)


def counts_since(now: Processes, before: Processes) -> Counts:
    """Return what was counted between two readings of one gateway."""
    total: defaultdict[Series, float] = defaultdict(float)
    for worker, counts in now.items():
        base = before.get(worker, {})
        restarted = any(counts.get(series, 0) < value for series, value in base.items())
        for series, value in counts.items():
            total[series] += value - (0 if restarted else base.get(series, 0))
    return total


class Figures(Struct, frozen=True):
    """What a target did. runs: those that reached the agent; errors: those of them that failed.

    refusals: runs that the gateway refused. p50, p95: seconds from the request to the end of the answer, None without
    runs; the histogram's greatest bound stands for all that took longer. cost: by currency.
    """

    runs: int
    errors: int
    refusals: int
    p50: float | None
    p95: float | None
    input_tokens: int
    output_tokens: int
    cost: dict[str, float]

    @property
    def error_ratio(self) -> float | None:
        """Errors among the runs, from 0 to 1; None without runs."""
        return self.errors / self.runs if self.runs else None


def figures_of(counts: Counts, agent: str, cluster: str) -> Figures:
    """Return the figures of a target."""
    own = {series: value for series, value in counts.items() if (series.agent, series.cluster) == (agent, cluster)}

    def by_detail(metric: str) -> defaultdict[str, float]:
        return defaultdict(float, {one.detail: value for one, value in own.items() if one.metric == metric})

    runs, tokens = by_detail(_RUNS), by_detail(_TOKENS)
    buckets = {float(bound): count for bound, count in by_detail(_SECONDS).items()}
    return Figures(
        int(runs["answered"] + runs["failed"]),
        int(runs["failed"]),
        int(runs["refused"]),
        quantile(buckets, 0.5),
        quantile(buckets, 0.95),
        int(tokens["input"]),
        int(tokens["output"]),
        {currency: amount for currency, amount in sorted(by_detail(_COST).items()) if amount},
    )


def quantile(buckets: Mapping[float, float], part: float) -> float | None:
    """Return a quantile of a histogram, in its unit; None if it is empty. It is interpolated within its bucket.

    buckets: the upper bound → how many are not greater. part: from 0 to 1. The greatest finite bound stands for all
    above.
    """
    total = buckets.get(math.inf, 0)
    if not total:
        return None
    rank, lower, below = part * total, 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= rank and count > below:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the counters of several gateways, added up."""
    total: defaultdict[Series, float] = defaultdict(float)
    for one in counts:
        for series, value in one.items():
            total[series] += value
    return total

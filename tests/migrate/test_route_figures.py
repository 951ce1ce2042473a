"""The figures of a route's targets: counters of two times and several processes, compared."""

from __future__ import annotations

import bisect
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.app.supervisor import merge_metrics
from gateway.migrate.route_figures import (
    Counts,
    Figures,
    Series,
    counts_since,
    figures_of,
    quantile,
    read_page,
    sum_counts,
)
from gateway.observe.metrics import WAITS, Histogram, Metrics

OLD, NEW, OTHER = ("OLD", "OLD", ""), ("OLD", "NEW", "new"), ("X", "NEW", "new")


def _metrics(runs: int, failed: int = 0, refused: int = 0) -> Metrics:
    metrics = Metrics()
    metrics.routes.shares = lambda: {OLD: 0.95, NEW: 0.05, OTHER: 1.0}
    for labels in (NEW, OTHER):
        for _ in range(runs):
            metrics.routes.run(labels, "answered", 2.0)
            metrics.routes.tokens(labels, 10, 3)
            metrics.routes.cost(labels, "USD", 0.25)
        for _ in range(failed):
            metrics.routes.run(labels, "failed", 40.0)
        for _ in range(refused):
            metrics.routes.run(labels, "refused")
    return metrics


def _counts(metrics: Metrics) -> dict[str, Counts]:
    return dict(read_page(metrics.render().decode(), "OLD").processes)


def test_a_page_is_read_for_one_route() -> None:
    """Its target has the figures of its label `cluster`; another route's are not counted."""
    reading = read_page(_metrics(8, 2, 3).render().decode(), "OLD")
    assert reading.shares == {"": {"OLD": 0.95, "NEW": 0.05}}
    figures = figures_of(reading.processes[""], "NEW", "new")
    assert (figures.runs, figures.errors, figures.refusals, figures.error_ratio) == (10, 2, 3, 0.2)
    assert (figures.input_tokens, figures.output_tokens, figures.cost) == (80, 24, {"USD": 2.0})
    assert figures.p50 is not None
    assert figures.p95 is not None
    assert 1 < figures.p50 <= 2.5
    assert 30 < figures.p95 <= 60
    nothing = Figures(0, 0, 0, None, None, 0, 0, {})
    assert figures_of(reading.processes[""], "NEW", "") == nothing
    assert nothing.error_ratio is None


def test_only_what_came_after_the_first_reading_counts() -> None:
    """A target without any runs before is new."""
    before, now = _counts(_metrics(5, 1)), _counts(_metrics(8, 2, 1))
    figures = figures_of(counts_since(now, before), "NEW", "new")
    assert (figures.runs, figures.errors, figures.refusals, figures.input_tokens) == (4, 1, 1, 30)
    assert figures_of(counts_since(now, {}), "NEW", "new").runs == 10


def test_a_process_that_was_restarted_counts_from_0() -> None:
    """Also where only one of its counters shows it."""
    before, now = _counts(_metrics(5, 5)), _counts(_metrics(9, 1))
    figures = figures_of(counts_since(now, before), "NEW", "new")
    assert (figures.runs, figures.errors, figures.cost) == (10, 1, {"USD": 2.25})
    assert figures_of(counts_since({}, before), "NEW", "new").runs == 0


def test_each_worker_is_compared_with_itself() -> None:
    """The second one was restarted."""
    before = read_page(merge_metrics({"0": _page(5), "1": _page(7)}).decode(), "OLD")
    now = read_page(merge_metrics({"0": _page(6), "1": _page(2)}).decode(), "OLD")
    assert set(now.shares) == {"0", "1"}
    assert figures_of(counts_since(now.processes, before.processes), "NEW", "new").runs == 1 + 2


def _page(runs: int) -> str:
    return _metrics(runs).render().decode()


def test_gateways_are_added_up() -> None:
    """Histograms, too."""
    total = sum_counts(counts_since(_counts(_metrics(runs)), {}) for runs in (3, 4))
    assert figures_of(total, "NEW", "new").runs == 7
    assert total[Series("mlc_gateway_route_seconds_bucket", "NEW", "new", "+Inf")] == 7


@given(st.lists(st.floats(0, 400, allow_nan=False), min_size=1, max_size=300), st.sampled_from([0.5, 0.95, 0.01, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(seconds: list[float], part: float) -> None:
    """The bounds are those of the gateway's histogram."""
    histogram = Histogram(WAITS)
    for one in seconds:
        histogram.observe(one)
    found = quantile({float(bound): count for bound, count in histogram.buckets()}, part)
    true = sorted(seconds)[max(math.ceil(part * len(seconds)) - 1, 0)]
    index = bisect.bisect_left(WAITS, true)
    assert found is not None
    if index == len(WAITS):
        assert found == WAITS[-1]
    else:
        assert (WAITS[index - 1] if index else 0) <= found <= WAITS[index]


@pytest.mark.parametrize(
    ("part", "expected"), [(0.5, 1.0), (0.75, 3.0), (1.0, 5.0)], ids=["at a bound", "between", "last"]
)
def test_a_quantile_is_interpolated(part: float, expected: float) -> None:
    """As Prometheus does it."""
    assert quantile({1.0: 2, 5.0: 4, math.inf: 4}, part) == expected


def test_no_runs_have_no_quantile() -> None:
    """And no division by zero."""
    assert quantile({}, 0.5) is None
    assert quantile({1.0: 0, math.inf: 0}, 0.5) is None

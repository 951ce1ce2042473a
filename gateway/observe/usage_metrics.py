"""Counters of what runs of agents used, of budgets and of guardrails, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

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

"""What the targets of routes do, for the metrics: runs, seconds, tokens and costs of each."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from typing_extensions import override

from gateway.codes import Notice
from gateway.errors import GatewayError
from gateway.execute.deliveries import model_name
from gateway.execute.run_answer import RunAnswer
from gateway.execute.run_events import NOT_READ, read_run
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.metrics import Metrics
from gateway.offload import READING
from gateway.policy.usage import Prices
from gateway.ports import AnswerStage, Routed

_SMALL = 64 * 1024


class RouteMeter:
    """Counts what targets do."""

    def __init__(self, metrics: Metrics, prices: Prices) -> None:
        self._metrics = metrics.routes
        self._prices = prices
        self._notice = metrics.notice

    def noticed(self, notice: Notice) -> None:
        """Count a notice."""
        self._notice(notice.code)

    def count(self, routed: Routed, outcome: str) -> None:
        """Count a run that has no answer of the cluster. outcome: failed or refused."""
        self._metrics.run(_labels(routed), outcome)

    def measure(self, routed: Routed, profile: AgentProfile, status: int, answer: RunAnswer, seconds: float) -> None:
        """Count a run that the cluster has answered."""
        labels = _labels(routed)
        self._metrics.run(labels, "failed" if status >= 400 or answer.failed else "answered", seconds)
        usage = answer.usage
        if usage is None or usage.input is None or usage.output is None:
            return
        self._metrics.tokens(labels, usage.input, usage.output)
        cost = self._prices.cost(profile.provider, model_name(profile), usage.input, usage.output)
        if cost is not None:
            self._metrics.cost(labels, cost.currency, cost.amount)


def _labels(routed: Routed) -> tuple[str, str, str]:
    return routed.route, routed.agent_id, routed.cluster


class MeterStage(AnswerStage):
    """Measures one run. profile: None if the agent can't be read."""

    holds = False
    reports = True

    def __init__(self, meter: RouteMeter, routed: Routed, profile: AgentProfile | None, streaming: bool) -> None:
        self._meter = meter
        self._routed = routed
        self._profile = profile or NOT_READ
        self._streaming = streaming
        self._started = time.monotonic()
        self._is_failed = False

    @override
    def fail(self, error: GatewayError) -> None:
        self._is_failed = True

    def report(self, status: int, body: bytes) -> Coroutine[Any, Any, None] | None:
        """See `AnswerStage`. A client that left before the answer was whole is no failure of the agent."""
        seconds = time.monotonic() - self._started
        if self._is_failed:
            self._meter.count(self._routed, "failed")
        elif status and len(body) <= _SMALL:
            self._measure(status, read_run(self._profile, body, self._streaming) if body else RunAnswer(), seconds)
        elif status:
            return self._read(status, body, seconds)
        return None

    async def _read(self, status: int, body: bytes, seconds: float) -> None:
        self._measure(status, await READING.run(read_run, self._profile, body, self._streaming), seconds)

    def _measure(self, status: int, answer: RunAnswer, seconds: float) -> None:
        self._meter.measure(self._routed, self._profile, status, answer, seconds)

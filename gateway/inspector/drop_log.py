"""Logs how many exchanges were not recorded, and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.observe.redact import LONGEST

_LOG_EVERY = 60.0


class DropLog:
    """Logs once a minute. clock: in seconds."""

    def __init__(self, log: Logger, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._logged = metrics.records_dropped()  # by the recorder before this one
        self._log_at = float("-inf")

    def write(self, faults: Mapping[str, str], now: bool = False) -> bool:
        """Log what was dropped since the last time, a line for each reason. Return True if there is one.

        faults: what sinks reported, by their names. now: even if the last line is less than a minute old.
        """
        if self._clock() < self._log_at and not now:
            return False
        dropped = self._metrics.records_dropped()
        news: Counter[str] = Counter()
        for reason, count in dropped.items():
            news[reason.partition(":")[0]] += count - self._logged.get(reason, 0)
        reasons = {name: f"{name}: {count}" for name, count in news.items() if count}
        for name, fault in faults.items():
            reasons[name] = f"{reasons[name]}; {fault}" if name in reasons else f"{name}: {fault}"
        if not reasons:
            return False
        self._log_at = self._clock() + _LOG_EVERY
        self._logged = dropped
        for reason in reasons.values():  # a line each, because the log does not show long texts
            self._log.warning("records dropped", reason=reason[:LONGEST])
        return True

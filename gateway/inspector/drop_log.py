"""Logs how many exchanges were not recorded, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics

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
        """Log what was dropped since the last line. Return True if there is a new line.

        faults: what sinks reported, by their names. now: even if the last line is less than a minute old.
        """
        if self._clock() < self._log_at and not now:
            return False
        dropped = self._metrics.records_dropped()
        news = {name: count - self._logged.get(name, 0) for name, count in dropped.items()}
        parts = [f"{name}: {count}" for name, count in news.items() if count]
        parts += [f"{name}: {fault}" for name, fault in faults.items()]
        if not parts:
            return False
        self._log_at = self._clock() + _LOG_EVERY
        self._logged = dropped
        self._log.warning("records dropped", reason="; ".join(parts))
        return True

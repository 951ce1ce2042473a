"""Reads from answers of agents what their runs used and cost."""

from __future__ import annotations

from gateway.config.schema import Settings
from gateway.execute.run_usage import recorded_usage
from gateway.inspector.records import ReadUsage
from gateway.observe.record import Delivery, Usage
from gateway.policy.prices import Prices


def usage_reader(settings: Settings) -> ReadUsage:
    """Return what reads the usage, with the prices of the settings."""
    prices = Prices(settings.policy.prices)

    def read(delivery: Delivery, content: bytes, streaming: bool) -> Usage | None:
        return recorded_usage(delivery, content, streaming, prices)

    return read

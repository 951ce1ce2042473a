"""The whole way from an old cluster to a new one and back, once and quickly (``make gradual`` takes longer steps)."""

from __future__ import annotations

import pytest

from tests.migrate.gradual import there_and_back


@pytest.mark.slow(60)
async def test_no_request_is_lost_broken_or_misled_on_the_way() -> None:
    steps: list[str] = []
    traffic = await there_and_back(rate=20, seconds=1.0, seed=1, say=steps.append)
    assert traffic.faults == []
    assert traffic.counts["requests"] > 200
    assert set(traffic.targets) == {"upstream", "new"}
    assert len(steps) == 13

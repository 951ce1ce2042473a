"""Agents that are made for one run go through policies like others."""

from __future__ import annotations

from tests.register.deployment import deploy
from tests.register.test_quick import QUICK, quick


async def test_quick_executions_share_a_budget() -> None:
    policy = {"budgets": [{"tokens": 5, "unknown": "count", "unknown_amount": 4}], "usage_header": True}
    async with deploy("2.19.0", {"policy": policy}) as deployment:
        answers = [await deployment.call("POST", QUICK, quick(deployment)) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        assert answers[0][2]["X-MLC-Gateway-Usage"] == "unknown"
        assert answers[2][1]["error"]["type"] == "BudgetSpent"
        assert deployment.counts == (0, 0, 0)

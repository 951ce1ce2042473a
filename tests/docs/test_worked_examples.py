"""What pages show as output is what is printed and answered."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import msgspec
import pytest
import yaml

from gateway.config.load import _FIXED
from gateway.config.policy import Policy, UsageBudget
from gateway.errors import BudgetSpent
from gateway.observe.logs import configure
from gateway.observe.metrics import UsageMetrics
from gateway.observe.record import Usage
from gateway.policy.budgets import Budgets, Ledger, MemoryBudgetStore
from gateway.policy.usage import Llm, Meter, Prices, header_value
from tests.cli.test_listings import piped
from tests.docs.first_minutes import simulated
from tests.docs.pages import DOCS, page
from tests.docs.worked_examples import PAGES, render

pytestmark = pytest.mark.check


@pytest.mark.parametrize("name", PAGES)
def test_a_command_prints_what_its_page_shows(name: str) -> None:
    assert (DOCS / name).read_text() == render(name)


def test_agents_and_upgrade_count_the_same_connectors() -> None:
    """As the page of `mlc-gateway agents` says: its third line is the first one of `mlc-gateway upgrade`."""
    (command,) = re.findall(r"\$ mlc-gateway agents --url \S+ (.*)", page("operate/agents-table.md"))
    with simulated() as (cluster, _):
        lines = [
            piped([name, "--url", f"http://{cluster}", *command.split(), "--table"])[1].splitlines()
            for name in ("agents", "upgrade")
        ]
    assert lines[0][2] == lines[1][0]


def policy() -> Policy:
    """The settings that the page of policies begins with."""
    text = re.findall(r"^```yaml\n(.*?)```", page("operate/policy.md"), re.MULTILINE | re.DOTALL)[0]
    return msgspec.convert(yaml.safe_load(text)["policy"], Policy)


def test_the_header_of_usage_has_the_cost_by_the_prices_above_it() -> None:
    llm = Llm("openai/v1/chat/completions", "gpt-4o")
    usage = Meter(Prices(policy().prices), UsageMetrics()).measure(llm, 11, 42)
    assert f"X-MLC-Gateway-Usage: {header_value(usage, llm)}\n" in page("operate/policy.md")


async def test_a_spent_budget_is_answered_as_the_page_shows() -> None:
    (shown,) = re.findall(r'^```json\n(\{\n  "error".*?)```', page("operate/policy.md"), re.MULTILINE | re.DOTALL)
    answer: dict[str, Any] = json.loads(shown)
    (until,) = re.findall(r"until (\S+Z)", answer["error"]["message"])
    (seconds,) = re.findall(r"in (\d+) seconds", answer["error"]["help"])
    now = datetime.fromisoformat(until).timestamp() - int(seconds)

    def clock() -> float:
        return now

    budget = policy().budgets[0]
    assert budget == UsageBudget(agent="*", per="caller", money=5.0)
    ledger = Ledger(MemoryBudgetStore(clock))
    budgets = Budgets([budget], ledger, False, configure("error", "json"), UsageMetrics(), clock)
    await budgets.charge(await budgets.admit("a", "", {}), Usage(1, 1, 5.02, "USD"))
    with pytest.raises(BudgetSpent) as refused:
        await budgets.admit("a", "", {})
    assert refused.value.body() == answer
    assert refused.value.retry_after == int(seconds)


def test_what_needs_a_restart_is_listed() -> None:
    (operations,) = re.findall(r"what only a restart can change: (.*?)\n\n", page("operate/operations.md"), re.DOTALL)
    assert re.findall(r"`listen\.(\w+)`", operations) == list(_FIXED)
    (adapters,) = re.findall(r"each serves the port\. (.*?) need\s", page("operate/adapters.md"), re.DOTALL)
    assert re.findall(r"`listen\.(\w+)`", adapters) == [name for name in _FIXED if "adapters" in name]

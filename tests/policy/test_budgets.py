"""Budgets: who shares one, when it is spent, what the client is sent, and what happens without the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.policy import UsageBudget
from gateway.config.problems import ConfigError
from gateway.errors import BudgetSpent
from gateway.observe.logs import configure
from gateway.observe.metrics import UsageMetrics
from gateway.observe.record import Usage
from gateway.policy.budgets import Budgets, Ledger, MemoryBudgetStore, account_of, amount_of
from tests.conftest import settings_for
from tests.execute.stub_cluster import FLOW, V2
from tests.memory.opensearch_server import OpenSearchServer
from tests.policy.conftest import RAN, Start, v2_answer
from tests.policy.overspending import UNIFIED, overspend, run_against
from tests.wire import reserved

ADA, BOB = {"Authorization": "Basic YWRh"}, {"Authorization": "Basic Ym9i"}
DAY = 86_400


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def budgets_of(*budgets: UsageBudget, clock: Clock) -> Budgets:
    ledger = Ledger(MemoryBudgetStore(clock))
    return Budgets(budgets, ledger, False, configure("error", "json"), UsageMetrics(), clock)


@pytest.mark.parametrize(
    ("per", "same"),
    [
        ("agent", [("a", "ada"), ("a", "bob")]),
        ("caller", [("a", "ada"), ("b", "ada")]),
        ("both", [("a", "ada")]),
        ("all", [("a", "ada"), ("a", "bob"), ("b", "ada"), ("b", "bob")]),
    ],
)
def test_who_shares_a_budget(per: Any, same: list[tuple[str, str]]) -> None:
    budget = UsageBudget(per=per, tokens=1)
    runs = [(agent, caller) for agent in "ab" for caller in ("ada", "bob")]
    first = account_of(budget, "a", "ada", 0.0)
    assert [run for run in runs if account_of(budget, *run, 0.0) == first] == same


def test_a_window_begins_at_a_multiple_of_its_length() -> None:
    budget = UsageBudget(tokens=1, seconds=60.0)
    accounts = [account_of(budget, "a", "", now) for now in (59.9, 60.0, 119.9, 120.0)]
    assert [(one.start, one.end) for one in accounts] == [(0, 60), (60, 120), (60, 120), (120, 180)]


def test_a_raised_limit_keeps_what_was_spent() -> None:
    same = [UsageBudget(tokens=1), UsageBudget(tokens=2, unknown="refuse")]
    others = [UsageBudget(money=1.0), UsageBudget(money=1.0, currency="EUR"), UsageBudget(tokens=1, seconds=60.0)]
    keys = [account_of(budget, "a", "", 0.0).key for budget in (*same, *others)]
    assert len(set(keys)) == 4
    assert keys[0] == keys[1]


TOKENS, MONEY = {"tokens": 100}, {"money": 1.0}
KNOWN, PRICED, EUROS = Usage(11, 7), Usage(11, 7, 0.25, "USD"), Usage(11, 7, 0.25, "EUR")


@pytest.mark.parametrize(
    ("limit", "usage", "amount"),
    [(TOKENS, KNOWN, 18), (TOKENS, PRICED, 18), (MONEY, PRICED, 0.25), (TOKENS, Usage(0, 0), 0)]
    + [(limit, usage, None) for limit, usage in ((TOKENS, None), (MONEY, None), (MONEY, KNOWN), (MONEY, EUROS))],
)
@pytest.mark.parametrize("unknown", ["allow", "refuse", "count"])
def test_what_a_run_costs(limit: Any, usage: Usage | None, amount: float | None, unknown: Any) -> None:
    budget = UsageBudget(**limit, unknown=unknown, unknown_amount=5.0)
    if amount is None:
        amount = {"allow": 0, "refuse": next(iter(limit.values())), "count": 5}[unknown]
    assert amount_of(budget, usage) == amount


async def test_a_spent_budget_refuses_until_its_window_ends() -> None:
    clock = Clock(10 * DAY + 100.0)
    budgets = budgets_of(UsageBudget(tokens=18), clock=clock)
    charges = await budgets.admit("a", "", {})
    late = await budgets.admit("a", "", {})  # a request in flight
    await budgets.charge(charges, KNOWN)
    with pytest.raises(BudgetSpent) as refused:
        await budgets.admit("a", "", {})
    assert refused.value.retry_after == DAY - 100
    assert await budgets.admit("b", "", {})
    clock.now += DAY - 100.5
    with pytest.raises(BudgetSpent) as refused:
        await budgets.admit("a", "", {})
    assert refused.value.retry_after == 1
    clock.now += 0.5
    await budgets.charge(late, KNOWN)  # to the window in which it began
    assert await budgets.admit("a", "", {})


async def test_a_long_window_is_written_in_full() -> None:
    budgets = budgets_of(UsageBudget(tokens=1_234_567, seconds=30.0 * DAY, unknown="refuse"), clock=Clock(0.0))
    await budgets.charge(await budgets.admit("a", "", {}), None)
    with pytest.raises(BudgetSpent) as refused:
        await budgets.admit("a", "", {})
    [problem] = refused.value.problems
    assert (problem.expected, problem.received) == ("less than 1234567 tokens in 2592000 seconds", "1234567 tokens")


async def test_agents_that_are_made_for_one_run_share_a_budget() -> None:
    budgets = budgets_of(UsageBudget(tokens=18), clock=Clock(0.0))
    await budgets.charge(await budgets.admit("a", "quick", {}, temporary=True), KNOWN)
    assert await budgets.admit("a", "quick", {})
    with pytest.raises(BudgetSpent):
        await budgets.admit("b", "quick", {}, temporary=True)


async def test_only_matching_budgets_apply() -> None:
    clock = Clock(0.0)
    budgets = budgets_of(UsageBudget("sales-*", tokens=1), UsageBudget("x", "all", tokens=1), clock=clock)
    places = [charge.place for charge in await budgets.admit("x", "sales-1", {})]
    assert places == ["policy.budgets[0]", "policy.budgets[1]"]
    assert await budgets.admit("y", "", {}) == []
    agents = [("y", "sales-2"), ("sales-2", ""), ("y", "Sales-2")]
    assert [budgets.matches(*agent) for agent in agents] == [True, True, False]


async def test_the_client_is_told_when_to_come_back(start: Start) -> None:
    place = await start({"budgets": [{"tokens": 18}]})
    assert (await place.execute(V2, {"input": "hi"})).status == 200
    refused = await place.execute(V2, {"input": "hi"})
    body = await refused.json()
    assert (refused.status, body["status"], body["error"]["type"]) == (429, 429, "BudgetSpent")
    assert 0 < int(refused.headers["Retry-After"]) <= DAY
    [problem] = body["error"]["problems"]
    assert problem["expected"] == "less than 18 tokens in 86400 seconds"
    assert problem["received"] == "18 tokens"
    assert body["error"]["reason"].startswith("The budget of this agent is spent until 20")
    assert "policy.budgets[0]" in body["error"]["help"]
    assert len(place.cluster.bodies) == 1
    assert place.metric("mlc_gateway_budget_events_total", outcome="refused") == 1


LEGACY: dict[str, Any] = {"parameters": {"question": "hi"}}
NOT_JSON = {"headers": {"Content-Type": "application/yaml"}}


@pytest.mark.parametrize(
    ("agent", "body", "more"),
    [
        (V2, UNIFIED, {}),
        (V2, LEGACY, {}),
        (V2, json.dumps(LEGACY).encode(), NOT_JSON),
        (V2, LEGACY, {"path": "_execute/stream"}),
        (V2, LEGACY, {"path": "_execute?async=false"}),
    ],
    ids=["unified", "legacy", "not JSON", "stream", "query"],
)
async def test_every_form_of_request_counts(start: Start, agent: str, body: Any, more: dict[str, Any]) -> None:
    place = await start({"budgets": [{"tokens": 36}]})
    statuses = [(await place.execute(agent, body, **more)).status for _ in range(3)]
    assert statuses == [200, 200, 429]


async def test_each_run_is_charged(start: Start) -> None:
    place = await start({"budgets": [{"tokens": 10, "unknown": "count", "unknown_amount": 4}]})
    place.cluster.answers = [RAN]
    body = {"input": [{"type": "text", "text": "hi"}]}
    assert [(await place.execute(FLOW, body)).status for _ in range(5)] == [200, 200, 200, 429, 429]


async def test_callers_have_budgets_of_their_own(start: Start) -> None:
    place = await start({"budgets": [{"per": "both", "tokens": 18}, {"per": "all", "tokens": 72}]})
    callers = (ADA, ADA, BOB, BOB, {}, {"Cookie": "x"})
    statuses = [(await place.execute(V2, UNIFIED, headers=headers)).status for headers in callers]
    assert statuses == [200, 429, 200, 429, 200, 429]


async def test_money(start: Start) -> None:
    prices = [{"input": 1_000_000.0, "output": 0.0}]
    place = await start({"prices": prices, "budgets": [{"agent": "v2_*", "money": 22.0}]})
    answers = [await place.execute(V2, UNIFIED) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert (await answers[2].json())["error"]["details"]["received"] == "22 USD"


@pytest.mark.parametrize(("unknown", "statuses"), [("allow", [200, 200, 200]), ("refuse", [200, 429, 429])])
async def test_an_unknown_usage(start: Start, unknown: str, statuses: list[int]) -> None:
    place = await start({"budgets": [{"tokens": 1000, "unknown": unknown}]})
    place.cluster.answers = [v2_answer(usage={})]
    assert [(await place.execute(V2, UNIFIED)).status for _ in range(3)] == statuses


async def test_a_refusal_of_the_cluster_costs_nothing(start: Start) -> None:
    place = await start({"budgets": [{"tokens": 1, "unknown": "refuse"}]})
    place.cluster.answers = [(400, {"status": 400, "error": {"reason": "no"}})]
    assert [(await place.execute(V2, LEGACY)).status for _ in range(3)] == [400, 400, 400]


async def test_a_request_that_is_not_sent_costs_nothing(start: Start) -> None:
    place = await start({"budgets": [{"tokens": 1, "unknown": "refuse"}]})
    place.cluster.answers = [RAN]
    signature = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/es/aws4_request, SignedHeaders=host, Signature=0"
    body = {"input": [{"type": "text", "text": "hi"}]}
    answers = [await place.execute(FLOW, body, headers={"Authorization": signature}) for _ in range(2)]
    assert [answer.status for answer in answers] == [400, 400]
    assert (await answers[1].json())["error"]["type"] == "SignatureConflict"
    assert place.cluster.bodies == []


async def test_a_cluster_that_cannot_be_reached_costs_nothing(start: Start) -> None:
    with reserved() as port:
        upstream = {"url": f"http://127.0.0.1:{port}"}
        place = await start({"budgets": [{"tokens": 1, "unknown": "refuse"}]}, upstream=upstream)
        for _ in range(2):
            answer = await place.execute(V2, LEGACY)
            assert (answer.status, (await answer.json())["error"]["type"]) == (502, "UpstreamUnavailable")
    assert place.metric("mlc_gateway_usage_unknown_total") == 0


async def test_a_budget_survives_a_reload_and_one_that_fails(start: Start, tmp_path: Path) -> None:
    place = await start({"budgets": [{"tokens": 18}]})
    assert (await place.execute(V2, UNIFIED)).status == 200
    before = place.gateway.settings
    sqlite: dict[str, Any] = {"memory": {"sqlite": {"path": str(tmp_path / "x")}}, "policy": {"budget_store": "sqlite"}}
    sqlite["policy"] |= {"budgets": [{"tokens": 18}]}
    other = settings_for("https://localhost", {**sqlite, "upstream": {"tls": {"ca_file": "/no"}}})
    with pytest.raises(ConfigError, match=r"upstream\.tls\.ca_file"):
        await place.gateway.reload(replace(other, listen=before.listen), place.gateway.log)
    await place.gateway.reload(before, place.gateway.log)
    assert (await place.execute(V2, UNIFIED)).status == 429


@pytest.mark.parametrize(("on_failure", "status"), [("refuse", 503), ("allow", 200)])
async def test_a_store_that_is_down(start: Start, tmp_path: Any, on_failure: str, status: int) -> None:
    (tmp_path / "no").write_text("")
    policy = {"budgets": [{"tokens": 1}], "budget_store": "opensearch", "on_store_failure": on_failure}
    async with OpenSearchServer() as server:
        place = await start(policy, memory={"opensearch": {"url": server.url}})
        server.faults = dict.fromkeys(range(100), "forbidden")
        answer = await place.execute(V2, UNIFIED)
        assert answer.status == status
        assert place.metric("mlc_gateway_budget_events_total", outcome="read_failed") == 1
        if status == 503:
            assert (await answer.json())["error"]["type"] == "BudgetUnavailable"
            assert answer.headers["Retry-After"] == "1"
            assert place.cluster.bodies == []
        else:
            server.faults.clear()
            assert (await place.execute(V2, UNIFIED)).status == 429  # what could not be stored is not forgotten


@pytest.mark.parametrize("compressed", [True, False])
async def test_one_gateway_overspends_by_the_requests_in_flight_only(start: Start, compressed: bool) -> None:
    place = await start({"budgets": [{"tokens": 18 * 20}]})
    if not compressed:
        place.session.headers["Accept-Encoding"] = "identity"
    statuses = await run_against([place], 60, 10)
    assert 20 <= statuses.count(200) <= 30


@pytest.mark.parametrize("store", ["sqlite", "opensearch"])
@pytest.mark.parametrize(
    ("total", "at_a_time"), [(60, 10), pytest.param(1000, 50, marks=pytest.mark.slow)], ids=["small", "large"]
)
async def test_two_gateways_overspend_by_the_requests_in_flight_only(
    start: Start, tmp_path: Any, store: str, total: int, at_a_time: int
) -> None:
    async with OpenSearchServer() as server:
        memory = {"sqlite": {"path": str(tmp_path / "memory.sqlite3")}, "opensearch": {"url": server.url}}
        await overspend(start, store, memory, total, at_a_time)

"""Settings of `policy` that contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app import check
from gateway.config.load import ConfigError, load
from gateway.config.schema import Settings
from gateway.observe.logs import configure

URL = "http://127.0.0.1:1/check"
USD = {"input": 1.0, "output": 1.0}


def problems(policy: Any, **more: Any) -> list[str]:
    try:
        load(None, {}, {"policy": policy, **more})
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "policy",
    [
        {"budgets": [{"tokens": 1}, {"tokens": 1, "per": "all"}, {"tokens": 1, "seconds": 60}]},
        {"budgets": [{"money": 1.0}], "prices": [USD]},
        {"budgets": [{"tokens": 1, "unknown": "count", "unknown_amount": 5}]},
        {"guardrails": [{"name": "a", "url": URL}, {"name": "b", "entry_point": "b"}]},
    ],
)
def test_what_is_allowed(policy: Any) -> None:
    assert problems(policy) == []


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"budgets": [{}]}, "policy.budgets[0]: needs either tokens or money"),
        (
            {"budgets": [{"tokens": 1, "money": 1.0}], "prices": [USD]},
            "policy.budgets[0]: needs either tokens or money",
        ),
        ({"budgets": [{"money": 1.0}]}, "policy.budgets[0].currency: has no price in policy.prices"),
        (
            {"budgets": [{"money": 1.0, "currency": "EUR"}], "prices": [USD]},
            "policy.budgets[0].currency: has no price in policy.prices",
        ),
        ({"budgets": [{"tokens": 1, "unknown": "count"}]}, "policy.budgets[0].unknown_amount: is needed with"),
        ({"budgets": [{"tokens": 1, "unknown_amount": 1}]}, "policy.budgets[0].unknown_amount: is needed with"),
        ({"budgets": [{"tokens": 1}, {"tokens": 2}]}, "policy.budgets[1]: has the same agent, per, unit and seconds"),
        ({"budgets": [{"tokens": 1, "seconds": 0.5}]}, "policy.budgets[0].seconds: is not allowed here"),
        ({"prices": [{"input": -1.0, "output": 1.0}]}, "policy.prices[0].input: is not allowed here"),
        ({"prices": [{"input": 1.0}]}, "policy.prices[0].output: is missing"),
        ({"prices": [{**USD, "currency": "usd"}]}, "policy.prices[0].currency: is not allowed here"),
        (
            {"budgets": [{"tokens": 1}, {"tokens": 2, "currency": "EUR"}]},
            "policy.budgets[1]: has the same agent, per, unit and seconds as policy.budgets[0]",
        ),
        ({"guardrails": [{"name": "a"}]}, "policy.guardrails[0]: needs either url or entry_point"),
        (
            {"guardrails": [{"name": "a", "url": URL, "entry_point": "a"}]},
            "policy.guardrails[0]: needs either url or entry_point",
        ),
        (
            {"guardrails": [{"name": "a", "url": URL}] * 2},
            "policy.guardrails[1].name: is the name of another guardrail",
        ),
        ({"guardrails": [{"name": "a b", "url": URL}]}, "policy.guardrails[0].name: is not allowed here"),
        ({"guardrails": [{"name": "a", "url": "ftp://x"}]}, "policy.guardrails[0].url: has the scheme 'ftp'"),
        ({"guardrails": [{"name": "a", "url": "http://x:99999/"}]}, "policy.guardrails[0].url: has the port '99999'"),
    ],
)
def test_what_is_not(policy: Any, problem: str) -> None:
    [found] = problems(policy)
    assert found.startswith(problem)


def test_workers_do_not_share_the_memory_store() -> None:
    budgets = [{"tokens": 1}]
    [problem] = problems({"budgets": budgets}, listen={"workers": 2})
    assert problem.startswith("policy.budget_store: is memory, in which each of several workers")
    assert problems({"budgets": budgets, "budget_store": "sqlite"}, listen={"workers": 2}) == []


@pytest.mark.parametrize("secret", ["a\nb", "a\u00e9", ""])
def test_a_secret_that_no_header_can_hold(tmp_path: Path, secret: str) -> None:
    (tmp_path / "secret").write_text(secret)
    found = problems({"guardrails": [{"name": "a", "url": URL, "secret": {"file": str(tmp_path / "secret")}}]})
    assert len(found) == 1
    assert not any(secret in problem for problem in found if secret)
    [other] = problems({"guardrails": [{"name": "a", "entry_point": "a", "secret": {"file": __file__}}]})[:1]
    assert other.startswith("policy.guardrails[0].secret: ")


def test_the_place_of_the_budgets_is_checked(tmp_path: Path) -> None:
    (tmp_path / "no").write_text("")
    memory = {"store": "strands_files", "sqlite": {"path": str(tmp_path / "no" / "memory.sqlite3")}}
    policy = {"budgets": [{"tokens": 1}], "budget_store": "sqlite"}
    with pytest.raises(ConfigError, match=r"memory\.sqlite\.path: can't be used"):
        check(load(None, {}, {"policy": policy, "memory": memory}), configure("error", "json"))


def test_a_problem_of_the_store_of_sessions_and_budgets_is_reported_once() -> None:
    memory = {"store": "opensearch", "opensearch": {"username": "gateway"}}
    policy = {"budgets": [{"tokens": 1}], "budget_store": "opensearch"}
    with pytest.raises(ConfigError) as caught:
        check(load(None, {}, {"policy": policy, "memory": memory}), configure("error", "json"))
    assert [problem.path for problem in caught.value.problems] == ["memory.opensearch.password"]


def test_the_default_place_of_the_budgets_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "no"))
    settings = load(None, {}, {"policy": {"budgets": [{"tokens": 1}], "budget_store": "sqlite"}})
    with pytest.raises(ConfigError, match=r"memory\.sqlite\.path: budgets can.t be kept in .*: .* is not a directory"):
        check(settings, configure("error", "json"))


def test_a_missing_entry_point_is_found_before_the_start() -> None:
    settings: Settings = load(None, {}, {"policy": {"guardrails": [{"name": "a", "entry_point": "missing"}]}})
    with pytest.raises(ConfigError, match=r"policy\.guardrails\[0\]\.entry_point: no installed package"):
        check(settings, configure("error", "json"))

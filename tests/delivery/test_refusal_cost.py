"""What a refusal costs: how often the first LLM call is rendered before the client gets its 400."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.delivery import call_model, proof
from gateway.delivery.call_model import CallModelCache
from gateway.errors import UndeliverableContent
from gateway.execute.rewrite import RewriteOptions, rewrite_input
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_call
from gateway.unified.request import read_execute
from tests.conftest import mostly_slow
from tests.delivery.cases import CASES, Case
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.delivery.unseen import UnseenCluster
from tests.matrix import VERSIONS

MOST_AT_FIRST = 8
MOST_LATER = 6


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> list[AgentProfile]:
    """The agents whose first LLM call was rendered, one entry a rendering."""
    counted: list[AgentProfile] = []

    def render(profile: AgentProfile, *rest: Any) -> Any:
        counted.append(profile)
        return first_call(profile, *rest)

    for module in (call_model, proof):
        monkeypatch.setattr(module, "first_call", render)
    return counted


def is_refused(case: Case, calls: CallModelCache) -> bool:
    parameters = {**case.parameters, **({"memory_id": "m1"} if case.pairs else {})}
    body = {"input": case.input, **({"parameters": parameters} if parameters else {})}
    request = read_execute(json.dumps(body).encode())
    assert request.input is not None
    remembered = tuple(case.pairs) if calls.profile.memory_type else ()
    try:
        rewrite_input(calls.profile, request, request.input, RewriteOptions(), "t1", remembered, calls)
    except UndeliverableContent:
        return True
    return False


def agents_of(version: str, all_of_them: bool) -> list[str]:
    """Return the agents of a version: all, or one for each kind of agent and one for each template."""
    names = list(cluster_of(version).agents)
    if all_of_them:
        return names
    kinds = {name.partition("-")[0]: name for name in names}
    templates = {name.partition("-")[2]: name for name in reversed(names)}
    return sorted({*kinds.values(), *templates.values()})


AGENTS = mostly_slow([(version, False) for version in VERSIONS], 2)
AGENTS += [pytest.param(version, True, marks=pytest.mark.slow) for version in VERSIONS]


def costs_at_first(cluster: SimulatedCluster, agents: list[str], renderings: list[AgentProfile]) -> dict[str, int]:
    """The cost of each refused cell where the agent's template is probed as well."""
    costs = {}
    for agent in agents:
        for case in CASES:
            renderings.clear()
            if is_refused(CASES[case], CallModelCache(cluster.profile(agent))):
                costs[f"{agent}, {case}"] = len(renderings)
    return costs


@pytest.mark.parametrize(("version", "all_of_them"), AGENTS)
def test_the_first_request_to_an_agent(version: str, all_of_them: bool, renderings: list[AgentProfile]) -> None:
    costs = costs_at_first(cluster_of(version), agents_of(version, all_of_them), renderings)
    assert len(costs) > (50 if all_of_them else 20)
    assert {cell: cost for cell, cost in costs.items() if cost > MOST_AT_FIRST} == {}


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_request_to_an_unseen_agent(version: str, renderings: list[AgentProfile]) -> None:
    cluster = UnseenCluster(version)
    costs = costs_at_first(cluster, list(cluster.agents), renderings)
    assert len(costs) > 50
    assert {cell: cost for cell, cost in costs.items() if cost > MOST_AT_FIRST} == {}


@pytest.mark.parametrize(("version", "all_of_them"), AGENTS)
def test_any_later_request(version: str, all_of_them: bool, renderings: list[AgentProfile]) -> None:
    cluster = cluster_of(version)
    costs = {}
    for agent in agents_of(version, all_of_them):
        calls = CallModelCache(cluster.profile(agent))
        for case in CASES:
            if is_refused(CASES[case], calls):
                renderings.clear()
                assert is_refused(CASES[case], calls)
                costs[agent, case] = len(renderings)
    assert len(costs) > (50 if all_of_them else 20)
    assert {cell: cost for cell, cost in costs.items() if cost > MOST_LATER} == {}

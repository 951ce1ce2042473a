"""New weights of a route from one target's share."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import load
from gateway.config.schema import AgentRoute, RouteTarget, Settings
from gateway.migrate.shift import ShiftError, find_route, find_target, give, shares_of

GIVEN = [
    ("from nothing", {"A": 100, "B": 0}, "B", 5, {"A": 95, "B": 5}),
    ("more", {"A": 95, "B": 5}, "B", 50, {"A": 50, "B": 50}),
    ("all", {"A": 50, "B": 50}, "B", 100, {"A": 0, "B": 100}),
    ("back from all", {"A": 0, "B": 100}, "B", 40, {"A": 60, "B": 40}),
    ("none", {"A": 50, "B": 50}, "B", 0, {"A": 100, "B": 0}),
    ("others in proportion", {"A": 3, "B": 1, "C": 0}, "C", 20, {"A": 60, "B": 20, "C": 20}),
    ("odd proportions", {"A": 1, "B": 1, "C": 0}, "C", 0.5, {"A": 49.75, "B": 49.75, "C": 0.5}),
    ("thirds", {"A": 1, "B": 2, "C": 0}, "C", 0, {"A": 33.333333, "B": 66.666667, "C": 0}),
    ("the only target", {"A": 7}, "A", 100, {"A": 100}),
]  # fmt: skip


@pytest.mark.parametrize(("weights", "agent", "percent", "expected"), [pytest.param(*c, id=n) for n, *c in GIVEN])
def test_a_target_gets_its_percent_and_the_others_keep_their_proportions(
    weights: dict[str, float], agent: str, percent: float, expected: dict[str, float]
) -> None:
    """Weights add up to 100."""
    assert give(weights, agent, percent) == expected


REFUSED = [
    ({"A": 100, "B": 0, "C": 0}, "A", 90, "it is open which target gets the rest (B, C)"),
    ({"A": 7}, "A", 50, "A is the only target of this route, and gets all new conversations"),
]


@pytest.mark.parametrize(("weights", "agent", "percent", "reason"), REFUSED)
def test_who_gets_the_rest_is_not_guessed(weights: dict[str, float], agent: str, percent: float, reason: str) -> None:
    with pytest.raises(ShiftError, match=re.escape(reason)):
        give(weights, agent, percent)


@given(
    st.dictionaries(st.sampled_from("BCDE"), st.floats(0.01, 1000), min_size=1),
    st.floats(0, 1000),
    st.floats(0, 100),
)
def test_shares_are_as_asked_for(others: dict[str, float], own: float, percent: float) -> None:
    """Within a millionth."""
    weights = give({"A": own, **others}, "A", percent)
    shares = shares_of(weights)
    assert shares["A"] == pytest.approx(percent / 100, abs=1e-6)
    for agent, weight in others.items():
        part = weight / sum(others.values())
        assert weights[agent] == pytest.approx((100 - percent) * part, abs=1e-6)


def test_an_agent_without_a_route_is_told_what_there_is() -> None:
    """An alias is no route."""
    settings = load(None, {}, {"agents": {"aliases": {"A": "B"}}})
    with pytest.raises(ShiftError, match=r"agents\.aliases sends all requests of A to B\. Replace this entry"):
        find_route(settings, "A")
    with pytest.raises(ShiftError, match=r"agents\.routes has no route of C: `mlc-gateway move` adds one$"):
        find_route(settings, "C")
    route = AgentRoute("D", [RouteTarget("D", weight=1)])
    with pytest.raises(ShiftError, match="has no route of C, only of D"):
        find_route(Settings(agents=type(settings.agents)(routes=[route])), "C")
    assert find_route(Settings(agents=type(settings.agents)(routes=[route])), "D") is route


ROUTE = AgentRoute(
    "assistant-1",
    [
        RouteTarget("assistant-1", weight=1),
        RouteTarget("copy-of-1", "new"),
        RouteTarget("copy-of-2", "spare"),
        RouteTarget("copy-of-3", "spare"),
    ],
)


@pytest.mark.parametrize(
    ("name", "agent"),
    [
        ("copy-of-1", "copy-of-1"),
        ("assi", "assistant-1"),
        ("new", "copy-of-1"),
        ("upstream", "assistant-1"),
    ],
)
def test_a_target_is_named_by_its_id_its_beginning_or_its_cluster(name: str, agent: str) -> None:
    assert find_target(ROUTE, name) == agent


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("copy", "3 ids begin with copy: give more of one: copy-of-1, copy-of-2, copy-of-3"),
        ("spare", "2 targets of this route are on spare: name one by its id: copy-of-2, copy-of-3"),
        ("ass", "ass is no target of this route, which has assistant-1 on upstream, copy-of-1 on new"),
    ],
)
def test_a_name_that_is_not_of_one_target(name: str, reason: str) -> None:
    """A beginning has four characters or more, as everywhere."""
    with pytest.raises(ShiftError, match=re.escape(reason)):
        find_target(ROUTE, name)


def test_a_route_is_named_by_the_beginning_of_its_id() -> None:
    agents = type(Settings().agents)
    other = AgentRoute("assistant-2", [RouteTarget("assistant-2", weight=1)])
    assert find_route(Settings(agents=agents(routes=[ROUTE])), "assis") == ROUTE
    with pytest.raises(ShiftError, match="2 ids begin with assis: give more of one: assistant-1, assistant-2"):
        find_route(Settings(agents=agents(routes=[other, ROUTE])), "assis")

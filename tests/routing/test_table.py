"""How a route chooses the target of a new conversation: shares, and who stays when weights change."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.consistency import check
from gateway.config.schema import AgentRoute, Agents, RouteTarget, Settings
from gateway.config.upstream import Upstream
from gateway.routing.table import mark_of, point_of, read_routes, shares
from tests.conftest import share

CONVERSATIONS = 20_000


def route_of(*weights: float):
    targets = [RouteTarget(f"agent-{number}", weight=weight) for number, weight in enumerate(weights)]
    return read_routes(Agents(routes=[AgentRoute("agent-0", targets)]))["agent-0"]


def test_weights_hold_within_two_percent() -> None:
    """Of points that stand for callers, as of random ones: both are evenly spread."""
    for weights in ((95, 5), (50, 50), (1, 1, 1), (0.5, 99.5), (7, 2, 1)):
        route = route_of(*weights)
        drawn = Counter(route.draw(point_of("route", str(number))).agent for number in range(CONVERSATIONS))
        wanted = shares([route])
        for target in route.targets:
            found = drawn[target.agent] / CONVERSATIONS
            assert abs(found - wanted["agent-0", target.agent, ""]) < 0.02, (weights, drawn)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=6).filter(any), st.floats(0, 1, exclude_max=True))
def test_a_target_without_a_weight_is_never_drawn(weights: list[float], point: float) -> None:
    assert route_of(*weights).draw(point).weight > 0


@given(
    st.floats(0, 100), st.floats(0, 100), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=share(100))
)
def test_of_two_targets_only_one_loses_conversations(before: float, after: float, points: list[float]) -> None:
    """Whoever asks without an id stays, when the other target's share shrinks: shares are cut at one end."""
    if 0 in (before, after) or before == after:
        return
    old, new = route_of(100 - before, before), route_of(100 - after, after)
    moved = {(old.draw(point).agent, new.draw(point).agent) for point in points}
    toward = "agent-1" if after > before else "agent-0"
    assert all(now == toward for then, now in moved if then != now)


def test_marks_are_the_same_in_every_process() -> None:
    assert mark_of("NEW") == "a253ff09"
    assert point_of("a", "b") == point_of("a", "b")
    assert point_of("a", "b") != point_of("ab", "")


def test_an_agents_mark_leads_to_one_cluster_in_one_way() -> None:
    """Two clusters that were restored from one snapshot have agents of the same ids."""

    def problems(*ways: tuple[str, Any]) -> list[str]:
        routes = [
            AgentRoute(f"old-{number}", [RouteTarget("new", way[0], 1, way[1])]) for number, way in enumerate(ways)
        ]
        settings = Settings(clusters={"a": Upstream(), "b": Upstream()}, agents=Agents(routes=routes))
        return [str(problem) for problem in check(settings, {"clusters.a", "clusters.b"})]

    assert problems(("a", "checked"), ("a", "checked")) == []
    for other in (("b", "checked"), ("a", "trusted")):
        [problem] = problems(("a", "checked"), other)
        assert problem.startswith("agents.routes[1].targets[0].agent: has another cluster or other callers")

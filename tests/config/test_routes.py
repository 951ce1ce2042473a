"""What is wrong with routes, mirrors and clusters is said with its place, and with what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.load import ConfigError, load

OLD = {"agent": "OLD", "weight": 1}
NEW = {"agent": "NEW", "cluster": "new", "weight": 0}
MIRROR = {"agent": "NEW", "tools": "none"}


def problems(*targets: dict[str, Any], clusters: Any = None, agents: Any = None, more: Any = (), **route: Any) -> str:
    """Return what is wrong with the route of OLD with these targets."""
    routes = [{"agent": "OLD", "targets": list(targets), **route}, *more]
    section = {"routes": routes, **(agents or {})}
    try:
        load(None, {}, {"clusters": clusters or {"new": {"url": "http://127.0.0.1:2"}}, "agents": section})
    except ConfigError as error:
        return str(error)
    return ""


ALLOWED = {
    "a target without a weight": problems(OLD, NEW),
    "only a copy": problems({**NEW, "weight": 1}),
    "a mirror": problems(OLD, NEW, mirror=MIRROR),
    "a mirror and its tools": problems(OLD, NEW, mirror={"agent": "NEW", "tools": ["SearchIndexTool"]}),
}


@pytest.mark.parametrize("found", ALLOWED.values(), ids=ALLOWED)
def test_what_is_allowed(found: str) -> None:
    assert found == ""


WRONG = [
    (
        problems({**OLD, "weight": 0}, NEW),
        "agents.routes[0].targets: has no target with a weight above 0, so nobody answers new conversations; "
        "allowed: one weight above 0 or more",
    ),
    (
        problems(OLD, {**NEW, "cluster": "nwe"}),
        "agents.routes[0].targets[1].cluster: is not in clusters; got 'nwe'; allowed: new",
    ),
    (
        problems(OLD, {**NEW, "cluster": "upstream"}),
        "agents.routes[0].targets[1].cluster: is not in clusters; got 'upstream'; allowed: nothing, which is upstream",
    ),
    (
        problems(OLD, clusters={"upstream": {"url": "http://127.0.0.1:2"}}),
        "clusters.upstream: has the name of the cluster of `upstream`; allowed: another name",
    ),
    (problems(OLD, clusters={"new": {}}), "clusters.new.url: is missing; allowed: the address of the cluster"),
    (
        problems(OLD, NEW, NEW),
        "agents.routes[0].targets[2].agent: is the agent of another target: the ids of conversations could not tell "
        "them apart; got 'NEW'; allowed: one target for each agent",
    ),
    (
        problems({**OLD, "cluster": "new"}),
        "agents.routes[0].targets[0].agent: is the route's own id, which is that of an agent of upstream; got 'OLD'; "
        "allowed: the id of another agent",
    ),
    (
        problems(OLD, {"agent": "B"}, more=[{"agent": "B", "targets": [{"agent": "B", "weight": 1}]}]),
        "agents.routes[0].targets[1].agent: leads to another route; got 'B'; allowed: the id of an agent that has no "
        "route itself",
    ),
    (
        problems(OLD, more=[{"agent": "OLD", "targets": [OLD]}]),
        "agents.routes[1].agent: has a route already; got 'OLD'; allowed: one route for each id",
    ),
    (
        problems(OLD, agents={"aliases": {"OLD": "B"}}),
        "agents.routes[0].agent: is in agents.aliases, too; got 'OLD'; allowed: one of the two",
    ),
    (
        problems({**OLD, "callers": "trusted"}),
        "agents.routes[0].targets[0].callers: is about targets on another cluster; got trusted; allowed: checked, or a "
        "cluster",
    ),
    (
        problems(OLD, NEW, mirror={"agent": "NEW"}),
        "agents.routes[0].mirror.tools: is needed with mirror.agent: a tool that acts would act twice; allowed: none, "
        "or a list of the tools that do no harm",
    ),
    (
        problems(OLD, NEW, mirror={**MIRROR, "agent": "B"}),
        "agents.routes[0].mirror.agent: is no target of the route; got 'B'; allowed: OLD or NEW",
    ),
]


@pytest.mark.parametrize(("found", "expected"), WRONG)
def test_what_is_wrong(found: str, expected: str) -> None:
    assert found == expected

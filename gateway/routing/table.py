"""The routes of the settings, and how a route chooses the target of a new conversation. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from gateway.config.schema import Agents, Mirror

_PART = 8
"""Hexadecimal digits of a mark."""


class Target(Struct, frozen=True):
    """An agent that answers for a route's id. See `gateway.config.schema.RouteTarget`.

    mark: stands before the ids of the cluster's memory that this agent gives (`gateway.routing.marks`); "" for none.
    """

    agent: str
    cluster: str = ""
    weight: float = 1.0
    callers: Literal["checked", "passed", "trusted"] = "checked"
    mark: str = ""

    @property
    def passes(self) -> bool:
        """True if its cluster gets all of the client's headers."""
        return not self.cluster or self.callers == "passed"


class Route(Struct, frozen=True):
    """The targets for one agent's id. See `gateway.config.schema.AgentRoute`.

    owner: the agent's id under which sessions of gateway memory are kept, so that every target can go on with them.
    """

    agent: str
    owner: str
    targets: tuple[Target, ...]
    stick_by: Literal["caller", "first_message"] = "caller"
    hands_over: bool = False
    mirror: Mirror = Mirror()

    @property
    def home(self) -> Target | None:
        """The target that is the route's own agent: its are the ids without a mark."""
        return next((target for target in self.targets if target.agent == self.agent), None)

    @property
    def owners(self) -> frozenset[str]:
        """The agents whose sessions of gateway memory a request to the route may name."""
        return frozenset({self.agent, *(target.agent for target in self.targets)})

    def target_of(self, agent: str) -> Target | None:
        """Return the target with this agent."""
        return next((target for target in self.targets if target.agent == agent), None)

    def marked(self, mark: str) -> Target | None:
        """Return the target with this mark."""
        return next((target for target in self.targets if target.mark == mark), None)

    @property
    def drawn(self) -> Sequence[Target]:
        """The targets that get new conversations."""
        return [target for target in self.targets if target.weight]

    def draw(self, point: float) -> Target:
        """Return the target of a new conversation. point: 0 <= point < 1; each target has its share of that interval.

        The shares lie in the order of the targets, so that of two a changed weight moves only the points between.
        """
        drawn = self.drawn
        left = point * sum(target.weight for target in drawn)
        for target in drawn[:-1]:
            if left < target.weight:
                return target
            left -= target.weight
        return drawn[-1]


def shares(routes: Iterable[Route]) -> Mapping[tuple[str, str, str], float]:
    """Return each target's share of new conversations, from 0 to 1, by route, agent and cluster."""
    return {
        (route.agent, target.agent, target.cluster): target.weight / sum(one.weight for one in route.targets)
        for route in routes
        for target in route.targets
    }


def read_routes(agents: Agents) -> Mapping[str, Route]:
    """Return the routes by the id that clients send. An alias is a route to one target, which owns its sessions."""
    routes = {old: Route(old, new, (Target(new),)) for old, new in agents.aliases.items()}
    for given in agents.routes:
        targets = tuple(
            Target(
                one.agent, one.cluster, one.weight, one.callers, "" if one.agent == given.agent else mark_of(one.agent)
            )
            for one in given.targets
        )
        hands_over = given.on_failure == "next"
        routes[given.agent] = Route(given.agent, given.agent, targets, given.stick_by, hands_over, given.mirror)
    return routes


def mark_of(agent_id: str) -> str:
    """Return the mark of a target's ids."""
    return hashlib.sha256(agent_id.encode()).hexdigest()[:_PART]


def point_of(*parts: str) -> float:
    """Return the point from 0 (included) to 1 (not) that stands for `parts`, the same in every process."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48

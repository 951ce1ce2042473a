"""The operator's rules for agents whose documents don't say enough."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

import msgspec

from gateway.mlcommons.profile import AgentProfile


class ForAgents(Protocol):
    """A rule for agents. agent: a glob."""

    @property
    def agent(self) -> str:
        """The glob on the agent's id and name."""


class ForMemory(ForAgents, Protocol):
    """A rule that may say whose the agent's memory is."""

    @property
    def memory(self) -> str:
        """`gateway`, `cluster`, or `auto` for what the agent's documents say."""


_R = TypeVar("_R", bound=ForAgents)


class Rule(msgspec.Struct, frozen=True):
    """One line of the operator's configuration.

    agent: a glob, matched case-sensitively against the agent's id and its name.
    provider: the provider to use if the documents don't name one; None for no such rule.
    delivery: what to do with what can't be delivered, as in the configuration; "" for the gateway's default.
    """

    agent: str
    provider: str | None = None
    delivery: str = ""


def rule_for(agent_id: str, name: str, rules: Iterable[_R]) -> _R | None:
    """Return the first rule that matches the agent's id or its name ("" if unknown), or None."""
    for rule in rules:
        if fnmatchcase(agent_id, rule.agent) or (name and fnmatchcase(name, rule.agent)):
            return rule
    return None


def keeps_sessions(agent: AgentProfile, rules: Iterable[ForMemory]) -> bool:
    """Return True if the agent's memory is the gateway's."""
    rule = rule_for(agent.id, agent.name, rules)
    if rule is None or rule.memory == "auto":
        return agent.gateway_memory
    return rule.memory == "gateway"

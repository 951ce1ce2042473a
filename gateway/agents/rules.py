"""The operator's rules for agents whose documents don't say enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar


class ForAgents(Protocol):
    """A rule for agents. agent: a glob."""

    @property
    def agent(self) -> str:
        """The glob on the agent's id and name."""


_R = TypeVar("_R", bound=ForAgents)


@dataclass(frozen=True, slots=True)
class Rule:
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

"""What an operator says about agents whose documents don't say enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the operator's configuration.

    agent: a glob, matched case-sensitively against the agent's id and its name.
    provider: the provider to take when nothing else told; None leaves it open.
    delivery: what to do with what can't be delivered, in the configuration's words; "" for the gateway's default.
    """

    agent: str
    provider: str | None = None
    delivery: str = ""


def rule_for(agent_id: str, name: str, rules: Iterable[Rule]) -> Rule | None:
    """The first rule that matches the agent's id or its name ("" when the name is not known), or None."""
    for rule in rules:
        if fnmatchcase(agent_id, rule.agent) or (name and fnmatchcase(name, rule.agent)):
            return rule
    return None

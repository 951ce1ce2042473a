"""The report on the agents of a cluster, as JSON data.

It is one object: ``cluster`` {name, url, version, unified_api, notes[]}, ``agents`` [], ``summary``. An agent
that can be read: {id, name, type, readable: true, generation, provider {name, told_by}, models [{id, connector {id,
kind, shared_by}, template}], memory, abilities {KIND: {arrives, strategy, notices[]} or {arrives, code, reason}},
remedies [{kind, action, gains[]}], aliases[], alias_of}. Any other: {id, name, type, readable: false, code, reason,
help, aliases[], alias_of}. The summary: {agents, readable, unreadable, abilities {KIND: count that arrives}, codes
{CODE: count of agents}, required {kinds[], met, missing [{id, kinds[]}]}}. Agents are sorted by name, then id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.migrate.assess import Ability, Assessment
from gateway.migrate.samples import KINDS


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """What the report says of the cluster. notes: what its reader should know."""

    name: str
    url: str
    version: tuple[int, ...]
    unified_api: bool | None
    notes: tuple[str, ...] = ()


def missing(assessments: Sequence[Assessment], required: Sequence[str]) -> dict[str, list[str]]:
    """Map agent ids to the required kinds that the agent does not accept: all of them if it can't be read."""
    lacking = {
        one.agent.id: [kind for kind in required if not one.abilities.get(kind, Ability()).arrives]
        for one in assessments
    }
    return {id_: kinds for id_, kinds in lacking.items() if kinds}


def as_json(cluster: ClusterInfo, assessments: Sequence[Assessment], required: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report, in the form that the module's docstring describes."""
    return {
        "cluster": {
            "name": cluster.name,
            "url": cluster.url,
            "version": ".".join(map(str, cluster.version)),
            "unified_api": cluster.unified_api,
            "notes": list(cluster.notes),
        },
        "agents": [_agent(one) for one in assessments],
        "summary": summary(assessments, required),
    }


def _agent(one: Assessment) -> dict[str, Any]:
    agent, profile = one.agent, one.agent.profile
    named = {"id": agent.id, "name": agent.name, "type": agent.type}
    aliases = {"aliases": list(one.aliases), "alias_of": one.alias_of}
    if profile is None:
        why = agent.unreadable
        reason = {"code": why.code, "reason": why.reason, "help": why.help} if why else {}
        return {**named, "readable": False, **reason, **aliases}
    return {
        **named,
        "readable": True,
        "generation": profile.generation.value,
        "provider": {"name": profile.provider, "told_by": profile.provider_source},
        "models": [
            {
                "id": use.id,
                "connector": {
                    "id": use.connector_id,
                    "kind": "standalone" if use.connector_id else "internal",
                    "shared_by": use.shared_by,
                },
                "template": use.template,
            }
            for use in one.models
        ],
        "memory": profile.memory_type,
        "abilities": {kind: ability_as_json(ability) for kind, ability in one.abilities.items()},
        "remedies": [{"kind": r.kind, "action": r.action, "gains": list(r.gains)} for r in one.remedies],
        **aliases,
    }


def ability_as_json(ability: Ability) -> dict[str, Any]:
    """Return the entry of one kind of input."""
    if ability.arrives:
        return {"arrives": True, "strategy": ability.strategy, "notices": list(ability.notices)}
    return {"arrives": False, "code": ability.code, "reason": ability.reason}


def summary(assessments: Sequence[Assessment], required: Sequence[str]) -> dict[str, Any]:
    """Return the counts over all agents."""
    readable = [one for one in assessments if one.agent.profile is not None]
    lacking = missing(assessments, required)
    return {
        "agents": len(assessments),
        "readable": len(readable),
        "unreadable": len(assessments) - len(readable),
        "abilities": {kind: sum(one.abilities[kind].arrives for one in readable) for kind in KINDS},
        "codes": dict(sorted(Counter(code for one in assessments for code in codes(one)).items())),
        "required": {
            "kinds": list(required),
            "met": not lacking,
            "missing": [{"id": id_, "kinds": kinds} for id_, kinds in lacking.items()],
        },
    }


def codes(one: Assessment) -> list[str]:
    """Return the short codes of what limits an agent, each once."""
    if one.agent.unreadable is not None:
        return [one.agent.unreadable.code]
    return list(dict.fromkeys(ability.code for ability in one.abilities.values() if ability.code))

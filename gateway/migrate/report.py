"""The table of agents: for a terminal, or as JSON.

The JSON is one object: ``cluster`` {name, url, version, unified_api, notes[]}, ``agents`` [], ``summary``. An agent
that can be read: {id, name, type, readable: true, generation, provider {name, told_by}, models [{id, connector {id,
kind, shared_by}, template}], memory, abilities {KIND: {arrives, strategy, notices[]} or {arrives, code, reason}},
remedies [{kind, action, gains[]}], aliases[], alias_of}. Any other: {id, name, type, readable: false, code, reason,
help, aliases[], alias_of}. The summary: {agents, readable, unreadable, abilities {KIND: count that arrives}, codes
{CODE: count of agents}, required {kinds[], met, missing [{id, kinds[]}]}}. Agents are sorted by name, then id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.migrate.assess import Ability, Assessment
from gateway.migrate.samples import KINDS

_NARROW = 120
"""Columns below which each agent gets lines of its own instead of a row."""


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """What is told of the cluster; notes: what a reader of the table should know."""

    name: str
    url: str
    version: tuple[int, ...]
    unified_api: bool | None
    notes: tuple[str, ...] = ()


def missing(assessments: Sequence[Assessment], required: Sequence[str]) -> dict[str, list[str]]:
    """Agent id → the required kinds it can't take; an agent that can't be read takes none."""
    lacking = {
        one.agent.id: [kind for kind in required if not one.abilities.get(kind, Ability()).arrives]
        for one in assessments
    }
    return {id_: kinds for id_, kinds in lacking.items() if kinds}


def as_json(cluster: ClusterInfo, assessments: Sequence[Assessment], required: Sequence[str] = ()) -> dict[str, Any]:
    """The report, in the shape that this module's head tells."""
    return {
        "cluster": {
            "name": cluster.name,
            "url": cluster.url,
            "version": ".".join(map(str, cluster.version)),
            "unified_api": cluster.unified_api,
            "notes": list(cluster.notes),
        },
        "agents": [_agent(one) for one in assessments],
        "summary": _summary(assessments, required),
    }


def _agent(one: Assessment) -> dict[str, Any]:
    agent, profile = one.agent, one.agent.profile
    named = {"id": agent.id, "name": agent.name, "type": agent.type}
    aliases = {"aliases": list(one.aliases), "alias_of": one.alias_of}
    if profile is None:
        why = agent.unreadable
        told = {"code": why.code, "reason": why.reason, "help": why.help} if why else {}
        return {**named, "readable": False, **told, **aliases}
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
    """One kind of input's entry."""
    if ability.arrives:
        return {"arrives": True, "strategy": ability.strategy, "notices": list(ability.notices)}
    return {"arrives": False, "code": ability.code, "reason": ability.reason}


def _summary(assessments: Sequence[Assessment], required: Sequence[str]) -> dict[str, Any]:
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
    """The short codes of what limits an agent, each once."""
    if one.agent.unreadable is not None:
        return [one.agent.unreadable.code]
    return list(dict.fromkeys(ability.code for ability in one.abilities.values() if ability.code))


def show(
    console: Console, cluster: ClusterInfo, assessments: Sequence[Assessment], required: Sequence[str] = ()
) -> None:
    """The table, what the codes in it mean, and the sums."""
    version = ".".join(map(str, cluster.version))
    console.print(Text(f"{cluster.name or 'cluster'} {version} at {cluster.url}", "bold"))
    if console.width >= _NARROW:
        console.print(_table(assessments))
    else:
        for one in assessments:
            for line in _lines(one):
                console.print(line)
    for line in _footer(cluster, assessments, required):
        console.print(line)


def _table(assessments: Sequence[Assessment]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("agent", overflow="fold", ratio=3)
    for kind in KINDS:
        table.add_column(kind, no_wrap=True)
    table.add_column("limits, and what mends them", overflow="fold", ratio=4)
    for one in assessments:
        cells = [_said(one.abilities[kind]) for kind in KINDS] if one.abilities else [Text("?", "yellow")] * len(KINDS)
        table.add_row(Text(f"{_name(one)}\n{_kind(one)}"), *cells, Text(_limits(one)))
    return table


def _lines(one: Assessment) -> Iterator[Text]:
    """An agent in a few lines, for a narrow terminal."""
    yield Text(_name(one), "bold")
    yield Text(f"  {_kind(one)}")
    if one.abilities:
        said = (Text(f"{kind}: ").append_text(_said(ability)) for kind, ability in one.abilities.items())
        yield Text("  ").append_text(Text(", ").join(said))
    if limits := _limits(one):
        yield Text(f"  {limits}")


def _name(one: Assessment) -> str:
    alias = f" (requests go to {one.alias_of})" if one.alias_of else ""
    aliased = f" (also as {', '.join(one.aliases)})" if one.aliases else ""
    return f"{one.agent.name} {one.agent.id}".strip() + alias + aliased


def _kind(one: Assessment) -> str:
    profile = one.agent.profile
    return ", ".join(filter(None, [one.agent.type, profile.provider or "provider unknown" if profile else ""]))


def _said(ability: Ability) -> Text:
    return Text(ability.strategy, "green") if ability.arrives else Text("no", "red")


def _limits(one: Assessment) -> str:
    if one.agent.unreadable is not None:
        return f"{one.agent.unreadable.code}: {one.agent.unreadable.reason}; {one.agent.unreadable.help}"
    mends = [f"{r.action} ({', '.join(r.gains)})" if r.gains else r.action for r in one.remedies]
    return "; ".join(filter(None, [", ".join(codes(one)), *mends]))


def _footer(cluster: ClusterInfo, assessments: Sequence[Assessment], required: Sequence[str]) -> Iterator[Text]:
    reasons = {
        ability.code: ability.reason for one in assessments for ability in one.abilities.values() if ability.code
    }
    for code, reason in sorted(reasons.items()):
        yield Text(f"{code}: {reason}", "dim")
    summary = _summary(assessments, required)
    counts = ", ".join(f"{kind} {count}" for kind, count in summary["abilities"].items())
    yield Text(f"{summary['agents']} agents, {summary['unreadable']} can't be read; they take: {counts}", "bold")
    for note in cluster.notes:
        yield Text(f"Note: {note}.", "dim")
    for entry in summary["required"]["missing"]:
        yield Text(f"Required, but not taken by {entry['id']}: {', '.join(entry['kinds'])}", "red")

"""Upgrades before they are made: a table for a terminal, or JSON data; and the commands to run next.

The JSON of an offer: {key, offered: true, provider, parameter, models[], agents {named[], others[]}, calls
[{method, path, body?}], diff, proof {calls, differing}, effects [{id, name, gained[], improved[], before {KIND:
strategy}, after {KIND: strategy}}]}; of a refusal: {key, offered: false, agents {named[]}, code, reason, advice}.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import fields
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.migrate.assess import Abilities
from gateway.migrate.connection import ClusterOptions, without_credentials
from gateway.migrate.steps import Call
from gateway.migrate.upgrade import Offer, Refused

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def show(console: Console, found: Sequence[Offer | Refused], verbose: bool = False, shared: bool = False) -> None:
    """Print a table of connectors and a summary.

    verbose: also each change with its calls and diff. shared: the run changes connectors that other agents use, too.
    """
    console.print(Text(upgrades_line(found), "bold"))
    if found:
        console.print(_table(found))
    for line in _footer(found, shared):
        console.print(Text(line, "dim"))
    if verbose:
        for offer in (one for one in found if isinstance(one, Offer)):
            for line in _details(offer):
                style = _STYLES.get(line[:1], "") if not line.startswith(("+++", "---")) else "bold"
                console.print(Text(line, style), soft_wrap=True)
    elif any(isinstance(one, Offer) for one in found):
        console.print(Text("-v shows the calls, the diff and the agents.", "dim"))


def upgrades_line(found: Sequence[Offer | Refused]) -> str:
    """Return the result in one line: connectors that can be upgraded, and agents that would take more."""
    numbers = counts(found)
    if not found:
        return "No agent was found."
    if not numbers["upgradable"]:
        return "No connector can be upgraded."
    total, agents, images = numbers["connectors"], numbers["agents"], numbers["images"]
    number = f"{numbers['upgradable']} of {total} connectors" if total > 1 else "The connector"
    more = f", {images} of them images" if images else ""
    return f"{number} can be upgraded: {agents} {'agent' if agents == 1 else 'agents'} would take more{more}."


def counts(found: Sequence[Offer | Refused]) -> dict[str, int]:
    """Return the numbers of `upgrades_line`: of connectors, of those that can be upgraded, of agents that gain."""
    offers = [one for one in found if isinstance(one, Offer)]
    effects = [effect for offer in offers for effect in offer.effects]
    return {
        "connectors": sum(not one.key.startswith("agents/") for one in found),
        "upgradable": len(offers),
        "agents": len({effect.agent_id for effect in effects if effect.gained or effect.improved}),
        "images": len({effect.agent_id for effect in effects if "image" in effect.gained}),
    }


def _table(found: Sequence[Offer | Refused]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("connector", overflow="fold", no_wrap=True)
    table.add_column("agents", overflow="fold")
    table.add_column("would gain")
    for one in found:
        agents = Text(", ".join(_names(one)))
        if isinstance(one, Offer):
            table.add_row(Text(one.key), agents, Text("; ".join(_gains(one)), "green"))
        else:
            table.add_row(Text(one.key), agents, Text(f"unchanged: {one.code.name}", "yellow"))
    return table


_MOST_NAMES = 3


def _names(one: Offer | Refused) -> Iterator[str]:
    """Yield the first agents of a connector, and how many more there are."""
    names = [effect.name or effect.agent_id for effect in one.effects] if isinstance(one, Offer) else list(one.names)
    yield from names[:_MOST_NAMES]
    if len(names) > _MOST_NAMES:
        yield f"{len(names) - _MOST_NAMES} more"


def _gains(offer: Offer) -> Iterator[str]:
    gained = dict.fromkeys(kind for effect in offer.effects for kind in effect.gained)
    improved = dict.fromkeys(kind for effect in offer.effects for kind in effect.improved if kind not in gained)
    if gained:
        yield ", ".join(gained)
    if improved:
        yield f"fewer changes to {', '.join(improved)}"


def _footer(found: Sequence[Offer | Refused], shared: bool) -> Iterator[str]:
    refused = [one for one in found if isinstance(one, Refused)]
    yield from dict.fromkeys("; ".join(filter(None, (f"{one.code.name}: {one.reason}", one.advice))) for one in refused)
    for one in found:
        if isinstance(one, Offer) and one.others:
            names = {effect.agent_id: effect.name or effect.agent_id for effect in one.effects}
            others = ", ".join(names[id_] for id_ in one.others)
            end = "They change with it (--shared)." if shared else "To change it, add --shared."
            yield f"{one.key} is also used by agents that you did not name: {others}. {end}"


def _details(offer: Offer) -> Iterator[str]:
    yield f"{offer.key}: can be upgraded (models {', '.join(offer.models)})"
    for found in offer.effects:
        other = "" if found.agent_id in offer.named else ", not named, but uses the same connector"
        yield f"  agent {found.agent_id} ({found.name}{other})"
        yield f"    takes now: {_kinds(found.before)}"
        yield f"    takes afterwards: {_kinds(found.after)}"
    yield f"  proof: {sum(found.calls for found in offer.effects)} legacy calls render the same text before and after"
    yield f"  new: a caller's own parameter {offer.change.slot!r} takes effect; until now it was ignored"
    yield "  calls:"
    for call in offer.calls:
        yield f"    {request_line(call)}"
    yield from diff(offer)


def _kinds(abilities: Abilities) -> str:
    return ", ".join(kind for kind, ability in abilities.items() if ability.arrives) or "no kind of input"


def request_line(call: Call) -> str:
    """Return method, path and JSON body in a line."""
    body = "" if call.body is None else f" {json.dumps(call.body, ensure_ascii=False)}"
    return f"{call.method} {call.path}{body}"


def diff(offer: Offer) -> Iterator[str]:
    """Return a unified diff of the connector's document."""
    now, then = (json.dumps(doc, ensure_ascii=False, indent=2, sort_keys=True) for doc in (offer.old, offer.new))
    names = f"{offer.key} now", f"{offer.key} upgraded"
    return difflib.unified_diff(now.splitlines(), then.splitlines(), *names, lineterm="")


def as_json(found: Iterable[Offer | Refused]) -> list[dict[str, Any]]:
    """Return JSON data, in the form that the module's docstring describes."""
    return [_refused(one) if isinstance(one, Refused) else _offer(one) for one in found]


def _refused(one: Refused) -> dict[str, Any]:
    return {
        "key": one.key,
        "offered": False,
        "agents": {"named": list(one.named)},
        "code": one.code.name,
        "reason": one.reason,
        "advice": one.advice,
    }


def _offer(offer: Offer) -> dict[str, Any]:
    def strategies(abilities: Abilities) -> dict[str, str]:
        return {kind: ability.strategy for kind, ability in abilities.items() if ability.arrives}

    effects = [
        {
            "id": e.agent_id,
            "name": e.name,
            "gained": list(e.gained),
            "improved": list(e.improved),
            "before": strategies(e.before),
            "after": strategies(e.after),
        }
        for e in offer.effects
    ]
    return {
        "key": offer.key,
        "offered": True,
        "provider": offer.provider,
        "parameter": offer.change.slot,
        "models": list(offer.models),
        "agents": {"named": list(offer.named), "others": list(offer.others)},
        "calls": [call_json(call) for call in offer.calls],
        "diff": "\n".join(diff(offer)),
        "proof": {"calls": sum(e.calls for e in offer.effects), "differing": []},
        "effects": effects,
    }


def call_json(call: Call) -> dict[str, Any]:
    """Return one call as JSON data."""
    body = {} if call.body is None else {"body": call.body}
    return {"method": call.method, "path": call.path, **body}


def next_command(
    cluster: ClusterOptions, name: str, *arguments: str, options: Sequence[str] = (), gateways: Sequence[str] = ()
) -> str:
    """Return the command `name` with the options by which this run reached its cluster, quoted for a shell.

    options: others than those. gateways: the admin ports that `--gateway` names. User names and passwords in
    addresses are left out.
    """
    named = [word for url in gateways for word in ("--gateway", without_credentials(url))]
    end = ["--"] if any(argument.startswith("-") for argument in arguments) else []
    return shlex.join(["mlc-gateway", name, *options, *_cluster_options(cluster), *named, *end, *arguments])


def next_shift(config: Path, route: str, target: str, percent: float) -> str:
    """Return the command that gives a target of a route a share of new conversations."""
    options = ("--to", target, "--percent", f"{percent:g}")
    return next_command(ClusterOptions(config=config), "shift", route, options=options)


def _cluster_options(cluster: ClusterOptions) -> Iterator[str]:
    for field in fields(ClusterOptions):
        value = getattr(cluster, field.name)
        if not value:
            continue
        yield f"--{field.name.replace('_', '-')}"
        if value is not True:
            yield without_credentials(value) if field.name == "url" else str(value)

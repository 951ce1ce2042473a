"""An upgrade before it is done, shown: the calls, the change of the connector's document, the proof, what is gained.

The machine form of an offer: {key, offered: true, provider, parameter, models[], agents {named[], others[]}, calls
[{method, path, body?}], diff, proof {calls, differing}, effects [{id, name, gained[], before {KIND: strategy}, after
{KIND: strategy}}]}; of a refusal: {key, offered: false, agents {named[]}, code, reason}.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from gateway.migrate.assess import Abilities
from gateway.migrate.steps import Call
from gateway.migrate.upgrade import Offer, Refused

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def show(console: Console, found: Iterable[Offer | Refused]) -> None:
    """Each offer and refusal, for people; coloured where the console is a terminal."""
    for one in found:
        if isinstance(one, Refused):
            console.print(Text(f"{one.key}: left alone ({one.code.name}): {one.reason}", "yellow"), soft_wrap=True)
            console.print(Text(f"  agents: {', '.join(one.named)}"), soft_wrap=True)
            continue
        for line in _lines(one):
            style = _STYLES.get(line[:1], "") if not line.startswith(("+++", "---")) else "bold"
            console.print(Text(line, style), soft_wrap=True)


def _lines(offer: Offer) -> Iterator[str]:
    yield f"{offer.key}: can be upgraded (models {', '.join(offer.models)})"
    for found in offer.effects:
        whose = "" if found.agent_id in offer.named else ", reached too: it uses the same connector"
        yield f"  agent {found.agent_id} ({found.name}{whose})"
        yield f"    takes now: {_said(found.before)}; afterwards: {_said(found.after)}"
        yield f"    gained: {', '.join(found.gained) or 'nothing'}"
    yield f"  proof: {sum(found.calls for found in offer.effects)} legacy calls render the same text before and after"
    yield f"  from then on, a caller's own parameter {offer.change.name!r} counts; until now it was ignored"
    yield "  calls:"
    for step in offer.steps:
        yield f"    {request_line(step.call)}"
    yield from diff(offer)


def _said(abilities: Abilities) -> str:
    return ", ".join(kind for kind, ability in abilities.items() if ability.arrives) or "nothing"


def request_line(call: Call) -> str:
    """Method, path and JSON body in a line."""
    body = "" if call.body is None else f" {json.dumps(call.body, ensure_ascii=False)}"
    return f"{call.method} {call.path}{body}"


def diff(offer: Offer) -> Iterator[str]:
    """A unified diff of the connector's document."""
    now, then = (json.dumps(doc, ensure_ascii=False, indent=2, sort_keys=True) for doc in (offer.old, offer.new))
    names = f"{offer.key} now", f"{offer.key} upgraded"
    return difflib.unified_diff(now.splitlines(), then.splitlines(), *names, lineterm="")


def as_json(found: Iterable[Offer | Refused]) -> list[dict[str, Any]]:
    """The machine form, in the shape this module's head tells."""
    return [_refused(one) if isinstance(one, Refused) else _offer(one) for one in found]


def _refused(one: Refused) -> dict[str, Any]:
    return {
        "key": one.key,
        "offered": False,
        "agents": {"named": list(one.named)},
        "code": one.code.name,
        "reason": one.reason,
    }


def _offer(offer: Offer) -> dict[str, Any]:
    def ways(abilities: Abilities) -> dict[str, str]:
        return {kind: ability.strategy for kind, ability in abilities.items() if ability.arrives}

    effects = [
        {
            "id": e.agent_id,
            "name": e.name,
            "gained": list(e.gained),
            "before": ways(e.before),
            "after": ways(e.after),
        }
        for e in offer.effects
    ]
    return {
        "key": offer.key,
        "offered": True,
        "provider": offer.provider,
        "parameter": offer.change.name,
        "models": list(offer.models),
        "agents": {"named": list(offer.named), "others": list(offer.others)},
        "calls": [call_json(step.call) for step in offer.steps],
        "diff": "\n".join(diff(offer)),
        "proof": {"calls": sum(e.calls for e in offer.effects), "differing": []},
        "effects": effects,
    }


def call_json(call: Call) -> dict[str, Any]:
    """One call as JSON data."""
    body = {} if call.body is None else {"body": call.body}
    return {"method": call.method, "path": call.path, **body}

"""Explains the refusal to update an agent, where the cluster's agents can't be changed (2.x). Pure."""

from __future__ import annotations

import json
import re

import msgspec

from gateway.ports import Answer

_ALLOWED = re.compile(r"allowed: \[([A-Z, ]+)\]")
_IMMUTABLE = (
    "Agents of this version can't be changed. Register the changed agent as a new one and, so that clients keep their "
    "id, name it in the gateway's setting agents.aliases (old id: new id)."
)


def explain_refusal(status: int, body: bytes) -> Answer | None:
    """Return the cluster's refusal to update an agent with an alternative; None for any other response."""
    if status != 405:
        return None
    try:
        document = json.loads(body)
        reason = document["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(reason, str):
        return None
    allowed = _ALLOWED.search(reason)
    document["error"] = f"{reason}. {_IMMUTABLE}"
    return Answer(405, {"Allow": allowed[1]} if allowed else {}, msgspec.json.encode(document))

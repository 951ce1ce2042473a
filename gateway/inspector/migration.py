"""The migration view: which agents still get legacy requests, who sends them, what is refused and what would end it."""

from __future__ import annotations

import time
from typing import Any

from gateway.errors import InvalidInput, Problem
from gateway.inspector.store import RecordStore

DAYS = {"1": 3600.0, "7": 6 * 3600.0, "30": 86400.0}
"""The spans of time that can be shown, in days, and the seconds of a bar."""
_UPGRADE = "Upgrade the agent's connector: `mlc-gateway upgrade --url <cluster> <agent id>`."
_RULE = "Name the provider in a rule of the agent: `agents.rules[].provider`."
_REMEDIES = {
    "MEDIA_NEEDS_UPGRADE": _UPGRADE,
    "TOOLS_NEED_UPGRADE": _UPGRADE,
    "NATIVE_BLOCK_NEEDS_UPGRADE": _UPGRADE,
    "HISTORY_NEEDS_UPGRADE": _UPGRADE,
    "SYSTEM_NEEDS_SLOT": _UPGRADE,
    "COMBINATION_NOT_DELIVERABLE": _UPGRADE,
    "TEXT_NOT_SAFE": _UPGRADE,
    "AGENT_NOT_CALLABLE": "First make the agent answer a plain `question` without the gateway.",
    "MEMORY_NOT_SAFE": 'No upgrade is needed: start a new memory, or send `"message_history_limit": "0"`.',
    "QUESTION_MISSING": "No upgrade is needed: end the conversation with a user turn.",
    "MODEL_OVERRIDDEN": "No upgrade is needed: leave the parameter out, or register an agent for that model.",
    "PROVIDER_UNKNOWN": _RULE,
    "PROVIDER_AMBIGUOUS": _RULE,
}
"""What would end refusals, by code. `docs/reference/limitations.md` has all codes."""
_OTHER = "See docs/reference/limitations.md."


def read_days(text: str) -> str:
    """Return a span that can be shown.

    Raises:
        InvalidInput: it is none of `DAYS`.
    """
    if text not in DAYS:
        raise InvalidInput.of([Problem("days", "this span can't be shown", ", ".join(DAYS), text[:100])])
    return text


def report(store: RecordStore, days: str) -> dict[str, Any]:
    """Return the data of the view. Blocks. days: a key of `DAYS`."""
    bucket = DAYS[days]
    until = time.time()
    since = until - int(days) * 86400.0
    refusals = [{**row, "remedy": _REMEDIES.get(row["code"], _OTHER)} for row in store.refusals(since)]
    return {
        "since": since,
        "until": until,
        "bucket": bucket,
        "adoption": store.adoption(since, bucket),
        "legacy_clients": store.legacy_clients(since),
        "refusals": refusals,
    }

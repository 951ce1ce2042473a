"""What the pages say of the gateway's terms: strategies, intents, steps, codes and losses, each in a sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gateway.codes import CODES
from gateway.recording.store import Loss

STRATEGIES = {
    "native": "The agent takes `input` itself, so the cluster got the conversation in that form.",
    "wrap": "The conversation is in the agent's parameter for messages, with the agent's prompt around the question.",
    "messages": "The conversation is in the agent's parameter for messages; the agent has no prompt of its own.",
    "text": "All of it is text: the last turn as the question, earlier turns in the agent's place for history.",
    "splice": "Turns and blocks are inserted around the question, in the message that the connector's template writes.",
}
"""How an input was delivered; docs/internals/decisions.md."""
INTENTS = {
    "execute": "Run",
    "execute_stream": "Streamed run",
    "quick_execute": "One-time run",
    "register": "Registration",
    "update_agent": "Update of an agent",
    "delete_agent": "Deletion of an agent",
    "write": "Passed on",
    "read_memory": "Read of a memory",
    "session": "Session",
    "passthrough": "Passed on",
}
"""What a request was for, by `gateway.proxy.routes.Intent`."""
STEPS = {
    "read": "the client's body arrived",
    "decode": "the input was read",
    "resolve": "agent, model and connector were read",
    "fetch": "media were fetched",
    "plan": "parameters were found with which the input arrives",
    "upstream": "the cluster worked on it",
    "answer": "the answer was sent on",
    "look up": "what the cluster supports, and whether it has this agent already",
    "make connector": "the cluster made a connector",
    "make model group": "the cluster made a model group",
    "make model": "the cluster made the model",
    "make agent": "the cluster made the agent",
    "run": "the agent ran",
    "finish": "the agent was completed, and checked for another one like it",
    "undo": "what was made was removed again",
}
"""What happened in a step."""


def explain(code: str) -> str:
    """Return what a code means; "" for one that is not in `gateway.codes`."""
    known = CODES.get(code)
    return known.meaning if known is not None else ""


_MISSING = ("queue", "stopped", "fault", "sqlite")
"""Reasons for which an exchange is missing on the page. Others are sinks that lack it."""
_REASONS = {
    "queue": "requests came faster than they can be recorded. Record less (`inspector.passthrough: none`), or raise "
    "`inspector.queue` and `inspector.queue_bytes`",
    "stopped": "the gateway stopped, and recording took longer than five seconds",
    "fault": "a fault of the gateway, while it made the record. The log has the error",
    "sqlite": "the store failed. The log has the error",
    "audit_file": "the audit file failed. The log has the error",
    "opensearch": "the data stream of OpenSearch failed. The log has the error",
    "traces": "the collector of traces failed. The log has the error",
    "access_log": "the access log failed. The log has the error",
}
"""Why exchanges were not recorded, by the reasons of `mlc_gateway_records_dropped_total`."""


def describe_losses(losses: Iterable[Loss]) -> list[str]:
    """Return a sentence for each reason: how many exchanges, where they are missing, and why."""
    totals: dict[str, int] = defaultdict(int)
    details: dict[str, list[str]] = defaultdict(list)
    for loss in losses:
        reason = loss.reason.partition(":")[0]
        totals[reason] += loss.exchanges
        if loss.detail and loss.detail not in details[reason]:
            details[reason].append(loss.detail)
    return [_sentence(reason, count, details[reason]) for reason, count in totals.items()]


def _sentence(reason: str, count: int, details: list[str]) -> str:
    what = f"{count:,} exchange{' was' if count == 1 else 's were'}"
    how = "not recorded" if reason in _MISSING else f"not written to {reason}"
    error = f": {'; '.join(details[:3])}" if details and reason not in ("queue", "stopped") else ""
    return f"{what} {how}: {_REASONS.get(reason, reason)}{error}."

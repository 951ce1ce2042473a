"""Sends registrations again that a cluster refuses because others are running.

It refuses models that are registered at the same time in one model group, and more than ten on a node
(docs/internals/facts.md, "Agents without tools, and registrations at once"). It makes nothing of those that it refuses.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Mapping
from typing import Any

from gateway.ports import Answer, Retry
from gateway.register.calls import Calls, Reply

AT_ONCE = 5
"""How many registrations a gateway sends at the same time. Others wait for their turn."""
_TRIES = 12
_PAUSES = (0.1, 3.0)
"""Seconds: the longest pause before the second try, which doubles from try to try, and the longest of all."""
_BUSY = {"version_conflict_engine_exception", "m_l_limit_exceeded_exception"}
"""Root causes of refusals that only mean that other registrations are running."""


def is_busy(reply: Reply) -> bool:
    """Return True for a refusal that only means that other registrations are running."""
    return not reply.good and _tells_busy(reply.document)


def _tells_busy(document: Any) -> bool:
    error = document.get("error") if isinstance(document, Mapping) else None
    causes = error.get("root_cause") if isinstance(error, Mapping) else None
    return isinstance(causes, list) and any(isinstance(one, Mapping) and one.get("type") in _BUSY for one in causes)


async def register(
    calls: Calls, turns: asyncio.Semaphore, target: str, body: Mapping[str, Any] | bytes, tries: int = _TRIES
) -> Reply:
    """Send a registration, again after a random pause while others are in its way. body: JSON data or its text.

    turns: shared by all registrations (`AT_ONCE`).

    Raises:
        UpstreamUnavailable, UpstreamTimeout: see `Calls`.
    """
    first, longest = _PAUSES
    for number in range(tries - 1):
        async with turns:
            reply = await calls("POST", target, [body] if isinstance(body, bytes) else body)
        if not is_busy(reply):
            return reply
        await asyncio.sleep(random.uniform(0, min(longest, first * 2**number)))
    async with turns:
        return await calls("POST", target, [body] if isinstance(body, bytes) else body)


def retry_busy(calls: Calls, turns: asyncio.Semaphore, target: str, body: bytes, headers: Mapping[str, str]) -> Retry:
    """Return the `Forward.retry` of a registration that is forwarded. headers: of the response."""

    async def again() -> Answer:
        reply = await register(calls, turns, target, body, _TRIES - 1)
        return Answer(reply.status, headers, reply.body)

    def retry_with(status: int, answer: bytes) -> Awaitable[Answer] | None:
        try:
            document = json.loads(answer)
        except (ValueError, RecursionError):
            return None
        return again() if _tells_busy(document) else None

    return retry_with

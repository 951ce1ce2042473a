"""Sends registrations again that a cluster refuses because others are running.

It refuses models that are registered at the same time in one model group, and more than ten on a node
(docs/evidence/facts.md, "Agents without tools, and registrations at once"). It makes nothing of those that it refuses.
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


_NO_GROUP = "m_l_resource_not_found_exception"
"""Root cause of the 500 for a model whose group was deleted."""


def made_nothing(reply: Reply) -> bool:
    """Return True for a refusal, whatever its status, of a registration that was not begun."""
    return bool(_causes(reply.document) & {*_BUSY, _NO_GROUP})


def _is_busy(document: Any) -> bool:
    return bool(_causes(document) & _BUSY)


def _causes(document: Any) -> set[str]:
    """Return the types of the root causes in an error of the cluster."""
    error = document.get("error") if isinstance(document, Mapping) else None
    causes = error.get("root_cause") if isinstance(error, Mapping) else None
    return {str(one.get("type")) for one in causes if isinstance(one, Mapping)} if isinstance(causes, list) else set()


async def send(
    calls: Calls,
    turns: asyncio.Semaphore,
    method: str,
    target: str,
    body: Mapping[str, Any] | bytes,
    tries: int = _TRIES,
) -> Reply:
    """Send a call that writes, again after a random pause while others are in its way. body: JSON data or its text.

    turns: shared by all registrations (`AT_ONCE`).

    Raises:
        UpstreamUnavailable, UpstreamTimeout: see `Calls`.
    """
    first, longest = _PAUSES
    for number in range(tries - 1):
        async with turns:
            reply = await calls(method, target, [body] if isinstance(body, bytes) else body)
        if reply.good or not _is_busy(reply.document):
            return reply
        await asyncio.sleep(random.uniform(0, min(longest, first * 2**number)))
    async with turns:
        return await calls(method, target, [body] if isinstance(body, bytes) else body)


def retry_busy(calls: Calls, turns: asyncio.Semaphore, target: str, body: bytes, headers: Mapping[str, str]) -> Retry:
    """Return the `Forward.retry` of a registration that is forwarded. headers: of the response."""

    async def again() -> Answer:
        reply = await send(calls, turns, "POST", target, body, _TRIES - 1)
        return Answer(reply.status, headers, reply.body)

    def retry_with(status: int, answer: bytes) -> Awaitable[Answer] | None:
        try:
            document = json.loads(answer)
        except (ValueError, RecursionError):
            return None
        return again() if _is_busy(document) else None

    return retry_with

"""Calls to the cluster with a caller's credentials: JSON in and out, with secrets hidden in errors.

A call that the cluster refuses because others are running is sent again.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from gateway.config.schema import Secret
from gateway.errors import UpstreamTimeout, UpstreamUnavailable
from gateway.offload import run_here_if
from gateway.ports import Answer, ClusterReader, Retry
from gateway.unified.jsontext import count_values
from gateway.unified.limits import SMALL_TEXT

LOST = (UpstreamUnavailable, UpstreamTimeout)
"""Raised by a call without a response. The cluster may have carried it out."""

HIDDEN = "[hidden]"
_SHORT = 4
"""A secret with fewer characters is hidden only if it is a word by itself, so that texts remain readable."""
_PAUSES = (0.02, 1.0)
"""Seconds between two attempts: the first pause, and the longest."""

_MOST_VALUES = 1_000_000
"""Values in the JSON of a response that is read."""

T = TypeVar("T")


class SecretMasker:
    """Hides the values of `secrets` in texts, plain and as JSON strings."""

    def __init__(self, secrets: Iterable[Secret | str]) -> None:
        plain = {secret.reveal() if isinstance(secret, Secret) else secret for secret in secrets}
        forms = {form for value in plain for form in (value, json.dumps(value)[1:-1]) if form}
        patterns = [
            re.escape(form) if len(form) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in sorted(forms, key=len, reverse=True)
        ]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def __call__(self, text: str) -> str:
        """Return `text` with the secrets hidden."""
        return self._pattern.sub(HIDDEN, text) if self._pattern else text


class Reply(msgspec.Struct, frozen=True):
    """A whole response. document: its JSON object, None if it is not one. reason: of the error, with secrets hidden."""

    status: int
    document: Mapping[str, Any] | None
    body: bytes
    reason: str

    @property
    def good(self) -> bool:
        """True if the call succeeded."""
        return self.status < 300


class Calls:
    """Sends calls with a caller's `headers`. seconds: timeout of each. secrets: hidden in every text."""

    def __init__(
        self,
        cluster: ClusterReader,
        headers: Mapping[str, str],
        seconds: float,
        visible_within: float,
        secrets: Iterable[Secret | str] = (),
    ) -> None:
        self._cluster = cluster
        self._headers = {**headers, "Content-Type": "application/json"}
        self._seconds = seconds
        self.visible_within = visible_within
        self.mask = SecretMasker(secrets)

    async def __call__(
        self,
        method: str,
        target: str,
        body: Any = None,
        seconds: float | None = None,
        accept: Mapping[str, str] = {},
        most: int | None = None,
    ) -> Reply:
        """Send one call and return its response, whatever its status. body: JSON data, or its text in pieces.

        most: see `ClusterReader.exchange`.

        Raises:
            UpstreamUnavailable, UpstreamTimeout: there was no complete response (`LOST`).
        """
        pieces = [json.dumps(body).encode()] if isinstance(body, Mapping) else body or ()
        seconds = self._seconds if seconds is None else seconds
        headers = {**self._headers, **accept}
        response = await self._cluster.exchange(method, target, headers, pieces, seconds, most)
        found = await run_here_if(len(response.body) <= SMALL_TEXT, _read_object, response.body)
        if response.status < 300 and found is None:
            raise UpstreamUnavailable(
                f"The cluster's answer to {method} {target.partition('?')[0]} is not a JSON object."
            )
        reason = "" if response.status < 300 else self.mask(_reason(found, response.status))
        return Reply(response.status, found, response.body, reason)

    async def until(self, look: Callable[[], Awaitable[T | None]]) -> T | None:
        """Call `look` until it finds something, for `visible_within` seconds; None if it does not.

        A lost response counts as nothing found.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self.visible_within
        pause, longest = _PAUSES
        while True:
            try:
                found = await look()
            except LOST:
                found = None
            if found is not None or loop.time() + pause > end:
                return found
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


def _read_object(body: bytes) -> dict[str, Any] | None:
    if count_values(body, _MOST_VALUES) > _MOST_VALUES:
        return None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _reason(document: Mapping[str, Any] | None, status: int) -> str:
    """Return the reason in the cluster's error."""
    error = (document or {}).get("error")
    reason = error.get("reason") if isinstance(error, dict) else error
    return reason if isinstance(reason, str) and reason else f"status {status}"


AT_ONCE = 5
"""How many registrations a gateway sends at the same time. Others wait for their turn.

A cluster refuses models that are registered at the same time in one model group, and more than ten on a node
(docs/evidence/facts.md, "Agents without tools, and registrations at once"). It makes nothing of those that it refuses.
"""
_BUSY_TRIES = 12
_BUSY_PAUSES = (0.1, 3.0)
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


async def send_write(
    calls: Calls,
    turns: asyncio.Semaphore,
    method: str,
    target: str,
    body: Mapping[str, Any] | bytes,
    tries: int = _BUSY_TRIES,
) -> Reply:
    """Send a call that writes, again after a random pause while others are in its way. body: JSON data or its text.

    turns: shared by all registrations (`AT_ONCE`).

    Raises:
        UpstreamUnavailable, UpstreamTimeout: see `Calls`.
    """
    first, longest = _BUSY_PAUSES
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
        reply = await send_write(calls, turns, "POST", target, body, _BUSY_TRIES - 1)
        return Answer(reply.status, headers, reply.body)

    def retry_with(status: int, answer: bytes) -> Awaitable[Answer] | None:
        try:
            document = json.loads(answer)
        except (ValueError, RecursionError):
            return None
        return again() if _is_busy(document) else None

    return retry_with

"""The cluster in a caller's name: one call at a time, JSON in and out; nothing it says shows a secret on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.config.schema import Secret
from gateway.errors import UpstreamTimeout, UpstreamUnavailable
from gateway.ports import ClusterReader

LOST = (UpstreamUnavailable, UpstreamTimeout)
"""What a call raises whose answer did not come: the cluster may have done what it was asked."""

HIDDEN = "[hidden]"
_SHORT = 4
"""Characters below which a secret is hidden only where it stands by itself, so that a text stays readable."""
_PAUSES = (0.02, 1.0)
"""Seconds between two looks: the first time, and at most."""

T = TypeVar("T")


class SecretMasker:
    """Hides the values of `secrets` in texts, as they stand and as JSON writes them."""

    def __init__(self, secrets: Iterable[Secret | str]) -> None:
        plain = {secret.reveal() if isinstance(secret, Secret) else secret for secret in secrets}
        forms = {form for value in plain for form in (value, json.dumps(value)[1:-1]) if form}
        patterns = [
            re.escape(form) if len(form) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in sorted(forms, key=len, reverse=True)
        ]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def __call__(self, text: str) -> str:
        """Return `text` without the secrets."""
        return self._pattern.sub(HIDDEN, text) if self._pattern else text


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. document: its JSON object, None when it is none. reason: the error's, secrets hidden."""

    status: int
    document: Mapping[str, Any] | None
    body: bytes
    reason: str

    @property
    def good(self) -> bool:
        """Whether the cluster did what it was asked."""
        return self.status < 300


class Calls:
    """Calls with a caller's `headers`. seconds: for each, whole. secrets: what no text may show."""

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
        self.blot = SecretMasker(secrets)

    async def __call__(
        self, method: str, target: str, body: Any = None, seconds: float | None = None, accept: Mapping[str, str] = {}
    ) -> Reply:
        """Return one call and its answer, whatever its status. body: JSON data, or its text in pieces.

        Raises:
            UpstreamUnavailable, UpstreamTimeout: no whole answer came (`LOST`).
        """
        pieces = [json.dumps(body).encode()] if isinstance(body, Mapping) else body or ()
        seconds = self._seconds if seconds is None else seconds
        headers = {**self._headers, **accept}
        response = await self._cluster.exchange(method, target, headers, pieces, seconds)
        try:
            document = json.loads(response.body)
        except (ValueError, RecursionError):
            document = None
        found = document if isinstance(document, dict) else None
        if response.status < 300 and found is None:
            raise UpstreamUnavailable(f"The cluster's answer to {method} {target.partition('?')[0]} is no JSON object.")
        reason = "" if response.status < 300 else self.blot(_reason(found, response.status))
        return Reply(response.status, found, response.body, reason)

    async def until(self, look: Callable[[], Awaitable[T | None]]) -> T | None:
        """Return what `look` finds within `visible_within`, None if it finds nothing; an answer lost meanwhile is nothing."""
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


def _reason(document: Mapping[str, Any] | None, status: int) -> str:
    """Return the cluster's own words for its error."""
    error = (document or {}).get("error")
    said = error.get("reason") if isinstance(error, dict) else error
    return said if isinstance(said, str) and said else f"status {status}"

"""AWS credentials for requests to OpenSearch: boto3's, read in a thread because it blocks, and held for the signer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from gateway.memory.store import StoreUnavailable

_PAUSE = 5.0
"""Seconds between two reads. boto3 fetches credentials that expire within 15 minutes with each read, and those of a
role may never last longer."""


class HeldCredentials:
    """The credentials of `source`, an object of boto3, as they were read last. clock: monotonic seconds."""

    def __init__(self, source: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._held: Any = None
        self._not_before = 0.0
        self._reading = asyncio.Lock()

    def get_frozen_credentials(self) -> Any:
        """Return what was read last, for opensearch-py's signer."""
        return self._held

    async def refresh(self) -> None:
        """Read the credentials if there are none yet, or they expire soon.

        Raises:
            StoreUnavailable: they can't be read.
        """
        async with self._reading:
            if self._held is None or (self._expires_soon() and self._clock() >= self._not_before):
                try:
                    self._held = await asyncio.to_thread(_read, self._source)
                finally:
                    self._not_before = self._clock() + _PAUSE

    def _expires_soon(self) -> bool:
        return bool(getattr(self._source, "refresh_needed", lambda: False)())


def _read(source: Any) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # slow to load

    try:
        return source.get_frozen_credentials()
    except (BotoCoreError, ClientError, RuntimeError) as error:  # RuntimeError: the new ones have expired, too
        raise StoreUnavailable(f"AWS credentials can't be refreshed: {error}") from None


def find_credentials(part: str) -> HeldCredentials:
    """Return the credentials that boto3 finds. part: of the settings. It blocks.

    Raises:
        StoreUnavailable: there are none, or they can't be loaded.
    """
    import boto3  # type: ignore[import-untyped]  # here, as it is slow to load
    from botocore.exceptions import BotoCoreError

    try:
        source = boto3.Session().get_credentials()
    except BotoCoreError as error:
        raise StoreUnavailable(f"AWS credentials can't be loaded: {error}") from None
    if source is None:
        raise StoreUnavailable(
            f"boto3 finds no AWS credentials for `{part}.opensearch`: run with a role, or name a profile"
        )
    return HeldCredentials(source)

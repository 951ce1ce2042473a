"""One timer for many connections, in place of one timer a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

NO_DEADLINE = float("inf")
_LONGEST, _SHORTEST = 0.5, 0.01


class Timed(Protocol):
    """Something with a deadline, in seconds of `time.monotonic`; `NO_DEADLINE` when it waits for nothing."""

    deadline: float

    def expired(self) -> None:
        """The deadline has passed; it is `NO_DEADLINE` by now."""


class DeadlineTimer:
    """Looks at `members` every so often and tells those whose deadline has passed.

    timeouts: the seconds in use; a deadline is kept to about a quarter of the shortest, at worst half a second.
    """

    def __init__(self, members: Iterable[Timed], timeouts: Iterable[float]) -> None:
        self._members = members
        self._period = max(_SHORTEST, min([_LONGEST, *(seconds / 4 for seconds in timeouts if seconds)]))
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._timer = asyncio.get_running_loop().call_later(self._period, self._sweep)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        now = time.monotonic()
        for member in [member for member in self._members if member.deadline < now]:
            member.deadline = NO_DEADLINE
            member.expired()
        if self._timer is not None:
            self.start()

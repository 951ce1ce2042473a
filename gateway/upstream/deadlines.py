"""One timer for many connections, instead of one timer per request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

NO_DEADLINE = float("inf")
_LONGEST, _SHORTEST = 0.5, 0.01


def deadline_in(seconds: float) -> float:
    """Return the deadline in `seconds` from now; 0 stands for no limit."""
    return time.monotonic() + seconds if seconds else NO_DEADLINE


class Timed(Protocol):
    """Something with a deadline, in seconds of `time.monotonic`; `NO_DEADLINE` if it waits for nothing."""

    deadline: float

    def expired(self) -> None:
        """Handle the deadline, which has passed and is `NO_DEADLINE` again."""


class DeadlineTimer:
    """Checks the deadlines of `members` at regular intervals.

    timeouts: the timeouts in use, in seconds. A deadline is noticed within a quarter of the shortest one, and within
    half a second.
    """

    def __init__(self, members: Iterable[Timed], timeouts: Iterable[float]) -> None:
        self._members = members
        self._period = max(_SHORTEST, min([_LONGEST, *(seconds / 4 for seconds in timeouts if seconds)]))
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to check."""
        self._timer = asyncio.get_running_loop().call_later(self._period, self._check)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self.start()
        now = time.monotonic()
        for member in [member for member in self._members if member.deadline < now]:
            if member.deadline < now:  # an idle connection has a new one if a request that waited for another took it
                member.deadline = NO_DEADLINE
                member.expired()

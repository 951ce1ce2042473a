"""The timer of many deadlines."""

from __future__ import annotations

import asyncio
import time

from gateway.upstream.outbound import DeadlineTimer


class Member:
    """Gives the other member more time when its own deadline has passed."""

    def __init__(self, ended: asyncio.Event) -> None:
        self.deadline = 0.0
        self.expirations = 0
        self.other = self
        self._ended = ended

    def expired(self) -> None:
        self.expirations += 1
        self.other.deadline = time.monotonic() + 3600
        self._ended.set()


async def test_a_deadline_that_another_one_has_put_off_does_not_expire() -> None:
    ended = asyncio.Event()
    first, second = Member(ended), Member(ended)
    first.other, second.other = second, first
    timer = DeadlineTimer([first, second], [0.01])
    timer.start()
    await ended.wait()
    timer.stop()
    assert (first.expirations, second.expirations) == (1, 0)

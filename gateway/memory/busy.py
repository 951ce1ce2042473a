"""The sessions that requests of this process use: one request at a time each."""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.memory.model import SessionKey


class BusySessions:
    """Lets one request at a time use a session; the others wait in order."""

    def __init__(self) -> None:
        self._waiting: dict[SessionKey, deque[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def enter(self, key: SessionKey, seconds: float) -> bool:
        """Begin to use a session; return False if it is still in use after `seconds`."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return True
        if seconds <= 0:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.release(key)  # it was this request's turn at the same moment
            elif turn in waiting:
                waiting.remove(turn)
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def release(self, key: SessionKey) -> None:
        """End the use of a session; the next request that waits begins to use it."""
        waiting = self._waiting[key]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[key]

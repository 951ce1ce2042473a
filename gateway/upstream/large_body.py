"""A large body that is written a part at a time.

The kernel copies about a megabyte in a millisecond, and takes several at a time. All other connections wait meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.upstream.outbound import Buffers

LARGE = 2 * 1024 * 1024
"""Bytes from which a body is written in parts, which takes a tenth more CPU time."""
_PART = 256 * 1024
"""Bytes of a part."""


class LargeBody:
    """What is still to be written to a transport, a part per turn of the event loop."""

    __slots__ = ("_buffers", "_is_paused", "_is_waiting", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, buffers: Buffers) -> None:
        self._transport = transport
        self._buffers = deque(memoryview(buffer) for buffer in buffers)
        self._is_paused = False
        self._is_waiting = False
        """For the next turn."""

    def write(self) -> None:
        """Write the next part."""
        self._is_waiting = False
        if not self._buffers or self._is_paused or self._transport.is_closing():
            return
        self._transport.writelines(self._next_part())
        if self._buffers:
            self._is_waiting = True
            asyncio.get_running_loop().call_soon(self.write)

    def _next_part(self) -> list[memoryview]:
        part, room = [], _PART
        while self._buffers and room:
            first = self._buffers.popleft()
            part.append(first[:room])
            if len(first) > room:
                self._buffers.appendleft(first[room:])
            room -= len(part[-1])
        return part

    def pause(self) -> None:
        """Wait: the other end does not read."""
        self._is_paused = True

    def resume(self) -> None:
        """Continue."""
        self._is_paused = False
        if not self._is_waiting:
            self.write()

    def drop(self) -> None:
        """Write nothing more."""
        self._buffers.clear()

    @property
    def is_written(self) -> bool:
        """True if nothing is left."""
        return not self._buffers

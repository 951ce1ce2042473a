"""Memory that two processes share. It has no name and no file, so nothing of it reaches a disk (memfd_create(2))."""

from __future__ import annotations

import mmap
import os

IS_AVAILABLE = hasattr(os, "memfd_create")
_LEAST = 1 << 20
_KEPT = 16 << 20
"""Bytes that `shrink` leaves: the kernel has to clear new pages, which takes as long as copying into them."""


class SharedMemory:
    """Memory behind a descriptor. One process writes, and sends position and size to the other one, which reads.

    size: in bytes, as this process sees it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, self.size)

    @classmethod
    def create(cls) -> SharedMemory:
        """Return new memory.

        Raises:
            OSError: there is none.
        """
        descriptor = os.memfd_create("mlc-gateway-recorder", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, _LEAST)
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, position: int, data: bytes | bytearray | memoryview) -> int:
        """Write `data`, and return the position behind it. The memory grows.

        Raises:
            OSError: there is no more.
        """
        end = position + len(data)
        if end > self.size:
            self._resize(max(end, 2 * self.size))
        self._map[position:end] = data
        return end

    def shrink(self) -> None:
        """Give back most of the memory if there is much. What was written may be lost."""
        if self.size > _KEPT:
            self._resize(_LEAST)

    def _resize(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)
        self._map.close()
        self._map = mmap.mmap(self.descriptor, size)
        self.size = size

    def view(self, size: int) -> memoryview:
        """Return the memory, whose size the other process has changed to `size`. Release it before the next call."""
        if size != self.size:
            self._map.close()
            self._map = mmap.mmap(self.descriptor, size)
            self.size = size
        return memoryview(self._map)

    def close(self) -> None:
        """Give it back."""
        self._map.close()
        os.close(self.descriptor)

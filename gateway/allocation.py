"""How much freed memory the process keeps. Only glibc has these settings."""

from __future__ import annotations

import ctypes

_KEPT_MEMORY = 32 << 20
"""Bytes of freed memory that the process keeps. glibc gives back more than 256 KB at once, and the kernel clears each
page that is taken again: that cost a third of the CPU time of a request with an image of 1 MB."""
_MAPPED_ALONE = 3 << 19
"""Size in bytes from which a block of memory is given back when it is freed, whatever else is in use."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def keep_freed_memory() -> None:
    """Keep some, so that bodies do not take new pages each time."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    set_option(_M_TRIM_THRESHOLD, _KEPT_MEMORY)
    set_option(_M_MMAP_THRESHOLD, _MAPPED_ALONE)

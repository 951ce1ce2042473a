"""Files that are on the disk when they are written, and are never seen half written. All functions block."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.memory.store import StoreUnavailable

_BLOCK = 16_384
_PAUSE = 0.002
"""Seconds between two tries to lock a file."""


def read_file(path: Path) -> bytes:
    """Return the content of a file that is not a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        data = os.read(descriptor, _BLOCK)
        if len(data) < _BLOCK:
            return data
        parts = [data]
        while part := os.read(descriptor, max(_BLOCK, os.fstat(descriptor).st_size)):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a file, readable by its owner only. It may be seen half written: replace another one with it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fdatasync(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in place of the one of this name, if there is one. Not by two writers at the same time."""
    new = path.with_name(path.name + ".new")
    write_file(new, data)
    new.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Wait until the names in the directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked_file(path: Path, seconds: float) -> Iterator[None]:
    """Lock the file for other threads and processes; make it if it does not exist.

    Raises:
        StoreUnavailable: another one has had it locked for `seconds`.
    """
    deadline = time.monotonic() + seconds
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    reason = f"Another process has locked {path} for {seconds:g} s. Is it stopped?"
                    raise StoreUnavailable(reason) from None
                time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)

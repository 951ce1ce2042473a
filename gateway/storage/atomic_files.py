"""Files that are on the disk when they are written, and are never seen half written. All functions block."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gateway.storage.paths import UnusableFile


class Write(NamedTuple):
    """What to write to a file. start: at which byte; 0 to write the whole file."""

    path: Path
    data: bytes
    start: int = 0


_SYNCS = ThreadPoolExecutor(8, "file-sync")
_BLOCK = 16_384
_PAUSE = 0.002
"""Seconds between two tries to lock a file."""


def read_file(path: Path | str) -> bytes:
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


def write_files(*writes: Write) -> None:
    """Write files, readable by their owner only, and wait until all are on the disk.

    They may be seen half written: make them visible with `replace_file`, which comes after this.
    """
    descriptors = []
    try:
        for path, data, start in writes:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags if start else flags | os.O_TRUNC, 0o600)
            descriptors.append(descriptor)
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:] if written else data, start + written)
        for _ in _SYNCS.map(os.fdatasync, descriptors):  # together, as the disk does them at the same time
            pass
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def replace_file(new: Path, path: Path) -> None:
    """Put `new`, a file of the same directory, in place of `path`, and wait until that is on the disk."""
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
        UnusableFile: another one has had it locked for `seconds`.
    """
    deadline = time.monotonic() + seconds
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise UnusableFile(f"Another process has locked {path} for {seconds:g} s. Is it stopped?")
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory until it is closed; return False if it is locked already."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""Where the gateway's files are, and how they are made, written and locked. All functions block.

They are readable by their owner only. What is written with `write_files` and `replace_file` is on the disk afterwards,
and is never seen half written.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class UnusableFile(Exception):
    """A file or directory can't be made, written to or locked. The message says why and what to do."""


def state_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``mlc-gateway`` in the user's directory for state, as the XDG Base Directory Specification names it.

    It begins with ``~`` if the home directory is not known.
    """
    base = Path(environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else expand(Path("~/.local/state"))) / "mlc-gateway"


def expand(path: Path) -> Path:
    """Return `path` with ``~`` replaced by the home directory, or as it is if that is not known."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def make_directory(path: Path) -> None:
    """Make the directory and its parents if they don't exist; new ones with mode 0700.

    Raises:
        UnusableFile: it can't be made, or is not a directory that can be written to.
    """
    reason = find_fault(path)
    if reason:
        raise unusable(path, reason)
    try:
        missing = [directory for directory in (path, *path.parents) if not directory.exists()]
        for directory in reversed(missing):
            directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unusable(path, error.strerror or str(error)) from error


def find_fault(directory: Path) -> str:
    """Return why nothing can be written to `directory`, or why it can't be made; "" if it can."""
    if str(directory).startswith("~"):
        return "the home directory is not known"
    try:
        while not directory.exists() and directory != directory.parent:
            directory = directory.parent
        if not directory.is_dir():
            return f"{directory} is not a directory"
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(directory, os.W_OK | os.X_OK) else f"{directory} is not writable"


def find_file_fault(path: Path) -> str:
    """Return why the file can't be read and written, or why it can't be made; "" if it can."""
    if reason := find_fault(path.parent):
        return reason
    if path.is_dir():
        return "it is a directory"
    return "it is not writable" if path.exists() and not os.access(path, os.R_OK | os.W_OK) else ""


def make_file(path: Path) -> None:
    """Make an empty file with mode 0600, and its directory, if they don't exist. A link is followed to its end.

    Raises:
        UnusableFile: it can't be made, or can't be written to.
    """
    make_directory(path.parent)
    try:
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # It is not opened: to close it would end all locks that SQLite has on it in this process, and the next process
        # to leave would take the log away from under this one (https://www.sqlite.org/howtocorrupt.html, 2.2).
        if reason := find_file_fault(path):
            raise unusable(path, reason) from None
    except OSError as error:
        raise unusable(path, error.strerror or str(error)) from error


def unusable(path: Path, reason: str) -> UnusableFile:
    """Return the error for a path that can't be used."""
    return UnusableFile(f"{path} can't be used: {reason}. Make it writable for this user, or name another path")


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

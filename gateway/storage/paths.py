"""Where the gateway's files are, and how their directories and files are made: readable by their owner only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


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

"""Files of records. Each is written by one process, and read by all.

Writing a record into SQLite would take twice as long, because SQLite writes each page to its log first. A record exists
once its row is committed; what a killed process has written after its last row is never read.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gateway.storage.paths import make_directory


class RecordFiles:
    """The files in a directory, and the one to which this process appends.

    full: another file is begun at this many bytes. old: or after so many seconds.
    """

    def __init__(self, directory: Path, full: int, old: float) -> None:
        self.directory = directory
        self.full = full
        self.old = old
        self._number = 0
        self._descriptor = -1
        self._begun = 0.0
        self._size = 0

    def append(self, connection: sqlite3.Connection, data: bytes, now: float) -> tuple[int, int, bool]:
        """Append bytes, within a transaction. Return the file's number, where they begin, and whether it is a new file.

        Raises:
            UnusableFile, OSError: they can't be written.
        """
        new = self._must_change(connection, now)
        if new:
            self._begin(connection, now)
        place = os.lseek(self._descriptor, 0, os.SEEK_END)
        written = os.write(self._descriptor, data)
        while written < len(data):
            written += os.write(self._descriptor, data[written:])
        self._size = place + len(data)
        return self._number, place, new

    def _must_change(self, connection: sqlite3.Connection, now: float) -> bool:
        """Return True if the file is full or old, or was deleted, perhaps by another process."""
        if self._descriptor < 0 or self._size >= self.full or not self._begun <= now < self._begun + self.old:
            return True
        return connection.execute("SELECT 1 FROM files WHERE number = ?", (self._number,)).fetchone() is None

    def _begin(self, connection: sqlite3.Connection, now: float) -> None:
        self.close()
        make_directory(self.directory)
        number = connection.execute("INSERT INTO files VALUES (NULL, ?, 0, 0)", (now,)).lastrowid
        assert number is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path(number), flags, 0o600)
        self._number, self._begun, self._size = number, now, 0

    def path(self, number: int) -> Path:
        """Return the path of a file."""
        return self.directory / f"{number}.records"

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete files that no row names any more."""
        for number in numbers:
            self.path(number).unlink(missing_ok=True)

    def delete_unknown(self, known: set[int]) -> None:
        """Delete files that a killed process left without a row. Call it where no other process can begin one."""
        if self.directory.is_dir():
            for path in self.directory.glob("*.records"):
                if path.stem.isdecimal() and int(path.stem) not in known:
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; the next `append` begins another."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RecordReader:
    """Reads records, with the files kept open until the end of its `with` block."""

    def __init__(self, files: RecordFiles) -> None:
        self._files = files
        self._open: dict[int, int] = {}

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def read(self, file: int, place: int, size: int) -> bytes | None:
        """Return bytes of a file; None if it was deleted meanwhile, or its end was lost with the power."""
        with suppress(FileNotFoundError):
            if file not in self._open:
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
                self._open[file] = os.open(self._files.path(file), flags)
            data = os.pread(self._open[file], size, place)
            while 0 < len(data) < size and (more := os.pread(self._open[file], size - len(data), place + len(data))):
                data += more
            return data if len(data) == size else None
        return None

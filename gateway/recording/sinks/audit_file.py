"""Exchanges as lines of JSON in a file, for those who must keep prompts and answers.

All workers append to one file, in the order of time, so that other tools need to read only one. A lock on a file beside
it keeps lines whole, and lets only one worker begin another file. The system releases the lock of a process that was
killed; what that process has written of its last line is then removed by the next writer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from glob import escape
from pathlib import Path

import msgspec

from gateway.config.inspector import AuditFile as Settings
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks.encoding import without_surrogates
from gateway.recording.store import RecordSink, StoreError, audit_path
from gateway.storage.files import UnusableFile, locked_file, make_file

_LOCK_SECONDS = 10.0
_BLOCK = 65_536
_ENCODER = msgspec.json.Encoder()


class AuditFile(RecordSink):
    """Appends to the file of the settings. clock: the seconds since the epoch."""

    name = "audit_file"

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.path = audit_path(settings)
        self._lock = self.path.with_name(f"{self.path.name}.lock")
        self._settings = settings
        self._clock = clock

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Append the records: all of them, or none."""
        data = b"".join(_line(record) for record in records)
        if not data:
            return
        try:
            make_file(self.path)
            with locked_file(self._lock, _LOCK_SECONDS):
                self._begin_another()
                self._append(data)
        except UnusableFile as error:
            raise StoreError(str(error)) from error
        except OSError as error:
            reason = f"{self.path} can't be written: {error.strerror or error}. Check the disk and the permissions"
            raise StoreError(reason) from error

    def _append(self, data: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        try:
            end = _end_of_lines(descriptor)
            try:
                os.ftruncate(descriptor, end)
                written = 0
                while written < len(data):
                    written += os.pwrite(descriptor, data[written:] if written else data, end + written)
                if self._settings.sync == "batch":
                    os.fdatasync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)

    def _begin_another(self) -> None:
        """Rename the file if it is full or old, and delete the oldest of those that were renamed."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            return
        if not state.st_size:
            self._note_beginning()
            return
        age = self._clock() - self._lock.stat().st_mtime
        if state.st_size < self._settings.bytes and not 0 < self._settings.seconds <= age:
            return
        when = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        full = self.path.with_name(f"{self.path.name}.{when}")
        while full.exists():
            full = full.with_name(f"{full.name}_")
        self.path.rename(full)
        self._note_beginning()
        for path in self.full_files()[: -self._settings.files]:
            path.unlink(missing_ok=True)

    def full_files(self) -> list[Path]:
        """Return the files that were renamed, the oldest first."""
        return sorted(self.path.parent.glob(f"{escape(self.path.name)}.2*Z*"))

    def _note_beginning(self) -> None:
        """Write down when the file was begun, as the time of change of the lock file."""
        now = self._clock()
        os.utime(self._lock, (now, now))


def _line(record: ExchangeRecord) -> bytes:
    try:
        return _ENCODER.encode(record) + b"\n"
    except UnicodeEncodeError:
        return _ENCODER.encode(without_surrogates(record)) + b"\n"


def _end_of_lines(descriptor: int) -> int:
    """Return the size of the file up to its last line end: less than all if a writer was killed within a line."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    while end:
        start = max(end - _BLOCK, 0)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0

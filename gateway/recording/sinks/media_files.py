"""Media as files, named by the hash of their bytes. All functions block."""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from gateway.storage.files import make_directory

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_TYPE = 100
_UNFINISHED_SECONDS = 3600.0
"""Age at which a file that was begun and not finished belongs to a killed process."""


class MediaFiles:
    """The media in a directory: ``ab/<sha256>.<media type, quoted>``. They were last kept at their time of change."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def keep(self, sha256: str, media_type: str, data: bytes) -> None:
        """Keep a medium, visible to others when it is whole.

        Raises:
            UnusableFile, OSError: it can't be written.
        """
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is not a SHA-256 in hexadecimal")
        known = self._find(sha256)
        if known is not None:
            with suppress(FileNotFoundError):
                if known.stat().st_size == len(data):  # else a loss of power has cut it
                    os.utime(known)
                    return
        folder = self.directory / sha256[:2]
        make_directory(folder)
        if not media_type.isascii() or len(media_type) > _LONGEST_TYPE:
            media_type = "application/octet-stream"
        new = folder / f".{uuid.uuid4().hex}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        new.replace(known or folder / f"{sha256}.{quote(media_type, safe='')}")

    def read(self, sha256: str) -> tuple[str, bytes] | None:
        """Return media type and bytes; None if they are not kept, or were damaged by a loss of power."""
        path = self._find(sha256)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != sha256:
            return None
        return unquote(path.name.partition(".")[2]), data

    def _find(self, sha256: str) -> Path | None:
        if not _SHA256.fullmatch(sha256):
            return None
        return next((self.directory / sha256[:2]).glob(f"{sha256}.*"), None)

    def trim(self, before: float, most: int) -> None:
        """Delete media that were last kept before a time, then the oldest until the rest takes at most `most` bytes."""
        files = sorted(self._files(), reverse=True)
        size, unfinished = 0, time.time() - _UNFINISHED_SECONDS
        for changed, length, path in files:
            size += length
            if changed < before or size > most or (path.name.startswith(".") and changed < unfinished):
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete all media."""
        for _, _, path in list(self._files()):
            path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield time of change, size and path of each file."""
        for path in self.directory.glob("[0-9a-f][0-9a-f]/*"):
            with suppress(FileNotFoundError):
                state = path.stat()
                yield state.st_mtime, state.st_size, path

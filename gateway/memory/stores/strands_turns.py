"""The turns of a session as a file of lines of equal length, so that neither reading nor appending needs all of them.

A line is a digest of the turn's id (32 hexadecimal digits), a space, the number of its first message (14 digits) and
the end of the line. Who reads says how many lines count. Those behind were left by a writer that was killed.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.memory.store import UnreadableSession
from gateway.storage.atomic_files import Write, read_file

_DIGEST = 32
_LINE = 48


class TurnLines:
    """The open file at `path`, of whose lines `count` count.

    Methods raise `UnreadableSession` if these lines are not all there.
    """

    def __init__(self, path: Path, descriptor: int, count: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._count = count

    def first(self, index: int) -> int:
        """Return the number of the first message of the turn in line `index`."""
        try:
            return int(os.pread(self._descriptor, _LINE, index * _LINE)[_DIGEST:])
        except ValueError:
            raise _damaged(self._path) from None

    def turns_before(self, seq: int) -> int:
        """Return how many turns begin before message `seq`."""
        return bisect_left(range(self._count), seq, key=self.first)

    def numbered(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the number of the turn (1, 2 …) and of its first message, for each message from `low` to `high`."""
        if low >= high:
            return []
        turn = bisect_right(range(self._count), low, key=self.first)
        starts = [self.first(index) for index in range(turn - 1, self.turns_before(high))]
        found = []
        for seq in range(low, high):
            while len(starts) > 1 and starts[1] <= seq:
                del starts[0]
                turn += 1
            found.append((turn, starts[0]))
        return found


@contextmanager
def open_turns(path: Path, count: int) -> Iterator[TurnLines]:
    """Open the file at `path`, of whose lines `count` count."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield TurnLines(path, descriptor, count)
    finally:
        os.close(descriptor)


def turn_lines(path: Path, count: int, turns: Iterable[tuple[str, int]]) -> Write:
    """Return what to write to the file for `turns` (id, number of the first message) after the first `count` lines."""
    lines = b"".join(b"%s %014d\n" % (_digest(id_), first) for id_, first in turns)
    return Write(path, lines, count * _LINE)


def holds_turn(path: Path, count: int, turn_id: str) -> bool:
    """Return whether one of the first `count` lines is of the turn `turn_id`.

    Raises:
        UnreadableSession: the file has fewer lines.
    """
    lines, digest = read_file(path)[: count * _LINE], _digest(turn_id)
    if len(lines) < count * _LINE:
        raise _damaged(path)
    found = lines.find(digest)
    while found % _LINE and found >= 0:  # a part of a line that looks like it
        found = lines.find(digest, found + 1)
    return found >= 0


def _damaged(path: Path) -> UnreadableSession:
    return UnreadableSession(f"{path} does not have the lines of all turns. Restore it from a backup")


def _digest(turn_id: str) -> bytes:
    return hashlib.blake2b(turn_id.encode(errors="surrogatepass"), digest_size=_DIGEST // 2).hexdigest().encode()

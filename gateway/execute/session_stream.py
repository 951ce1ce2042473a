"""An event stream of `_execute/stream` with the session's id in place of the cluster's. Pure."""

from __future__ import annotations

import re

from gateway.execute.answer_output import with_memory_id
from gateway.execute.answer_stream import StreamReader
from gateway.execute.run_answer import RunAnswer
from gateway.mlcommons.profile import AgentProfile

_LONGEST_EVENT = 1 << 20
_DATA = b"data:"
_END = re.compile(rb"\r?\n\r?\n")


class SessionStream:
    """Reads a stream, and returns it event by event, as it comes. An event over 1 MiB stays as it is.

    The last event is held until it is known whether the turn is stored, and only that one names a session that this
    turn makes. memory_id: of a session that exists, which all events name; None for a new one.
    """

    def __init__(self, profile: AgentProfile, memory_id: str | None) -> None:
        self._memory_id = memory_id
        self._reader = StreamReader(profile)
        self._pending = bytearray()
        self._held: list[bytes] = []

    def feed(self, piece: bytes) -> bytes:
        """Return what to send of the stream so far."""
        searched = max(len(self._pending) - 3, 0)  # an end may have begun there
        self._pending += piece
        begin, shown = 0, []
        for end in _END.finditer(self._pending, searched):
            shown.append(self._take(bytes(self._pending[begin : end.end()])))
            begin = end.end()
        if len(self._pending) - begin > _LONGEST_EVENT:
            rest = bytes(self._pending[begin:])
            self._reader.feed(rest)
            shown.append(rest)
            begin = len(self._pending)
        del self._pending[:begin]
        return b"".join(shown)

    def _take(self, event: bytes) -> bytes:
        self._reader.feed(event)
        if self._held or self._reader.has_ended:
            self._held.append(event)
            return b""
        return _with_id(event, self._memory_id)

    def end(self, memory_id: str) -> bytes:
        """Return what is left to send. memory_id: of the session that has the turn now, "" for none."""
        rest = b"".join([*self._held, self._pending])
        self._held, self._pending = [], bytearray()
        return _with_id(rest, memory_id)

    def answer(self) -> RunAnswer:
        """Return what the stream says about the run."""
        return self._reader.answer()


def _with_id(events: bytes, memory_id: str | None) -> bytes:
    return b"\n".join(_line_with_id(line, memory_id) for line in events.split(b"\n"))


def _line_with_id(line: bytes, memory_id: str | None) -> bytes:
    if not line.startswith(_DATA) or len(line) > _LONGEST_EVENT or b"inference_results" not in line:
        return line
    value = line[len(_DATA) :].strip()
    before, after = line.split(value, 1)
    return before + with_memory_id(value, memory_id) + after

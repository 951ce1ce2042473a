"""An event stream of `_execute/stream` with the session's id in place of the cluster's. Pure."""

from __future__ import annotations

from gateway.execute.answer_output import with_memory_id
from gateway.execute.answer_stream import StreamReader
from gateway.execute.run_answer import RunAnswer
from gateway.mlcommons.profile import AgentProfile

_LONGEST_LINE = 1 << 20
_DATA = b"data:"


class SessionStream:
    """Reads a stream and returns it line by line, as it comes. A line over 1 MiB stays as it is."""

    def __init__(self, profile: AgentProfile, memory_id: str) -> None:
        self._memory_id = memory_id
        self._reader = StreamReader(profile)
        self._line = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what to send of the stream so far."""
        self._reader.feed(piece)
        *lines, rest = (self._line + piece).split(b"\n")
        whole = b"".join(self._changed(line) + b"\n" for line in lines)
        if len(rest) > _LONGEST_LINE:
            whole, rest = whole + rest, b""
        self._line = rest
        return whole

    def end(self) -> bytes:
        """Return what is left to send."""
        line, self._line = self._line, b""
        return self._changed(line)

    def answer(self) -> RunAnswer:
        """Return what the stream says about the run."""
        return self._reader.answer()

    def _changed(self, line: bytes) -> bytes:
        if not line.startswith(_DATA) or len(line) > _LONGEST_LINE or b"inference_results" not in line:
            return line
        value = line[len(_DATA) :].strip()
        before, after = line.split(value, 1)
        return before + with_memory_id(value, self._memory_id) + after

"""Answer stages that put a target's mark before the ids of its cluster."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.offload import run_here_if
from gateway.ports import Answer, AnswerStage
from gateway.routing.marks import MarkedStream, mark_memory, mark_run

_SMALL = 64 * 1024


class RunMarks(AnswerStage):
    """Marks the ids in the answer of a run."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._stream = MarkedStream(mark)

    def feed(self, piece: bytes) -> bytes:
        """See `AnswerStage`."""
        return self._stream.feed(piece)

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """See `AnswerStage`. An event stream that was held is marked line by line, like one that was relayed."""
        if streamed or answer.body.lstrip().startswith(b"data:"):
            return Answer(answer.status, answer.headers, self._stream.feed(answer.body) + self._stream.end())
        small = len(answer.body) <= _SMALL
        return Answer(answer.status, answer.headers, await run_here_if(small, mark_run, answer.body, self._mark))

    def leave(self) -> Mapping[str, str]:
        """See `AnswerStage`. The ids of an answer that can't be held stay without marks, so they lead nowhere."""
        return {}


class MemoryMarks(AnswerStage):
    """Marks the ids in an answer about a memory, its messages or a task."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """See `AnswerStage`."""
        small = len(answer.body) <= _SMALL
        return Answer(answer.status, answer.headers, await run_here_if(small, mark_memory, answer.body, self._mark))

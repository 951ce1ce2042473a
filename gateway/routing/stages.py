"""Answer stages that put a target's mark before the ids of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.mlcommons.memory_form import show_original_json
from gateway.offload import run_here_if
from gateway.ports import Answer, AnswerStage
from gateway.routing.marks import MarkedStream, mark_memory, mark_run

_SMALL = 64 * 1024
_READABLE = 1 << 20


class RunMarks(AnswerStage):
    """Marks the ids in the answer of a run. unmarked: called if it can't; returns the headers that say so."""

    def __init__(self, mark: str, unmarked: Callable[[], Mapping[str, str]]) -> None:
        self._mark = mark
        self._unmarked = unmarked
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
        return self._unmarked()


class MemoryMarks(AnswerStage):
    """Marks the ids in an answer about a memory, its messages or a task, and shows its turns as they were written.

    unmarked: see `RunMarks`. readable: called if it shows turns (`memory.readable`), returns the headers to add; None
    to leave them as they are.
    """

    def __init__(
        self,
        mark: str,
        unmarked: Callable[[], Mapping[str, str]],
        readable: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self._mark = mark
        self._unmarked = unmarked
        self._readable = readable

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """See `AnswerStage`. As in a `MemoryRead`, a large answer keeps the gateway's form."""
        small = len(answer.body) <= _SMALL
        body = shown = await run_here_if(small, mark_memory, answer.body, self._mark)
        if self._readable is not None and answer.status == 200 and len(body) <= _READABLE:
            shown = show_original_json(body)
        added = self._readable() if self._readable is not None and shown != body else {}
        return Answer(answer.status, {**answer.headers, **added}, shown)

    def leave(self) -> Mapping[str, str]:
        """See `AnswerStage`, and `RunMarks`."""
        return self._unmarked()

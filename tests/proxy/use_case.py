"""An execute use case of the tests' own: it remembers what it was asked and answers what it was given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gateway.ports import Answer, AnswerStage, ExecuteCall, ExecuteHandler, Forward, ProfileCache


class Stage(AnswerStage):
    """A stage of functions. finish: gets status and body; if it returns None, the response stays as it is.

    Without `finish` and `feed` it holds no response.
    """

    def __init__(
        self,
        finish: Callable[[int, bytes], Awaitable[Answer | None]] | None = None,
        feed: Callable[[bytes], bytes] = lambda piece: piece,
        left: Mapping[str, str] | None = None,
        abandon: Callable[[], None] = lambda: None,
        report: Callable[[int, bytes], Coroutine[Any, Any, None] | None] | None = None,
    ) -> None:
        self._finish, self._left, self._report = finish, left or {}, report
        self.feed, self.abandon = feed, abandon  # type: ignore[method-assign]
        self.holds, self.reports = finish is not None, report is not None

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        assert self._finish is not None
        changed = await self._finish(answer.status, answer.body)
        return answer if changed is None else replace(changed, headers={**answer.headers, **changed.headers})

    def leave(self) -> Mapping[str, str]:
        return self._left

    def report(self, status: int, body: bytes) -> Coroutine[Any, Any, None] | None:
        assert self._report is not None
        return self._report(status, body)


@dataclass
class UseCase:
    answer: Forward | Exception = field(default_factory=Forward)
    calls: list[ExecuteCall] = field(default_factory=list)
    forgotten: list[tuple[str, str | None]] = field(default_factory=list)

    def __call__(self, *_: Any) -> tuple[ExecuteHandler, ProfileCache]:
        return self.execute, self

    async def execute(self, call: ExecuteCall) -> Forward:
        self.calls.append(call)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def invalidate(self, kind: str, id: str | None) -> None:
        self.forgotten.append((kind, id))

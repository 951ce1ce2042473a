"""An execute use case of the tests' own: it remembers what it was asked and answers what it was given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.ports import ExecuteCall, ExecuteHandler, Forward, ProfileCache


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

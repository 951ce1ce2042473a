"""What a mapping has to say besides its result: problems that make it impossible, notices of what it changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.errors import Problem
from gateway.notices import Notice
from gateway.providers.values import Inexpressible


@dataclass(slots=True)
class Findings:
    """Gathers problems and notices, so that a refusal names every block at once."""

    problems: list[Problem] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    def refuse(self, code: str, place: str, reason: str, *, expected: str = "", received: str = "", help: str) -> None:
        """Notes a block or turn the provider can't be given."""
        self.problems.append(Problem(place, reason, expected, received, code, help))

    def note(self, code: str, place: str, reason: str) -> None:
        """Notes a change the client should know of."""
        self.notices.append(Notice(code, reason, place))

    def raise_refusals(self) -> None:
        """Ends the checks.

        Raises:
            Inexpressible: when anything was refused.
        """
        if self.problems:
            raise Inexpressible(self.problems)

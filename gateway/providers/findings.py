"""The problems that make a mapping impossible, and the notices of what it changed."""

from __future__ import annotations

import msgspec

from gateway.errors import Problem
from gateway.notices import Notice
from gateway.providers.values import Inexpressible


class Findings(msgspec.Struct):
    """Collects problems and notices, so that a refusal names every block at once."""

    problems: list[Problem] = msgspec.field(default_factory=list)
    notices: list[Notice] = msgspec.field(default_factory=list)

    def refuse(self, code: str, place: str, reason: str, *, expected: str = "", received: str = "", help: str) -> None:
        """Add a problem: a block or turn that the provider can't carry."""
        self.problems.append(Problem(place, reason, expected, received, code, help))

    def note(self, code: str, place: str, reason: str) -> None:
        """Add a notice: a change that is reported to the client."""
        self.notices.append(Notice(code, reason, place))

    def raise_refusals(self) -> None:
        """Raise the refusals, if there are any.

        Raises:
            Inexpressible: something was refused.
        """
        if self.problems:
            raise Inexpressible(self.problems)

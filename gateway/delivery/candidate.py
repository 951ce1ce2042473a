"""A way to deliver, before it is proved; and the interface of what makes such ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.delivery.call_model import CallModel
from gateway.delivery.target import TargetTurns
from gateway.mlcommons.runtime_values import RuntimeValues
from gateway.notices import Notice

Expected = Callable[[RuntimeValues], Any]


@dataclass(frozen=True, slots=True)
class System:
    """How the system text is said: parameters that put it into the template's slot, and the body it makes.

    apply: a body rendered without it → the same body with it; None where the body has no such place.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    apply: Callable[[Any], Any] = lambda body: body
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """Parameters that might make the input arrive.

    expected: what the LLM must receive in an environment, None when that can't be told.
    split: consecutive user turns may stand for one (only where a notice says so).
    """

    strategy: str
    parameters: Mapping[str, str]
    expected: Expected
    notices: tuple[Notice, ...] = ()
    split: bool = False


class Strategy(Protocol):
    """Yields candidates for a target, best first; a strategy that does not apply yields none."""

    def __call__(self, call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
        """Candidates for `target`."""

"""Candidates, which are plans without a proof, and the interface of the strategies that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from gateway.delivery.call_model import CallModel
from gateway.delivery.target import TargetTurns
from gateway.mlcommons.template import RuntimeValues
from gateway.notices import Notice

Expected = Callable[[RuntimeValues], Any]


class Addition(msgspec.Struct, frozen=True):
    """What is delivered beside the messages (system text, declared tools): parameters that insert it, and their effect.

    apply: takes a body rendered without it and returns the body with it; None if the body has no place for it.
    """

    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)
    apply: Callable[[Any], Any] = lambda body: body
    notices: tuple[Notice, ...] = ()


class Candidate(msgspec.Struct, frozen=True):
    """Parameters that might make the input arrive.

    expected: returns what the LLM must receive for some run-time values; None if that is not known.
    split: consecutive user turns count as one turn (only with a notice that reports it).
    """

    strategy: str
    parameters: Mapping[str, str]
    expected: Expected
    notices: tuple[Notice, ...] = ()
    split: bool = False


class Strategy(Protocol):
    """Yields candidates for a target, best first; a strategy that does not apply yields none."""

    def __call__(self, call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
        """Yield candidates for `target`."""

"""Candidates, which are plans without a proof; the interface of the strategies that make them, and what these share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from gateway.codes import Notice
from gateway.delivery.call_model import CallModel
from gateway.delivery.question_placements import Parameters
from gateway.delivery.slots import QUESTION, QuestionPosition, Slot, SlotKind
from gateway.delivery.target import TargetTurns, Turn, written
from gateway.mlcommons.template import PREFIX, RuntimeValues

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


LEAD, TAIL = "(attached:)", "(end)"


def neutral_text(where: str) -> Notice:
    """Return the notice of a neutral text. where: ``first``, ``last`` or both."""
    return Notice("NEUTRAL_TEXT_ADDED", f"a neutral text block was put {where}, where this template must have text")


def expected_body(call: CallModel, target: TargetTurns, position: QuestionPosition | None) -> Any:
    """Return the body of `position` with the target's turns, and the agent's prompt around the question.

    The agent's own turns stay around the target's turns, and its parts of the question's turn around that turn's parts.
    """
    if position is None:
        return None
    own = position.messages[position.turn]
    parts = own[call.provider.content_field]
    text = position.text.replace(QUESTION, target.text)
    extra = {name: value for name, value in own.items() if name not in ("role", call.provider.content_field)}
    turns = target.turns_with(text, (parts[: position.part], parts[position.part + 1 :]), extra)
    return with_turns(call, position, turns)


def with_turns(call: CallModel, position: QuestionPosition, turns: list[Turn]) -> Any:
    """Return the body of `position` with `turns` in place of the question's turn."""
    messages = [*position.messages[: position.turn], *turns, *position.messages[position.turn + 1 :]]
    return {**position.body, call.provider.messages_field: messages}


def history_slot(call: CallModel) -> Slot | None:
    """Return the variable that takes the turns before the user's."""
    return next((slot for slot in call.slots if slot.takes is SlotKind.HISTORY), None)


def in_history(call: CallModel, slot: Slot, turns: list[Turn]) -> Parameters:
    """Return parameters that put `turns` into the history slot.

    Each turn is JSON, so the cluster inserts it raw. A list without brackets is not JSON, so the slot refers to the
    turns (docs/evidence/facts.md: the list itself is a 400).
    """
    if not turns:
        return {}
    names = [f"gw_h{index}" for index in range(len(turns))]
    separator = slot.separator or ","
    value = separator.join(f"{PREFIX}{name}}}" for name in names) + slot.separator
    return {call.key(slot.name): value, **dict(zip(names, written(call.provider, turns), strict=True))}

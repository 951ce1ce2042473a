"""What the strategies share: the body that the LLM must receive, earlier turns in a variable, neutral texts."""

from __future__ import annotations

from typing import Any

from gateway.delivery.call_model import CallModel
from gateway.delivery.question_placements import Parameters
from gateway.delivery.slots import QUESTION, QuestionPosition, Slot, SlotKind
from gateway.delivery.target import TargetTurns, Turn, written
from gateway.mlcommons.template import PREFIX
from gateway.notices import Notice

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

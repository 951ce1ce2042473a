"""Earlier turns in a template variable of their own."""

from __future__ import annotations

from gateway.delivery.call_model import CallModel
from gateway.delivery.question_placements import Parameters
from gateway.delivery.slots import Slot, SlotKind
from gateway.delivery.target import Turn, written
from gateway.mlcommons.template import PREFIX


def history_slot(call: CallModel) -> Slot | None:
    """Return the variable that takes the turns before the user's."""
    return next((slot for slot in call.slots if slot.takes is SlotKind.HISTORY), None)


def in_history(call: CallModel, slot: Slot, turns: list[Turn]) -> Parameters:
    """Return parameters that put `turns` into the history slot.

    Each turn is JSON, so the cluster inserts it raw. A list without brackets is not JSON, so the slot refers to the
    turns (docs/internals/facts.md: the list itself is a 400).
    """
    if not turns:
        return {}
    names = [f"gw_h{index}" for index in range(len(turns))]
    separator = slot.separator or ","
    value = separator.join(f"{PREFIX}{name}}}" for name in names) + slot.separator
    return {call.key(slot.name): value, **dict(zip(names, written(call.provider, turns), strict=True))}

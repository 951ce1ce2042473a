"""Earlier turns where the template has a place of its own for them."""

from __future__ import annotations

from gateway.delivery.call_model import CallModel
from gateway.delivery.escaping import dump
from gateway.delivery.question_placements import Parameters
from gateway.delivery.slots import Slot, SlotKind
from gateway.delivery.target import Turn
from gateway.mlcommons.template import PREFIX


def history_slot(call: CallModel) -> Slot | None:
    """The variable that takes turns before the user's."""
    return next((slot for slot in call.slots if slot.takes is SlotKind.HISTORY), None)


def in_history(call: CallModel, slot: Slot, turns: list[Turn]) -> Parameters:
    """Parameters that put `turns` into the history slot.

    Each turn is JSON, so it goes in raw by itself; the list is not JSON, so the slot only refers to them
    (FACTS.md: the bare list is a 400).
    """
    if not turns:
        return {}
    names = [f"gw_h{index}" for index in range(len(turns))]
    separator = slot.separator or ","
    value = separator.join(f"{PREFIX}{name}}}" for name in names) + slot.separator
    return {call.key(slot.name): value, **{name: dump(turn) for name, turn in zip(names, turns, strict=True)}}

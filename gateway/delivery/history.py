"""Earlier turns where the template has a place of its own for them."""

from __future__ import annotations

from gateway.delivery.anatomy import Anatomy, Slot, Takes
from gateway.delivery.carriers import Parameters
from gateway.delivery.coding import dump
from gateway.delivery.template import PREFIX
from gateway.delivery.wish import Turn


def history_slot(anatomy: Anatomy) -> Slot | None:
    """The variable that takes turns before the user's."""
    return next((slot for slot in anatomy.slots if slot.takes is Takes.HISTORY), None)


def in_history(anatomy: Anatomy, slot: Slot, turns: list[Turn]) -> Parameters:
    """Parameters that put `turns` into the history slot.

    Each turn is JSON, so it goes in raw by itself; the list is not JSON, so the slot only refers to them
    (FACTS.md: the bare list is a 400).
    """
    if not turns:
        return {}
    names = [f"gw_h{index}" for index in range(len(turns))]
    glue = slot.glue or ","
    value = glue.join(f"{PREFIX}{name}}}" for name in names) + slot.glue
    return {anatomy.key(slot.name): value, **{name: dump(turn) for name, turn in zip(names, turns, strict=True)}}

"""`wrap` and `messages`: the template takes messages in a variable of their own.

`wrap` keeps the agent's prompt alive inside the array, around the question; `messages` is for agents that put
nothing around it (DESIGN.md, decision 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.delivery.anatomy import Anatomy, Frame, Slot, Takes
from gateway.delivery.candidate import Candidate
from gateway.delivery.carriers import Parameters, carriers
from gateway.delivery.coding import Joined, Live, dump
from gateway.delivery.history import history_slot, in_history
from gateway.delivery.rendering import Environment, is_strict_json
from gateway.delivery.strategies.expect import framed
from gateway.delivery.template import PREFIX
from gateway.delivery.wish import Turn, Wish, parts_of, text_of


def messages(anatomy: Anatomy, wish: Wish) -> Iterator[Candidate]:
    """The whole array, the user's turn or its content in the template's variable."""
    for slot in anatomy.slots:
        own = anatomy.own.get(slot.name)
        if slot.takes is Takes.HISTORY or (own is not None and not is_strict_json(own)):
            continue  # a value of the agent's own that can't be read can't be kept
        frame = anatomy.frame(anatomy.render(anatomy.asking({_key(anatomy, slot): dump(anatomy.base(slot))})))
        if frame is not None:
            yield from _in_slot(anatomy, wish, slot, frame)


def _key(anatomy: Anatomy, slot: Slot) -> str:
    # Where an agent can't be called without the variable, every LLM tool of a flow needs it.
    return anatomy.key(slot.name) if anatomy.legacy is not None else slot.name


def _in_slot(anatomy: Anatomy, wish: Wish, slot: Slot, frame: Frame) -> Iterator[Candidate]:
    if not frame.is_bare and wish.turn is None:
        filled = wish.with_text_part()
        if filled is None:
            return
        wish = filled
    key = _key(anatomy, slot)
    base = dump(anatomy.base(slot))

    def expected(env: Environment) -> Any:
        body = anatomy.render(anatomy.asking({key: base}), env)
        return framed(anatomy, wish, anatomy.frame(body))

    for strategy, text, parameters in _texts(anatomy, wish, slot, frame):
        value = _value(anatomy, wish, slot, frame, text)
        if value is not None:
            yield Candidate(strategy, {**parameters, **value}, expected)


def _texts(anatomy: Anatomy, wish: Wish, slot: Slot, frame: Frame) -> Iterator[tuple[str, str | Joined, Parameters]]:
    """How the question's text may stand in the planned JSON: its strategy's name, the text, what goes with it."""
    if frame.is_bare:
        yield "messages", wish.text, {"question": wish.question}
        # A question that looks like a placeholder would go round in the prompt passes: give them another prompt.
        yield "messages", wish.text, {"question": wish.question, anatomy.key("prompt"): "."}
        return
    own = _own_text(anatomy, slot, frame)
    if own is None:
        return
    for parameters in carriers(anatomy, wish.text, wish.question):
        yield "wrap", own, parameters
    holder = anatomy.holder
    if anatomy.is_flow and holder is not None and own.count(f"{PREFIX}{holder.name}}}") == 1:
        before, _, after = own.partition(f"{PREFIX}{holder.name}}}")
        inline = Joined((Live(before + holder.before), wish.text, Live(holder.after + after)))
        yield "wrap", inline, {"question": wish.question}


def _own_text(anatomy: Anatomy, slot: Slot, frame: Frame) -> Live | None:
    """The agent's own template of the text that holds the question."""
    base = anatomy.base(slot)
    if slot.takes is Takes.CONTENT:
        parts = base
    else:
        turns = base if slot.takes is Takes.ARRAY else [base]
        index = frame.turn if slot.takes is Takes.ARRAY else 0
        if not (isinstance(turns, list) and index < len(turns) and isinstance(turns[index], dict)):
            return None
        parts = parts_of(anatomy.provider, turns[index])
    if not isinstance(parts, list) or frame.part >= len(parts):
        return None
    text = text_of(anatomy.provider, parts[frame.part])
    return Live(text) if text is not None else None


def _value(anatomy: Anatomy, wish: Wish, slot: Slot, frame: Frame, text: str | Joined) -> Parameters | None:
    provider, key, base = wish.provider, _key(anatomy, slot), anatomy.base(slot)
    if slot.takes is Takes.CONTENT:
        return _content(anatomy, wish, key, wish.written(text, (base[: frame.part], base[frame.part + 1 :])))
    own_turns: list[Turn] = base if slot.takes is Takes.ARRAY else [base]
    index = frame.turn if slot.takes is Takes.ARRAY else 0
    if not isinstance(own_turns, list) or index >= len(own_turns):
        return None
    parts = parts_of(provider, own_turns[index])
    turns = wish.written(text, (parts[: frame.part], parts[frame.part + 1 :]))
    turns = [*own_turns[:index], *turns, *own_turns[index + 1 :]]
    if slot.takes is Takes.ARRAY:
        return {key: dump(turns)}
    if len(turns) == 1:
        return {key: dump(turns[0])}
    names = [f"gw_m{number}" for number in range(len(turns))]
    value = ",".join(f"{PREFIX}{name}}}" for name in names)
    return {key: value, **{name: dump(turn) for name, turn in zip(names, turns, strict=True)}}


def _content(anatomy: Anatomy, wish: Wish, key: str, turns: list[Turn]) -> Parameters | None:
    if turns[-1].get("role") != "user":
        return None
    parameters = {key: dump(parts_of(wish.provider, turns[-1]))}
    if len(turns) == 1:
        return parameters
    slot = history_slot(anatomy)
    return {**parameters, **in_history(anatomy, slot, turns[:-1])} if slot is not None else None

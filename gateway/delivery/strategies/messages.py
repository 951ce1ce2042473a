"""`wrap` and `messages`: the template takes messages in a variable.

`wrap` puts the agent's prompt into the array, around the question. `messages` is for agents without a prompt of their
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.codes import Notice
from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import TAIL, Candidate, expected_body, history_slot, in_history, neutral_text
from gateway.delivery.escaping import Concat, Template, dump
from gateway.delivery.question_placements import Parameters, merge, question_placements, raw_names
from gateway.delivery.slots import QUESTION, QuestionPosition, Slot, SlotKind
from gateway.delivery.target import TargetTurns, Turn, parts_of, text_of, written
from gateway.mlcommons.rendering import is_strict_json
from gateway.mlcommons.template import PREFIX, RuntimeValues


def messages(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    """Put the whole array, the user's turn or its content into the template's variable."""
    for slot in call.slots:
        own = call.base_parameters.get(slot.name)
        if slot.takes is SlotKind.HISTORY or (own is not None and not is_strict_json(own)):
            continue  # a value of the agent's own that can't be read would be lost
        position = call.position(call.render(_with_default(call, slot)))
        if position is not None:
            yield from _in_slot(call, target, slot, position)


def _with_default(call: CallModel, slot: Slot) -> Parameters:
    """Return parameters that render a plain question in `slot`: no others if the agent has the slot's value itself."""
    if call.legacy_body is not None and slot.name in call.base_parameters:
        return {"question": QUESTION}
    return call.with_question({_key(call, slot): dump(call.default_value(slot))})


def _key(call: CallModel, slot: Slot) -> str:
    # If an agent can't be called without the variable, every LLM tool of a flow needs it.
    return call.key(slot.name) if call.legacy_body is not None or not call.later_models else slot.name


def _in_slot(call: CallModel, target: TargetTurns, slot: Slot, position: QuestionPosition) -> Iterator[Candidate]:
    for place, notices in _with_place(target, position):

        def expected(env: RuntimeValues, place: TargetTurns = place) -> Any:
            return expected_body(call, place, call.position(call.render(_with_default(call, slot), env)))

        for strategy, text, parameters in _texts(call, place, slot, position):
            value = _value(call, place, slot, position, text)
            if value is not None:
                yield Candidate(strategy, merge(parameters, value), expected, notices)


def _with_place(target: TargetTurns, position: QuestionPosition) -> Iterator[tuple[TargetTurns, tuple[Notice, ...]]]:
    """Yield the target with a text that the agent's own text and parts can be around.

    That is the question, an added text at the end, or the user's last text before a turn of the assistant or a tool.
    """
    if target.turn is not None or (position.is_bare and not position.has_own_parts(target.provider)):
        yield target, ()
        return
    with_text, earlier = target.with_text_part(TAIL if position.is_blank else ""), target.with_earlier_text()
    if with_text is not None:
        yield with_text, (neutral_text("last"),) if position.is_blank else ()
    if earlier is not None:
        yield earlier, ()


def _texts(
    call: CallModel, target: TargetTurns, slot: Slot, position: QuestionPosition
) -> Iterator[tuple[str, str | Concat, Parameters]]:
    """Yield forms of the question's text in the planned JSON: the strategy's name, the text, other parameters."""
    if position.is_bare:
        yield "messages", target.text, {"question": target.question.stored}
        return
    own = _own_text(call, slot, position)
    if own is None:
        return
    for parameters in question_placements(call, target.text, target.question):
        yield "wrap", own, parameters
    prompt_parameter = call.prompt_parameter
    if call.is_flow and prompt_parameter is not None and own.count(f"{PREFIX}{prompt_parameter.name}}}") == 1:
        before, _, after = own.partition(f"{PREFIX}{prompt_parameter.name}}}")
        inline = Concat(
            (Template(before + prompt_parameter.before), target.text, Template(prompt_parameter.after + after))
        )
        yield "wrap", inline, {"question": target.question.stored}


def _own_text(call: CallModel, slot: Slot, position: QuestionPosition) -> Template | None:
    """Return the agent's own template of the text that contains the question."""
    base = call.default_value(slot)
    if slot.takes is SlotKind.CONTENT:
        parts = base
    else:
        turns = base if slot.takes is SlotKind.ARRAY else [base]
        index = position.turn if slot.takes is SlotKind.ARRAY else 0
        if not (isinstance(turns, list) and index < len(turns) and isinstance(turns[index], dict)):
            return None
        parts = parts_of(call.provider, turns[index])
    if not isinstance(parts, list) or position.part >= len(parts):
        return None
    text = text_of(call.provider, parts[position.part])
    return Template(text) if text is not None else None


def _value(
    call: CallModel, target: TargetTurns, slot: Slot, position: QuestionPosition, text: str | Concat
) -> Parameters | None:
    provider, key, base = target.provider, _key(call, slot), call.default_value(slot)
    if slot.takes is SlotKind.CONTENT:
        return _content(call, target, slot, target.turns_with(text, (base[: position.part], base[position.part + 1 :])))
    own_turns: list[Turn] = base if slot.takes is SlotKind.ARRAY else [base]
    index = position.turn if slot.takes is SlotKind.ARRAY else 0
    if not isinstance(own_turns, list) or index >= len(own_turns):
        return None
    parts = parts_of(provider, own_turns[index])
    turns = target.turns_with(text, (parts[: position.part], parts[position.part + 1 :]))
    turns = [*own_turns[:index], *turns, *own_turns[index + 1 :]]
    if slot.takes is SlotKind.ARRAY:
        return {key: f"[{','.join(written(provider, turns))}]"}
    if len(turns) == 1:
        return {key: written(provider, turns)[0]}
    names = [f"gw_m{number}" for number in range(len(turns))]
    value = ",".join(f"{PREFIX}{name}}}" for name in names)
    return {key: value, **dict(zip(names, written(provider, turns), strict=True))}


def _content(call: CallModel, target: TargetTurns, slot: Slot, turns: list[Turn]) -> Parameters | None:
    if target.provider.role_of(turns[-1]) != "user":
        return None
    parameters = {_key(call, slot): dump(parts_of(target.provider, turns[-1]))}
    if len(turns) == 1:
        return parameters
    history = history_slot(call)
    if history is not None:
        return {**parameters, **in_history(call, history, turns[:-1])}
    return _raw_content(call, target, slot, turns) if call.raw_parameters else None


def _raw_content(call: CallModel, target: TargetTurns, slot: Slot, turns: list[Turn]) -> Parameters | None:
    """Return all turns in the place of one turn's content: the template opens the first and closes the last."""
    field = target.provider.content_field
    first, *others = turns
    if target.provider.role_of(first) != "user" or len(others[-1]) > len(first):
        return None
    last = {name: value for name, value in others[-1].items() if name != field} | {field: others[-1][field]}
    rest = [*written(target.provider, others[:-1]), dump(last)[:-1]]
    value = f"{dump(parts_of(target.provider, first))}}},{','.join(rest)}"
    return {_key(call, slot): value, **raw_names(call, {slot.name: value})}

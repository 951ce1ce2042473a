"""`splice`: the template has a text slot inside a message, and JSON is inserted there raw (3.0 and later).

All turns are written as JSON in the template's own member order. The text that the template has at both ends is cut
off, and the rest fits the slot exactly (docs/evidence/facts.md, "Splice"). If the agent's prompt is known, JSON is
inserted before and after it, so that it stays around the question. If the prompt is the cluster's own, the question
carries the fragments through it ("Deferred splice").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import (
    LEAD,
    TAIL,
    Candidate,
    expected_body,
    history_slot,
    in_history,
    neutral_text,
    with_turns,
)
from gateway.delivery.escaping import dump, raw_text
from gateway.delivery.question_placements import (
    Parameters,
    coded_question,
    escape_prefix,
    in_prompt,
    merge,
    raw_names,
    raw_question,
    raw_reference,
)
from gateway.delivery.slots import QUESTION, QuestionPosition
from gateway.delivery.strategies.text import FLAT, FLATTENED, flat_histories, flat_history
from gateway.delivery.target import TargetTurns, Turn, parts_of, text_of
from gateway.delivery.trees import locate, replace_texts
from gateway.mlcommons.template import RuntimeValues
from gateway.providers.base import Provider
from gateway.recent import computed_once


class Shape:
    """The template's user turn as JSON: what is before and after its text, and the order of its members."""

    def __init__(self, provider: Provider, turn: Turn, part: int = 0) -> None:
        self.provider = provider
        self.turn = turn
        self.part = part
        self.field = provider.content_field
        self.is_string = isinstance(turn.get(self.field), str)
        self.before, _, self.after = dump(turn).partition(QUESTION)

    @classmethod
    def of(cls, call: CallModel, position: QuestionPosition) -> Shape:
        """Return the shape of the turn that contains the question, as the template writes it."""
        turn = position.body[call.provider.messages_field][position.turn]
        path = next(iter(locate(turn, QUESTION)))
        bare = dict(turn)
        content = bare[call.provider.content_field]
        # Only the question's place matters here, not the agent's prompt around it.
        if isinstance(content, str):
            bare[call.provider.content_field] = QUESTION
        else:
            part = {**content[position.part], str(path[-1]): QUESTION}
            parts = [*content[: position.part], part, *content[position.part + 1 :]]
            bare[call.provider.content_field] = parts
        return cls(call.provider, bare, position.part)

    @computed_once
    def _is_text(self) -> bool:
        """True if the template's part is a text part, but for members that the API gives no meaning."""
        turn = {**self.turn, self.field: [self.turn[self.field][self.part]]}
        (plain,) = self.provider.canonical([turn])
        return bool(plain[self.field] == [self.provider.text_part(QUESTION)])

    @property
    def own_parts(self) -> tuple[list[Any], list[Any]]:
        """The agent's own parts before and after the one that contains the question."""
        if self.is_string:
            return [], []
        return self.turn[self.field][: self.part], self.turn[self.field][self.part + 1 :]

    def starts(self, turn: Turn) -> bool:
        """Return True if the slot's turn can start with the first part of `turn`."""
        parts = parts_of(self.provider, turn)
        return (
            self.provider.role_of(turn) == self.provider.role_of(self.turn)
            and bool(parts)
            and self._text(parts[0]) is not None
        )

    def fragment(self, turns: list[Turn]) -> str | None:
        """Return `turns` as JSON without the template's own ends; None if they don't fit."""
        text = ",".join(self._write(turns))
        if not (text.startswith(self.before) and text.endswith(self.after)):
            return None
        if len(text) < len(self.before) + len(self.after):
            return None
        return text[len(self.before) : len(text) - len(self.after)]

    def between(self, parts: list[Any]) -> str:
        """Return JSON that closes the slot's text, contains `parts`, and opens a text that the template closes."""
        if self.is_string:
            turn = [dump({**self.turn, self.field: parts})] if parts else []
            return ",".join([self.after, *turn, self.before])
        empty = dump(self._ordered(self.provider.text_part(QUESTION)))
        start, _, end = empty.partition(QUESTION)
        return ",".join([end, *(dump(self._ordered(part)) for part in parts), start])

    def _write(self, turns: list[Turn]) -> Iterator[str]:
        for index, turn in enumerate(turns):
            parts = parts_of(self.provider, turn)
            if self.is_string and index == 0:
                first = self._text(parts[0]) if parts else None
                if first is None:
                    yield dump(turn)
                    continue
                yield dump({**self.turn, self.field: first})
                rest = {self.field: [*parts[1:]], **{k: v for k, v in turn.items() if k != self.field}}
                if parts[1:]:
                    yield dump(self.provider.simplest(rest))
            elif self.is_string:
                # A turn whose last member is its role fits a slot whose own turn ends in a string.
                simplest = self.provider.simplest(turn)
                yield dump(dict(sorted(simplest.items(), key=lambda member: member[0] == "role")))
            else:
                ordered = self._members_ordered(turn)
                if parts:
                    ordered[self.field] = [self._ordered(part) for part in parts]
                yield dump(ordered)

    def _members_ordered(self, turn: Turn) -> Turn:
        """Return the turn with its members in the template's order, any others before the last of them."""
        *first, last = (name for name in self.turn if name in turn)
        others = [name for name in turn if name not in self.turn]
        if self.provider.role_of({}) == self.provider.role_of(turn):
            others = [name for name in others if name != "role"]  # the template leaves out the user's role
        return {name: turn[name] for name in (*first, *others, last)}

    def _text(self, part: Any) -> str | None:
        return text_of(self.provider, part)

    def _ordered(self, part: Any) -> Any:
        """Return a text part as the template writes its own: its members in that order, and those without meaning."""
        if self._text(part) is None or not isinstance(part, dict) or not self._is_text:
            return part
        like = self.turn[self.field][self.part]
        return {name: part.get(name, value) for name, value in like.items()}


def splice(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    """Cut the turns, or the last turn, to fit the template's text slot."""
    if not (call.raw_parameters or call.raw_name) or call.legacy_body is None:
        return
    position = call.position(call.legacy_body)
    if position is None:
        return
    # Without a prompt around it, the text would be blank, which providers refuse.
    is_neutral = position.is_blank and target.turn is None
    filled = target.with_text_part(TAIL if is_neutral else "")
    is_neutral = is_neutral and filled is not None
    filled = filled or target.with_earlier_text()
    if filled is None:
        return
    for candidate in _fitted(call, filled, position):
        yield replace(candidate, notices=(*candidate.notices, neutral_text("last"))) if is_neutral else candidate


def _fitted(call: CallModel, filled: TargetTurns, position: QuestionPosition) -> Iterator[Candidate]:
    shape = Shape.of(call, position)
    slot = history_slot(call)
    if call.prompt_parameter is not None:
        yield from _around_question(call, filled, shape, {}, 0)
        if slot is not None:
            # What can't be in the slot (a leading image, a system turn) goes before it.
            for count in range(1, len(filled.turns)):
                if shape.starts(filled.turns[count]):
                    parameters = in_history(call, slot, filled.turns[:count])
                    yield from _around_question(call, filled, shape, parameters, count)
                    break
            yield from _leading_media(call, filled, shape)
    elif any(shape.own_parts):
        return  # no place is known for them where the prompt is the cluster's own
    elif filled.turn == len(filled.turns) - 1 and _begins_with_result(filled):
        yield from _from_earlier_turn(call, filled, position, shape)
    elif filled.turn == len(filled.turns) - 1 and (slot is not None or len(filled.turns) == 1):
        parameters = in_history(call, slot, filled.turns[:-1]) if slot is not None else {}
        yield from _around_turn(call, filled, position, shape, parameters)
    elif filled.turn == len(filled.turns) - 1:
        yield from _after_flat_history(call, filled, position, shape)


def _around_question(
    call: CallModel, target: TargetTurns, shape: Shape, parameters: Parameters, skip: int
) -> Iterator[Candidate]:
    """Insert everything but the question before and after the agent's prompt, which stays around the question."""
    here = replace(target, turns=target.turns[skip:], turn=target.turn - skip if target.turn is not None else None)
    if here.turn is None or here.turn < 0 or call.prompt_parameter is None:
        return
    for padded, notices in _padded(here, shape):
        fragment = shape.fragment(padded.turns_with(QUESTION, shape.own_parts))
        if fragment is None or fragment.count(QUESTION) != 1:
            continue
        before, _, after = fragment.partition(QUESTION)
        spliced = _spliced(call, before, raw_text(padded.text), after)
        whole = replace(padded, turns=[*target.turns[:skip], *padded.turns], turn=(padded.turn or 0) + skip)

        def expected(env: RuntimeValues, whole: TargetTurns = whole) -> Any:
            return expected_body(call, whole, call.position(call.render({"question": QUESTION}, env)))

        questions = [{"question": target.question.stored}]
        if call.later_llms:  # these take the question too, and can't take every text unescaped
            questions.append(coded_question(call, target.question, target.question.text))
        for question in questions:
            yield Candidate(
                "splice",
                merge(spliced, question, parameters),
                expected,
                (*notices, *_split(shape, padded)),
                split=shape.is_string,
            )


def _spliced(call: CallModel, before: str, text: str, after: str) -> Parameters:
    """Return the prompt parameter with fragments around the agent's prompt, which stays around the question."""
    assert call.prompt_parameter is not None
    prompt, escape = call.prompt_parameter, escape_prefix(call)
    if not prompt.before and not prompt.after:
        return in_prompt(call, raw_reference(call, {"gw_whole": before + text + after}, escape))
    fragments = {name: part for name, part in (("gw_before", before), ("gw_text", text), ("gw_after", after)) if part}
    refs = {name: raw_reference(call, {name: part}, escape)[0] for name, part in fragments.items()}
    parts = [refs.get("gw_before", ""), prompt.before, refs.get("gw_text", ""), prompt.after, refs.get("gw_after", "")]
    return {call.key(prompt.name): "".join(parts), **fragments, **raw_names(call, fragments)}


def _padded(target: TargetTurns, shape: Shape) -> Iterator[tuple[TargetTurns, tuple[Notice, ...]]]:
    """Yield the target, and the target with neutral text where the slot needs text at the ends."""
    yield target, ()
    provider, field = target.provider, target.provider.content_field
    turns = list(target.turns)
    assert target.turn is not None
    assert target.part is not None
    part = target.part
    added = []
    if provider.role_of(turns[0]) == "user" and not shape.starts(turns[0]):
        turns[0] = {**turns[0], field: [provider.text_part(LEAD), *parts_of(provider, turns[0])]}
        part += target.turn == 0
        added.append("first")
    last = parts_of(provider, turns[-1])
    if not shape.is_string and provider.role_of(turns[-1]) == "user" and last and text_of(provider, last[-1]) is None:
        turns[-1] = {**turns[-1], field: [*last, provider.text_part(TAIL)]}
        added.append("last")
    if added:
        yield replace(target, turns=turns, part=part), (neutral_text(" and ".join(added)),)


def _leading_media(call: CallModel, target: TargetTurns, shape: Shape) -> Iterator[Candidate]:
    """For string content: put leading media before the slot, as a separate user turn."""
    slot = history_slot(call)
    parts = parts_of(target.provider, target.turns[0])
    first = next((i for i, part in enumerate(parts) if text_of(target.provider, part) is not None), 0)
    if not shape.is_string or slot is None or not first or target.provider.role_of(target.turns[0]) != "user":
        return
    field = target.provider.content_field
    turns = [
        {**target.turns[0], field: parts[:first]},
        {**target.turns[0], field: parts[first:]},
        *target.turns[1:],
    ]
    yield from _around_question(
        call, TargetTurns.of(target.provider, turns, target.question), shape, in_history(call, slot, turns[:1]), 1
    )


def _split(shape: Shape, target: TargetTurns) -> tuple[Notice, ...]:
    many = shape.is_string and len(parts_of(target.provider, target.turns[0])) > 1
    return (Notice("USER_TURN_SPLIT", "the user's turn arrives as consecutive user messages"),) if many else ()


def _begins_with_result(target: TargetTurns) -> bool:
    return any(target.provider.is_tool_result(part) for part in parts_of(target.provider, target.turns[-1])[:1])


def _from_earlier_turn(
    call: CallModel, target: TargetTurns, position: QuestionPosition, shape: Shape
) -> Iterator[Candidate]:
    """Insert all turns from the last one that begins with text on, so that no text comes before a tool's result.

    Only for an agent without text around the question, which would be at the start of that earlier turn.
    """
    slot = history_slot(call)
    start = next((i for i in range(len(target.turns) - 2, -1, -1) if shape.starts(target.turns[i])), None)
    if not position.is_bare or start is None or (start and slot is None):
        return
    provider, turns = target.provider, list(target.turns)
    notices: tuple[Notice, ...] = ()
    last = parts_of(provider, turns[-1])
    if text_of(provider, last[-1]) is None:
        turns[-1] = {**turns[-1], provider.content_field: [*last, provider.text_part(TAIL)]}
        notices += (neutral_text("last"),)
    fragment = shape.fragment(turns[start:])
    if fragment is None:
        return

    def expected(env: RuntimeValues) -> Any:
        now = call.position(call.render({"question": QUESTION}, env))
        return with_turns(call, now, turns) if now is not None and now.is_bare else None

    earlier = in_history(call, slot, turns[:start]) if slot is not None else {}
    question = raw_question(call, target.question, fragment)
    yield Candidate("splice", merge(earlier, question), expected, notices)


def _after_flat_history(
    call: CallModel, target: TargetTurns, position: QuestionPosition, shape: Shape
) -> Iterator[Candidate]:
    """Deliver the last turn through the cluster's own prompt, and earlier turns of text as its `chat_history`."""
    if all(text_of(target.provider, part) is not None for part in parts_of(target.provider, target.turns[-1])):
        return  # that needs no splice (`flattened`)
    history = flat_history(target, target.turns[:-1])
    last = replace(target, turns=target.turns[-1:], turn=0)
    for parameters in flat_histories(call, history) if history else ():
        for candidate in _around_turn(call, last, position, shape, parameters, history or ""):
            yield replace(candidate, notices=(*candidate.notices, FLATTENED))


def _around_turn(
    call: CallModel,
    target: TargetTurns,
    position: QuestionPosition,
    shape: Shape,
    parameters: Parameters,
    history: str = "",
) -> Iterator[Candidate]:
    """Deliver through the cluster's own prompt, which is before the last turn's first text and after its last.

    history: the text of earlier turns, which `parameters` put into the prompt.
    """
    provider, field = target.provider, target.provider.content_field
    parts = list(parts_of(provider, target.turns[-1]))
    start, _, end = position.text.partition(QUESTION)
    neutral = []
    # The prompt's own text is at both ends. If it has none there, a neutral text is needed.
    if text_of(provider, parts[0]) is None:
        parts.insert(0, provider.text_part("" if start.strip() else LEAD))
        neutral += [] if start.strip() else ["first"]
    if len(parts) == 1 or text_of(provider, parts[-1]) is None:
        parts.append(provider.text_part("" if end.strip() else TAIL))
        neutral += [] if end.strip() else ["last"]
    first, last = text_of(provider, parts[0]) or "", text_of(provider, parts[-1]) or ""
    between = shape.between(parts[1:-1])
    asked = {"question": QUESTION, **({"chat_history": FLAT} if history else {})}

    def expected(env: RuntimeValues) -> Any:
        now = call.position(call.render(asked, env))
        if now is None or (history and FLAT not in now.text):
            return None
        begin, _, finish = now.text.partition(QUESTION)
        ends = target.with_text(parts[0], begin + first), target.with_text(parts[-1], last + finish)
        all_parts = [ends[0], *parts[1:-1], ends[1]]
        turns = [*target.turns[:-1], {**target.turns[-1], field: all_parts}]
        body = with_turns(call, now, turns)
        return replace_texts(body, {FLAT: history}) if history else body

    notices = _split(shape, replace(target, turns=[{**target.turns[-1], field: parts}]))
    if neutral:
        notices += (neutral_text(" and ".join(neutral)),)
    question = raw_question(call, target.question, raw_text(first) + between + raw_text(last))
    yield Candidate("splice", merge(parameters, question), expected, notices, split=shape.is_string)

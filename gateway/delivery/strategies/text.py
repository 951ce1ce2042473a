"""`text`: all there is to say in the question itself, earlier turns beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Candidate
from gateway.delivery.escaping import is_plain
from gateway.delivery.history import history_slot, in_history
from gateway.delivery.question_placements import Parameters, merged, question_placements, reference_to
from gateway.delivery.slots import MARK, QUESTION
from gateway.delivery.strategies.expect import with_turns
from gateway.delivery.target import TargetTurns, Turn, parts_of, text_of
from gateway.delivery.trees import locate, replaced
from gateway.mlcommons.runtime_values import RuntimeValues
from gateway.notices import Notice

FLAT = f"{MARK}history"


def plain(call: CallModel, text: str, question: str, notices: tuple[Notice, ...] = ()) -> Iterator[Candidate]:
    """One text, to any agent that takes a question, whatever its provider."""

    def expected(env: RuntimeValues) -> Any:
        return replaced(call.render({"question": QUESTION}, env), {QUESTION: text})

    if _is_asked(call):
        for parameters in question_placements(call, text, question):
            yield Candidate("text", parameters, expected, notices)


def _is_asked(call: CallModel) -> bool:
    """Whether a plain question stands in a message; where the messages are not known, whether it stands anywhere."""
    field = call.provider.messages_field
    return any(not field or path[0] == field for path in locate(call.legacy_body, QUESTION))


def text(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    """A last turn of text alone; earlier turns in the template's history slot."""
    if target.turn is None or target.turn != len(target.turns) - 1:
        return
    if len(parts_of(target.provider, target.turns[-1])) != 1:
        return
    earlier = target.turns[:-1]
    if not earlier:
        yield from plain(call, target.text, target.question)
        return
    slot = history_slot(call)
    if slot is None:
        return

    def expected(env: RuntimeValues) -> Any:
        position = call.position(call.render({"question": QUESTION}, env))
        if position is None:
            return None
        turns = [*earlier, position.messages[position.turn]]
        return replaced(with_turns(call, position, turns), {QUESTION: target.text})

    for parameters in question_placements(call, target.text, target.question):
        yield Candidate("text", {**parameters, **in_history(call, slot, earlier)}, expected)


def flat(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    """Text only, its parts joined by newlines and earlier turns told as `chat_history` in the agent's prompt."""
    said = [_texts(target, turn) for turn in target.turns]
    if (
        not _is_asked(call)
        or not said
        or any(texts is None for texts in said)
        or target.turns[-1].get("role") != "user"
    ):
        return
    last = said[-1] or []
    joined = last[0] if len(last) == 1 else "\n".join(part.strip() for part in last)
    notices: tuple[Notice, ...] = ()
    if len(last) > 1:
        notices = (Notice("TEXT_JOINED", "the last turn's text blocks arrive as one, joined by newlines"),)
    if len(said) == 1:
        yield from plain(call, joined, target.question, notices)
        return
    slot = history_slot(call)
    if slot is not None and len(last) > 1:
        one = TargetTurns.of(target.provider, [*target.turns[:-1], _one_part(target, joined)], target.question)
        for candidate in text(call, one):
            yield Candidate(candidate.strategy, candidate.parameters, candidate.expected, notices)
    roles = [turn["role"] for turn in target.turns]
    told = told_turns([(role, "\n".join(texts or [])) for role, texts in zip(roles, said, strict=True)][:-1])
    notices += (Notice("HISTORY_FLATTENED", "earlier turns arrive as text in the agent's chat_history"),)

    def expected(env: RuntimeValues) -> Any:
        body = call.render({"question": QUESTION, "chat_history": FLAT}, env)
        return replaced(body, {QUESTION: joined, FLAT: told}) if list(locate(body, FLAT)) else None

    for history in _histories(call, told):
        for parameters in question_placements(call, joined, target.question):
            yield Candidate("text", merged(parameters, history), expected, notices)


def _histories(call: CallModel, told: str) -> Iterator[Parameters]:
    if is_plain(told):
        yield {"chat_history": told}
    reference, helpers = reference_to(call, "gw_c", told, call.escape_prefix)
    yield {"chat_history": reference, **helpers}


def told_turns(turns: list[tuple[str, str]]) -> str:
    """Turns as the text that prompts of conversational agents expect (FACTS.md: ``Human:…\\nAssistant:…``)."""
    names = {"assistant": "Assistant", "model": "Assistant", "user": "Human"}
    return "\n".join(f"{names.get(role, role)}:{said}" for role, said in turns) + "\n"


def _texts(target: TargetTurns, turn: Turn) -> list[str] | None:
    """The texts of a turn that has nothing else, in a role that can be told; None for any other."""
    if turn.get("role") not in ("user", "assistant", "model"):
        return None
    if set(turn) - {"role", target.provider.content_field}:
        return None
    texts = [text_of(target.provider, part) for part in parts_of(target.provider, turn)]
    return [text for text in texts if text is not None] if texts and None not in texts else None


def _one_part(target: TargetTurns, words: str) -> Turn:
    return {**target.turns[-1], target.provider.content_field: [target.provider.text_part(words)]}

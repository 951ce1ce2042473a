"""`text`: all there is to say in the question itself, earlier turns beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.delivery.anatomy import MARK, QUESTION, Anatomy, locate, replaced
from gateway.delivery.candidate import Candidate
from gateway.delivery.carriers import Parameters, carriers, merged, referred
from gateway.delivery.coding import is_plain
from gateway.delivery.history import history_slot, in_history
from gateway.delivery.rendering import Environment
from gateway.delivery.strategies.expect import with_turns
from gateway.delivery.wish import Turn, Wish, parts_of, text_of
from gateway.notices import Notice

FLAT = f"{MARK}history"


def plain(anatomy: Anatomy, text: str, question: str, notices: tuple[Notice, ...] = ()) -> Iterator[Candidate]:
    """One text, to any agent that takes a question, whatever its provider."""

    def expected(env: Environment) -> Any:
        return replaced(anatomy.render({"question": QUESTION}, env), {QUESTION: text})

    if _is_asked(anatomy):
        for parameters in carriers(anatomy, text, question):
            yield Candidate("text", parameters, expected, notices)


def _is_asked(anatomy: Anatomy) -> bool:
    """Whether a plain question stands in a message; where the messages are not known, whether it stands anywhere."""
    field = anatomy.provider.messages_field
    return any(not field or path[0] == field for path in locate(anatomy.legacy, QUESTION))


def text(anatomy: Anatomy, wish: Wish) -> Iterator[Candidate]:
    """A last turn of text alone; earlier turns in the template's history slot."""
    if wish.turn is None or wish.turn != len(wish.turns) - 1:
        return
    if len(parts_of(wish.provider, wish.turns[-1])) != 1:
        return
    earlier = wish.turns[:-1]
    if not earlier:
        yield from plain(anatomy, wish.text, wish.question)
        return
    slot = history_slot(anatomy)
    if slot is None:
        return

    def expected(env: Environment) -> Any:
        frame = anatomy.frame(anatomy.render({"question": QUESTION}, env))
        if frame is None:
            return None
        turns = [*earlier, frame.messages[frame.turn]]
        return replaced(with_turns(anatomy, frame, turns), {QUESTION: wish.text})

    for parameters in carriers(anatomy, wish.text, wish.question):
        yield Candidate("text", {**parameters, **in_history(anatomy, slot, earlier)}, expected)


def flat(anatomy: Anatomy, wish: Wish) -> Iterator[Candidate]:
    """Text only, its parts joined by newlines and earlier turns told as `chat_history` in the agent's prompt."""
    said = [_texts(wish, turn) for turn in wish.turns]
    if (
        not _is_asked(anatomy)
        or not said
        or any(texts is None for texts in said)
        or wish.turns[-1].get("role") != "user"
    ):
        return
    last = said[-1] or []
    joined = last[0] if len(last) == 1 else "\n".join(part.strip() for part in last)
    notices: tuple[Notice, ...] = ()
    if len(last) > 1:
        notices = (Notice("TEXT_JOINED", "the last turn's text blocks arrive as one, joined by newlines"),)
    if len(said) == 1:
        yield from plain(anatomy, joined, wish.question, notices)
        return
    slot = history_slot(anatomy)
    if slot is not None and len(last) > 1:
        one = Wish.of(wish.provider, [*wish.turns[:-1], _one_part(wish, joined)], wish.question)
        for candidate in text(anatomy, one):
            yield Candidate(candidate.strategy, candidate.parameters, candidate.expected, notices)
    roles = [turn["role"] for turn in wish.turns]
    told = told_turns([(role, "\n".join(texts or [])) for role, texts in zip(roles, said, strict=True)][:-1])
    notices += (Notice("HISTORY_FLATTENED", "earlier turns arrive as text in the agent's chat_history"),)

    def expected(env: Environment) -> Any:
        body = anatomy.render({"question": QUESTION, "chat_history": FLAT}, env)
        return replaced(body, {QUESTION: joined, FLAT: told}) if list(locate(body, FLAT)) else None

    for history in _histories(anatomy, told):
        for parameters in carriers(anatomy, joined, wish.question):
            yield Candidate("text", merged(parameters, history), expected, notices)


def _histories(anatomy: Anatomy, told: str) -> Iterator[Parameters]:
    if is_plain(told):
        yield {"chat_history": told}
    reference, helpers = referred(anatomy, "gw_c", told, anatomy.defer)
    yield {"chat_history": reference, **helpers}


def told_turns(turns: list[tuple[str, str]]) -> str:
    """Turns as the text that prompts of conversational agents expect (FACTS.md: ``Human:…\\nAssistant:…``)."""
    names = {"assistant": "Assistant", "model": "Assistant", "user": "Human"}
    return "\n".join(f"{names.get(role, role)}:{said}" for role, said in turns) + "\n"


def _texts(wish: Wish, turn: Turn) -> list[str] | None:
    """The texts of a turn that has nothing else, in a role that can be told; None for any other."""
    if turn.get("role") not in ("user", "assistant", "model"):
        return None
    if set(turn) - {"role", wish.provider.content_field}:
        return None
    texts = [text_of(wish.provider, part) for part in parts_of(wish.provider, turn)]
    return [text for text in texts if text is not None] if texts and None not in texts else None


def _one_part(wish: Wish, words: str) -> Turn:
    return {**wish.turns[-1], wish.provider.content_field: [wish.provider.text_part(words)]}

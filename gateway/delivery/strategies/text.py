"""`text`: the last turn's text as the question, and earlier turns in other parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.codes import Notice
from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Candidate, history_slot, in_history, with_turns
from gateway.delivery.escaping import is_plain
from gateway.delivery.question_placements import Parameters, merge, question_placements, reference_to
from gateway.delivery.slots import MARK, QUESTION
from gateway.delivery.target import Question, TargetTurns, Turn, parts_of, text_of
from gateway.delivery.trees import locate, replace_texts
from gateway.mlcommons.template import RuntimeValues
from gateway.providers.base import Provider

FLAT = f"{MARK}history"
FLATTENED = Notice("HISTORY_FLATTENED", "earlier turns arrive as text in the agent's chat_history")


def plain(call: CallModel, text: str, question: Question, notices: tuple[Notice, ...] = ()) -> Iterator[Candidate]:
    """Deliver one text to any agent that takes a question, whatever its provider."""

    def expected(env: RuntimeValues) -> Any:
        return replace_texts(call.render({"question": QUESTION}, env), {QUESTION: text})

    if _takes_question(call):
        for parameters in question_placements(call, text, question):
            yield Candidate("text", parameters, expected, notices)


def _takes_question(call: CallModel) -> bool:
    """Return True if a plain question reaches a message, or any place if the messages are unknown."""
    field = call.provider.messages_field
    return any(not field or path[0] == field for path in locate(call.legacy_body, QUESTION))


def text(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    """Deliver a last turn of one text, with earlier turns in the template's history slot."""
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
        return replace_texts(with_turns(call, position, turns), {QUESTION: target.text})

    for parameters in question_placements(call, target.text, target.question):
        yield Candidate("text", {**parameters, **in_history(call, slot, earlier)}, expected)


def flattened(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    """Deliver a last turn of texts, joined by newlines, with earlier turns in the template's history slot, if they are
    texts also as `chat_history` in the agent's prompt.
    """
    if not _takes_question(call) or not target.turns or target.provider.role_of(target.turns[-1]) != "user":
        return
    last = texts_of(target.provider, target.turns[-1])
    if last is None:
        return
    joined, notices = join_texts(last)
    if len(target.turns) == 1:
        yield from plain(call, joined, target.question, notices)
        return
    slot = history_slot(call)
    if slot is not None and len(last) > 1:
        one = TargetTurns.of(target.provider, [*target.turns[:-1], _one_part(target, joined)], target.question)
        for candidate in text(call, one):
            yield Candidate(candidate.strategy, candidate.parameters, candidate.expected, notices)
    history = flat_history(target, target.turns[:-1])
    if history is None:
        return
    notices += (FLATTENED,)

    def expected(env: RuntimeValues) -> Any:
        body = call.render({"question": QUESTION, "chat_history": FLAT}, env)
        return replace_texts(body, {QUESTION: joined, FLAT: history}) if list(locate(body, FLAT)) else None

    for in_history_parameter in flat_histories(call, history):
        for parameters in question_placements(call, joined, target.question):
            yield Candidate("text", merge(parameters, in_history_parameter), expected, notices)


def join_texts(texts: list[str]) -> tuple[str, tuple[Notice, ...]]:
    """Return the texts of a turn as one, and a notice if there are several."""
    if len(texts) == 1:
        return texts[0], ()
    notice = Notice("TEXT_JOINED", "the last turn's text blocks arrive as one, joined by newlines")
    return "\n".join(text.strip() for text in texts), (notice,)


def flat_history(target: TargetTurns, turns: list[Turn]) -> str | None:
    """Return earlier turns as the agent's `chat_history`; None if they are not all texts."""
    texts = [texts_of(target.provider, turn) for turn in turns]
    if any(text is None for text in texts):
        return None
    roles = [target.provider.role_of(turn) for turn in turns]
    return chat_history([(role, "\n".join(text or [])) for role, text in zip(roles, texts, strict=True)])


def as_one_text(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    """Deliver a conversation of texts as one text, for an agent without any place for earlier turns.

    One that ends with the assistant too, where the provider takes that: its last words are the end of the text.
    """
    if len(target.turns) < 2:
        return
    transcript = flat_history(target, target.turns)
    if transcript is not None:
        yield from plain(call, transcript.removesuffix("\n"), target.question, (ONE_TEXT,))


ONE_TEXT = Notice("HISTORY_IN_QUESTION", "all turns arrive as one text, where the agent's prompt has the question")


def flat_histories(call: CallModel, history: str) -> Iterator[Parameters]:
    """Yield parameters that make `history` the agent's `chat_history`."""
    if is_plain(history):
        yield {"chat_history": history}
    reference, helpers = reference_to(call, "gw_c", history, call.escape_prefix)
    yield {"chat_history": reference, **helpers}


NAMES = {"assistant": "Assistant", "user": "Human"}
"""The names of the roles in a conversation that is written as text."""


def chat_history(turns: list[tuple[str, str]]) -> str:
    """Return turns as the text that prompts of conversational agents expect: ``Human:…\\nAssistant:…``."""
    return "\n".join(f"{NAMES.get(role, role)}:{text}" for role, text in turns) + "\n"


def texts_of(provider: Provider, turn: Turn) -> list[str] | None:
    """Return the texts of a user or assistant turn that has only text; None for any other turn."""
    if provider.role_of(turn) not in ("user", "assistant"):
        return None
    if set(turn) - {"role", provider.content_field}:
        return None
    texts = [text_of(provider, part) for part in parts_of(provider, turn)]
    return [text for text in texts if text is not None] if texts and None not in texts else None


def _one_part(target: TargetTurns, text: str) -> Turn:
    return {**target.turns[-1], target.provider.content_field: [target.provider.text_part(text)]}

"""What the LLM must receive: a body rendered for a plain question, with the wish in that question's place."""

from __future__ import annotations

from typing import Any

from gateway.delivery.anatomy import QUESTION, Anatomy, Frame
from gateway.delivery.wish import Turn, Wish


def framed(anatomy: Anatomy, wish: Wish, frame: Frame | None) -> Any:
    """The body of `frame` with the wish's turns for the question's turn, the agent's prompt around the question.

    The agent's own turns and parts stay where they stand: its turns around the wish's, its parts of the
    question's turn around that turn's parts.
    """
    if frame is None:
        return None
    own = frame.messages[frame.turn]
    parts = own[anatomy.provider.content_field]
    text = frame.text.replace(QUESTION, wish.text)
    extra = {name: value for name, value in own.items() if name not in ("role", anatomy.provider.content_field)}
    turns = wish.written(text, (parts[: frame.part], parts[frame.part + 1 :]), extra)
    return with_turns(anatomy, frame, turns)


def with_turns(anatomy: Anatomy, frame: Frame, turns: list[Turn]) -> Any:
    """The body of `frame` with `turns` for the question's turn."""
    messages = [*frame.messages[: frame.turn], *turns, *frame.messages[frame.turn + 1 :]]
    return {**frame.body, anatomy.provider.messages_field: messages}

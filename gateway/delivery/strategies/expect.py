"""What the LLM must receive: a body rendered for a plain question, with the target's turns in that question's place."""

from __future__ import annotations

from typing import Any

from gateway.delivery.call_model import CallModel, QuestionPosition
from gateway.delivery.slots import QUESTION
from gateway.delivery.target import TargetTurns, Turn


def expected_body(call: CallModel, target: TargetTurns, position: QuestionPosition | None) -> Any:
    """The body of `position` with the target's turns for the question's turn, the agent's prompt around the question.

    The agent's own turns and parts stay where they stand: its turns around the target's, its parts of the
    question's turn around that turn's parts.
    """
    if position is None:
        return None
    own = position.messages[position.turn]
    parts = own[call.provider.content_field]
    text = position.text.replace(QUESTION, target.text)
    extra = {name: value for name, value in own.items() if name not in ("role", call.provider.content_field)}
    turns = target.turns_with(text, (parts[: position.part], parts[position.part + 1 :]), extra)
    return with_turns(call, position, turns)


def with_turns(call: CallModel, position: QuestionPosition, turns: list[Turn]) -> Any:
    """The body of `frame` with `turns` for the question's turn."""
    messages = [*position.messages[: position.turn], *turns, *position.messages[position.turn + 1 :]]
    return {**position.body, call.provider.messages_field: messages}

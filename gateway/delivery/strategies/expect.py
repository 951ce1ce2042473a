"""What the LLM must receive: a body rendered for a plain question, with the target's turns in place of the question."""

from __future__ import annotations

from typing import Any

from gateway.delivery.call_model import CallModel
from gateway.delivery.positions import QuestionPosition
from gateway.delivery.slots import QUESTION
from gateway.delivery.target import TargetTurns, Turn


def expected_body(call: CallModel, target: TargetTurns, position: QuestionPosition | None) -> Any:
    """Return the body of `position` with the target's turns, and the agent's prompt around the question.

    The agent's own turns stay around the target's turns, and its parts of the question's turn around that turn's parts.
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
    """Return the body of `position` with `turns` in place of the question's turn."""
    messages = [*position.messages[: position.turn], *turns, *position.messages[position.turn + 1 :]]
    return {**position.body, call.provider.messages_field: messages}

"""The strategies in order of preference. The first one whose candidate can be proved wins.

A new strategy is a file in this folder and a row here. What a plan is called may differ: `messages` yields `wrap`, too;
`flattened` and `as_one_text` yield `text`, and `as_one_turn` what the strategy that it asks is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Candidate, Strategy
from gateway.delivery.strategies.messages import messages
from gateway.delivery.strategies.splice import splice
from gateway.delivery.strategies.text import NAMES, ONE_TEXT, as_one_text, flattened, text
from gateway.delivery.target import TargetTurns, Turn, parts_of, text_of
from gateway.providers.base import Provider


def as_one_turn(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    """Deliver several turns with media as the parts of one, by any strategy that takes media.

    The turns are written as text, as `as_one_text` does, and each medium stays in its place between the texts.
    """
    parts = _parts(target.provider, target.turns) if len(target.turns) > 1 else None
    if parts is None or len(parts) == 1:
        return  # a conversation of texts is one text (`as_one_text`)
    turn = {"role": "user", target.provider.content_field: parts}
    # The last text has the last turn's words. An earlier text may be equal to the question, and is not it.
    last = max(index for index, part in enumerate(parts) if text_of(target.provider, part) is not None)
    text = text_of(target.provider, parts[last]) or ""
    one = TargetTurns(target.provider, [turn], target.question, 0, last, text)
    for strategy in (messages, splice):
        for candidate in strategy(call, one):
            yield replace(candidate, notices=(*candidate.notices, ONE_TEXT))


def _parts(provider: Provider, turns: list[Turn]) -> list[Any] | None:
    """Return the turns as one turn's parts; None if there are tool calls or results, which have no place there."""
    parts: list[Any] = []
    lines: list[str] = []
    for turn in turns:
        role = provider.role_of(turn)
        if role not in NAMES or set(turn) - {"role", provider.content_field}:
            return None
        start = f"{NAMES[role]}:"
        for part in parts_of(provider, turn):
            text = text_of(provider, part)
            if text is not None:
                lines.append(start + text)
            elif role != "user" or provider.is_tool_result(part):
                return None
            else:
                lines += [start] if start else []
                parts += [provider.text_part("\n".join(lines)), part] if lines else [part]
                lines = []
            start = ""
    return [*parts, provider.text_part("\n".join(lines))] if lines else parts


STRATEGIES: tuple[Strategy, ...] = (messages, text, splice, flattened, as_one_text, as_one_turn)

TURN_STRATEGIES: tuple[Strategy, ...] = (messages, text, splice)
"""Those that keep turns apart."""

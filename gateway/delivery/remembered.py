"""Turns of the agent's memory that the gateway sends in place of the agent's own replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.delivery.escaping import unescape
from gateway.mlcommons.memory_form import show_original, show_readable
from gateway.notices import Notice
from gateway.providers.base import ProviderRequest
from gateway.unified.model import Message, Text

Remembered = Sequence[tuple[str, str]]
"""(question, answer) pairs, oldest first. The answer is "" if the run failed or is unfinished."""
_PLACE = "memory["


def remembered_turns(remembered: Remembered) -> tuple[Message, ...]:
    """Return the turns that have an answer, as an agent recalls them, as messages of a conversation."""
    return tuple(
        Message(role, (Text(unescape(text), at),), at)
        for index, pair in enumerate(remembered)
        if pair[1]
        for role, text in zip(("user", "assistant"), pair, strict=True)
        for at in (f"{_PLACE}{index}].{role}",)
    )


def is_settled(remembered: Remembered) -> bool:
    """Return True if every turn has its answer.

    The cluster answers a run that failed before it stores the error's text as the turn's answer, which may hold
    placeholders. Until then nothing is known of what an agent would replay (docs/internals/facts.md).
    """
    return all(answer for _, answer in remembered)


def is_replayed_exactly(stored: str) -> bool:
    """Return True if what the agent replays of `stored` is what was written: the form for memory alters braces."""
    return show_readable(stored) == show_original(stored)


def notices_of_remembered(request: ProviderRequest) -> Iterator[Notice]:
    """Yield what the mapping of a conversation with such turns changed in them.

    The other notices are those of the conversation without them. With them, a system turn that the client put first
    counts as moved.
    """
    return (notice for notice in request.notices if notice.place.startswith(_PLACE))

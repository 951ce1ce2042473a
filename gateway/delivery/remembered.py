"""Turns of the agent's memory that the gateway sends in place of the agent's own replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.delivery.escaping import unescape
from gateway.notices import Notice
from gateway.providers.base import ProviderRequest
from gateway.unified.model import Message, Text

Remembered = Sequence[tuple[str, str]]  # (question, answer) pairs, oldest first
_PLACE = "memory["


def remembered_turns(remembered: Remembered) -> tuple[Message, ...]:
    """Return the turns as messages of a conversation."""
    return tuple(
        Message(role, (Text(unescape(text), at),), at)
        for index, pair in enumerate(remembered)
        for role, text in zip(("user", "assistant"), pair, strict=True)
        for at in (f"{_PLACE}{index}].{role}",)
    )


def notices_of_remembered(request: ProviderRequest) -> Iterator[Notice]:
    """Yield what the mapping of a conversation with such turns changed in them.

    The other notices are those of the conversation without them. With them, a system turn that the client put first
    counts as moved.
    """
    return (notice for notice in request.notices if notice.place.startswith(_PLACE))

"""Places in an agent's first LLM call: of the question, and of the system text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.delivery.slots import QUESTION
from gateway.delivery.trees import Path
from gateway.providers.base import Provider


@dataclass(frozen=True, slots=True)
class SystemSlot:
    """The quoted variable of the system text. path: its place in the body; before, after: the text around it there."""

    name: str
    path: Path
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class QuestionPosition:
    """Where the question is in a rendered call.

    body: the call rendered with `QUESTION`; messages: its turns in the provider's normal form.
    turn, part: the part that contains the question; text: that part's text with `QUESTION` in it.
    """

    body: dict[str, Any]
    messages: list[dict[str, Any]]
    turn: int
    part: int
    text: str

    @property
    def is_bare(self) -> bool:
        """True if the agent puts nothing around the question."""
        return self.text == QUESTION

    @property
    def is_blank(self) -> bool:
        """True if the agent puts nothing but white space around the question."""
        return not self.text.replace(QUESTION, "").strip()

    def has_own_parts(self, provider: Provider) -> bool:
        """Return True if the agent puts other parts beside the one with the question."""
        return len(self.messages[self.turn][provider.content_field]) > 1

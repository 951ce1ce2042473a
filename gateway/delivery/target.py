"""What must arrive: the mapped turns, and the one text in them that is the question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.delivery.escaping import Concat
from gateway.providers.base import Provider

Turn = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TargetTurns:
    """Turns in the provider's form, and where the question stands among them.

    turns: as `Provider.map` wrote them. turn, part: the last text part after the last assistant turn that is the
    user's own text, else the last text part there, None when there is none; text: its text. question: what memory is
    to store.
    """

    provider: Provider
    turns: list[Turn]
    question: str
    turn: int | None
    part: int | None
    text: str

    @classmethod
    def of(cls, provider: Provider, turns: list[Turn], question: str) -> TargetTurns:
        """The target of mapped `turns`."""
        found = list(_texts_after_answer(provider, turns))
        # A document that is sent as text is a text part, too, but not what memory should store.
        own = [place for place in found if _stands_in(place[2], question)]
        for turn, part, text in own[:1] or found[:1]:
            return cls(provider, turns, question, turn, part, text)
        return cls(provider, turns, question, None, None, "")

    def with_text_part(self, text: str = "") -> TargetTurns | None:
        """The same target with `text` at its end for the agent's prompt to stand around; None if it can't be."""
        if self.turn is not None:
            return self
        if not self.turns or self.turns[-1].get("role") != "user":
            return None
        field = self.provider.content_field
        parts = parts_of(self.provider, self.turns[-1])
        last = {**self.turns[-1], field: [*parts, self.provider.text_part(text)]}
        return replace(self, turns=[*self.turns[:-1], last], turn=len(self.turns) - 1, part=len(parts), text=text)

    def turns_with(
        self, text: str | Concat, around: tuple[list[Any], list[Any]] = ([], []), last: Mapping[str, Any] | None = None
    ) -> list[Turn]:
        """The turns with `text` for the question, and the agent's own parts before and behind that turn's parts.

        last: members that the agent's own turn has beside role and content.
        """
        if self.turn is None or self.part is None:
            return self.turns
        field = self.provider.content_field
        parts = list(parts_of(self.provider, self.turns[self.turn]))
        parts[self.part] = self.with_text(parts[self.part], text)
        turn = {**(last or {}), **self.turns[self.turn], field: [*around[0], *parts, *around[1]]}
        return [*self.turns[: self.turn], turn, *self.turns[self.turn + 1 :]]

    def with_text(self, part: Any, text: str | Concat) -> Any:
        """The text part `part` with other words, its members in the same order."""
        words = self.provider.text_part("")
        name = next(name for name, value in words.items() if value == "")
        return {**part, name: text}


def _texts_after_answer(provider: Provider, turns: list[Turn]) -> Iterator[tuple[int, int, str]]:
    """Turn, part and text of the user's text parts after the last assistant turn, the last one first."""
    for index in range(len(turns) - 1, -1, -1):
        if turns[index].get("role") in ("assistant", "model"):
            return
        if turns[index].get("role") != "user":
            continue
        parts = parts_of(provider, turns[index])
        for part in range(len(parts) - 1, -1, -1):
            if (text := text_of(provider, parts[part])) is not None:
                yield index, part, text


def _stands_in(text: str, question: str) -> bool:
    """Return True if `text` is the question or one of the texts that it was joined from."""
    return text == question or f"\n{text.strip()}\n" in f"\n{question}\n"


def parts_of(provider: Provider, turn: Turn) -> list[Any]:
    """A turn's content parts; a plain string counts as one text part."""
    content = turn.get(provider.content_field)
    if isinstance(content, str):
        return [provider.text_part(content)]
    return content if isinstance(content, list) else []


def text_of(provider: Provider, part: Any) -> str | None:
    """The text of a text part; None for any other part."""
    if not isinstance(part, dict):
        return None
    for value in part.values():
        if isinstance(value, str) and part == provider.text_part(value):
            return value
    return None

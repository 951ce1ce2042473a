"""What must arrive: the mapped turns, and the text among them that is the question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.delivery.escaping import Concat, dump
from gateway.mlcommons.memory_form import is_storable, memory_form
from gateway.providers.base import Provider

Turn = dict[str, Any]


class Question(msgspec.Struct, frozen=True):
    """The question of one request, and what the agent's memory stores of it.

    text: as the client wrote it. readable: with a note for each block that is not text. turn_id: unique for all time.
    """

    text: str
    readable: str
    turn_id: str

    @property
    def helper(self) -> str:
        """The name of the helper parameter, which no other request ever sends."""
        return f"gw_{self.turn_id}"

    @property
    def form(self) -> str:
        """`parameters.question` where `helper` carries what must arrive."""
        return memory_form(self.helper, self.readable)

    @property
    def stored(self) -> str:
        """`parameters.question` where other parameters carry what must arrive: plain text, if memory can hold it."""
        plain = (text for text in (self.text, self.readable) if text.strip() and is_storable(text))
        return next(plain, self.form)


class TargetTurns(msgspec.Struct, frozen=True):
    """Turns in the provider's form, and where the question is among them.

    turns: as `Provider.map` returned them. turn, part: the last text part after the last assistant turn that is the
    user's own text, or else the last text part there; None if there is none. text: its text.
    """

    provider: Provider
    turns: list[Turn]
    question: Question
    turn: int | None
    part: int | None
    text: str

    @classmethod
    def of(cls, provider: Provider, turns: list[Turn], question: Question) -> TargetTurns:
        """Create the target for mapped `turns`."""
        found = list(_texts_after_answer(provider, turns))
        # A document sent as text is a text part too, but memory should not store it.
        own = [place for place in found if _is_part_of(place[2], question.text)]
        for turn, part, text in own[:1] or found[:1]:
            return cls(provider, turns, question, turn, part, text)
        return cls(provider, turns, question, None, None, "")

    def with_text_part(self, text: str = "") -> TargetTurns | None:
        """Return the target with `text` as its last part, for the agent's prompt; None if no user turn is last."""
        if self.turn is not None:
            return self
        if not self.turns or self.provider.role_of(self.turns[-1]) != "user":
            return None
        field = self.provider.content_field
        parts = parts_of(self.provider, self.turns[-1])
        last = {**self.turns[-1], field: [*parts, self.provider.text_part(text)]}
        return replace(self, turns=[*self.turns[:-1], last], turn=len(self.turns) - 1, part=len(parts), text=text)

    def with_earlier_text(self) -> TargetTurns | None:
        """Return the target with the user's last text for the question, wherever it is; None if there is none.

        For a conversation that ends with the assistant or a tool: the agent's prompt belongs around what was asked.
        """
        for index in range(len(self.turns) - 1, -1, -1):
            parts = parts_of(self.provider, self.turns[index])
            for part in range(len(parts) - 1, -1, -1):
                text = text_of(self.provider, parts[part])
                if text is not None and self.provider.role_of(self.turns[index]) == "user":
                    return replace(self, turn=index, part=part, text=text)
        return None

    def turns_with(
        self, text: str | Concat, around: tuple[list[Any], list[Any]] = ([], []), last: Mapping[str, Any] | None = None
    ) -> list[Turn]:
        """Return the turns with `text` for the question, and the agent's own parts before and after that turn's parts.

        last: other members of the agent's own turn than role and content.
        """
        if self.turn is None or self.part is None:
            return self.turns
        field = self.provider.content_field
        parts = list(parts_of(self.provider, self.turns[self.turn]))
        parts[self.part] = self.with_text(parts[self.part], text)
        turn = {**(last or {}), **self.turns[self.turn], field: [*around[0], *parts, *around[1]]}
        return [*self.turns[: self.turn], turn, *self.turns[self.turn + 1 :]]

    def with_text(self, part: Any, text: str | Concat) -> Any:
        """Return the text part `part` with another text, its members in the same order."""
        empty = self.provider.text_part("")
        name = next(name for name, value in empty.items() if value == "")
        return {**part, name: text}


def _texts_after_answer(provider: Provider, turns: list[Turn]) -> Iterator[tuple[int, int, str]]:
    """Yield turn, part and text of the user's text parts after the last assistant turn, the last one first."""
    for index in range(len(turns) - 1, -1, -1):
        role = provider.role_of(turns[index])
        if role == "assistant":
            return
        if role != "user":
            continue
        parts = parts_of(provider, turns[index])
        for part in range(len(parts) - 1, -1, -1):
            if (text := text_of(provider, parts[part])) is not None:
                yield index, part, text


_ROLE_NAME = re.compile(r"\A\[[^\]]*\]: ")
"""What the mapping puts before the text of an unknown role (`gateway.unified.roles`)."""


def _is_part_of(text: str, question: str) -> bool:
    """Return True if `text`, a role's name before it aside, is the question or one of the texts it was joined from."""
    texts = (text, _ROLE_NAME.sub("", text))
    return text == question or any(f"\n{own.strip()}\n" in f"\n{question}\n" for own in texts)


def written(provider: Provider, turns: Sequence[Turn]) -> list[str]:
    """Return each turn as JSON, in the spelling that the most servers take."""
    return [dump(provider.simplest(turn)) for turn in turns]


def parts_of(provider: Provider, turn: Turn) -> list[Any]:
    """Return a turn's content parts; a plain string counts as one text part."""
    content = turn.get(provider.content_field)
    if isinstance(content, str):
        return [provider.text_part(content)]
    return content if isinstance(content, list) else []


def text_of(provider: Provider, part: Any) -> str | None:
    """Return the text of a text part, which a template may spell in its own way; None for any other part."""
    if not isinstance(part, dict):
        return None
    for spelling in (part, *(plain for plain in _canonical(provider, part) if plain != part)):
        for value in spelling.values():
            if isinstance(value, str) and spelling == provider.text_part(value):
                return value
    return None


def _canonical(provider: Provider, part: dict[str, Any]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = provider.canonical([{provider.content_field: [part]}])[0][provider.content_field]
    return content

"""The template's user turn as JSON, to which the spliced turns are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.delivery.call_model import CallModel
from gateway.delivery.escaping import dump
from gateway.delivery.positions import QuestionPosition
from gateway.delivery.slots import QUESTION
from gateway.delivery.target import Turn, parts_of, text_of
from gateway.delivery.trees import locate
from gateway.providers.base import Provider


class Shape:
    """The template's user turn as JSON: what is before and after its text, and the order of its members."""

    def __init__(self, provider: Provider, turn: Turn, part: int = 0) -> None:
        self.provider = provider
        self.turn = turn
        self.part = part
        self.field = provider.content_field
        self.is_string = isinstance(turn.get(self.field), str)
        self.before, _, self.after = dump(turn).partition(QUESTION)

    @classmethod
    def of(cls, call: CallModel, position: QuestionPosition) -> Shape:
        """Return the shape of the turn that contains the question, as the template writes it."""
        turn = position.body[call.provider.messages_field][position.turn]
        path = next(iter(locate(turn, QUESTION)))
        bare = dict(turn)
        content = bare[call.provider.content_field]
        # Only the question's place matters here, not the agent's prompt around it.
        if isinstance(content, str):
            bare[call.provider.content_field] = QUESTION
        else:
            part = {**content[position.part], str(path[-1]): QUESTION}
            parts = [*content[: position.part], part, *content[position.part + 1 :]]
            bare[call.provider.content_field] = parts
        return cls(call.provider, bare, position.part)

    @property
    def own_parts(self) -> tuple[list[Any], list[Any]]:
        """The agent's own parts before and after the one that contains the question."""
        if self.is_string:
            return [], []
        return self.turn[self.field][: self.part], self.turn[self.field][self.part + 1 :]

    def starts(self, turn: Turn) -> bool:
        """Return True if the slot's turn can start with the first part of `turn`."""
        parts = parts_of(self.provider, turn)
        return (
            self.provider.role_of(turn) == self.provider.role_of(self.turn)
            and bool(parts)
            and self._text(parts[0]) is not None
        )

    def fragment(self, turns: list[Turn]) -> str | None:
        """Return `turns` as JSON without the template's own ends; None if they don't fit."""
        text = ",".join(self._write(turns))
        if not (text.startswith(self.before) and text.endswith(self.after)):
            return None
        if len(text) < len(self.before) + len(self.after):
            return None
        return text[len(self.before) : len(text) - len(self.after)]

    def between(self, parts: list[Any]) -> str:
        """Return JSON that closes the slot's text, contains `parts`, and opens a text that the template closes."""
        if self.is_string:
            turn = [dump({**self.turn, self.field: parts})] if parts else []
            return ",".join([self.after, *turn, self.before])
        empty = dump(self._ordered(self.provider.text_part(QUESTION)))
        start, _, end = empty.partition(QUESTION)
        return ",".join([end, *(dump(self._ordered(part)) for part in parts), start])

    def _write(self, turns: list[Turn]) -> Iterator[str]:
        for index, turn in enumerate(turns):
            parts = parts_of(self.provider, turn)
            if self.is_string and index == 0:
                first = self._text(parts[0]) if parts else None
                if first is None:
                    yield dump(turn)
                    continue
                yield dump({**self.turn, self.field: first})
                rest = {self.field: [*parts[1:]], **{k: v for k, v in turn.items() if k != self.field}}
                if parts[1:]:
                    yield dump(self.provider.simplest(rest))
            elif self.is_string:
                # A turn whose last member is its role fits a slot whose own turn ends in a string.
                simplest = self.provider.simplest(turn)
                yield dump(dict(sorted(simplest.items(), key=lambda member: member[0] == "role")))
            else:
                ordered = self._members_ordered(turn)
                if parts:
                    ordered[self.field] = [self._ordered(part) for part in parts]
                yield dump(ordered)

    def _members_ordered(self, turn: Turn) -> Turn:
        """Return the turn with its members in the template's order, any others before the last of them."""
        *first, last = (name for name in self.turn if name in turn)
        others = [name for name in turn if name not in self.turn]
        if self.provider.role_of({}) == self.provider.role_of(turn):
            others = [name for name in others if name != "role"]  # the template leaves out the user's role
        return {name: turn[name] for name in (*first, *others, last)}

    def _text(self, part: Any) -> str | None:
        return text_of(self.provider, part)

    def _ordered(self, part: Any) -> Any:
        """Return a text part with its members in the template's order."""
        if self._text(part) is None or not isinstance(part, dict):
            return part
        like = self.turn[self.field][self.part]
        return {name: part[name] for name in like if name in part} if set(like) == set(part) else part

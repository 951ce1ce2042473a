"""Where system text can go: among the messages, into the template's system slot, or into the first user turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.delivery.call_model import CallModel, SystemSlot
from gateway.delivery.candidate import System
from gateway.delivery.escaping import is_plain
from gateway.delivery.question_placements import reference_to
from gateway.delivery.target import Turn, parts_of, text_of
from gateway.delivery.trees import value_at, with_value
from gateway.notices import Notice
from gateway.providers.base import Provider, ProviderRequest
from gateway.unified.model import AgentInput, Message, Text
from gateway.unified.roles import meaning_of

_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class SystemPlacement:
    """The turns that are left to say, and how the system text is said."""

    turns: list[Turn]
    system: System = field(default_factory=System)


def placements(call: CallModel, request: ProviderRequest) -> Iterator[SystemPlacement]:
    """The ways to say the system text of a mapped conversation without folding it, best first."""
    provider = call.provider
    leading, turns = _leading(provider, request.messages)
    texts = [*request.system, *leading]
    if not texts:
        yield SystemPlacement(request.messages)
        return
    slot = call.system_slot
    if slot is not None:
        for parameters in _appended(call, slot.name, "\n\n".join(texts)):
            yield SystemPlacement(turns, System(parameters, _Apply(slot, "\n\n".join(texts))))
    if not request.system:
        yield SystemPlacement(request.messages)


def _leading(provider: Provider, turns: list[Turn]) -> tuple[list[str], list[Turn]]:
    """System texts at the start of turns that keep them among the messages, and the turns behind."""
    texts: list[str] = []
    for index, turn in enumerate(turns):
        parts = [text_of(provider, part) for part in parts_of(provider, turn)]
        if turn.get("role") not in _SYSTEM_ROLES or None in parts:
            return texts, turns[index:]
        texts += [part for part in parts if part is not None]
    return texts, []


def _appended(call: CallModel, name: str, text: str) -> Iterator[dict[str, str]]:
    current = call.base_parameters.get(name)
    start = f"{current}\n\n" if current else ""
    if is_plain(text):
        yield {call.key(name): start + text}
    reference, helpers = reference_to(call, "gw_y", text, "")
    yield {call.key(name): start + reference, **helpers}


@dataclass(frozen=True, slots=True)
class _Apply:
    """Puts the joined system text where the template's slot has it."""

    slot: SystemSlot
    text: str

    def __call__(self, body: Any) -> Any:
        before, after = self.slot.before, self.slot.after
        current = value_at(body, self.slot.path)
        if not isinstance(current, str):
            return None
        own = current[len(before) : len(current) - len(after)]
        joined = f"{own}\n\n{self.text}" if own else self.text
        return with_value(body, self.slot.path, before + joined + after)


def fold_system(agent_input: AgentInput, roles: Mapping[str, str]) -> tuple[AgentInput, Notice] | None:
    """The conversation with its system texts at the start of the first user turn; None where that can't be.

    roles: the operator's role table (`MappingOptions.roles`).
    """
    texts: list[Text] = []
    rest: list[Message] = []
    for message in agent_input.messages:
        if meaning_of(message, roles).is_system:
            texts += [block for block in message.content if isinstance(block, Text)]
        else:
            rest.append(message)
    meanings = [meaning_of(message, roles) for message in rest]
    first = next((at for at, role in enumerate(meanings) if role.standard == "user" and role.is_known), None)
    if not texts or first is None:
        return None
    rest[first] = replace(rest[first], content=(*texts, *rest[first].content))
    reason = "the template has no place for system text, so it stands at the start of the first user turn"
    return replace(agent_input, messages=tuple(rest)), Notice("SYSTEM_FOLDED", reason, texts[0].at)

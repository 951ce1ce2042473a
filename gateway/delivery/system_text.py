"""Where system text can go: the messages, the template's system slot, or the first user turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Addition
from gateway.delivery.escaping import is_plain
from gateway.delivery.question_placements import reference_to
from gateway.delivery.slots import SystemSlot
from gateway.delivery.target import Turn, parts_of, text_of
from gateway.delivery.trees import value_at, with_value
from gateway.providers.base import Provider, ProviderRequest
from gateway.unified.model import AgentInput, Message, Text
from gateway.unified.roles import meaning_of

_SYSTEM_ROLES = frozenset({"system", "developer"})


class SystemPlacement(msgspec.Struct, frozen=True):
    """Remaining turns, and how the system text is delivered."""

    turns: list[Turn]
    system: Addition = msgspec.field(default_factory=Addition)


def placements(call: CallModel, request: ProviderRequest) -> Iterator[SystemPlacement]:
    """Yield placements of a mapped conversation's system text outside the user's turn, the best one first."""
    provider = call.provider
    leading, turns = _leading(provider, request.messages)
    texts = [*request.system, *leading]
    if not texts:
        yield SystemPlacement(request.messages)
        return
    slot = call.system_slot
    if slot is not None:
        for parameters in _appended(call, slot.name, "\n\n".join(texts)):
            yield SystemPlacement(turns, Addition(parameters, _Apply(slot, "\n\n".join(texts))))
    if not request.system:
        yield SystemPlacement(request.messages)


def _leading(provider: Provider, turns: list[Turn]) -> tuple[list[str], list[Turn]]:
    """Split turns into the texts of leading system turns, and the remaining turns."""
    texts: list[str] = []
    for index, turn in enumerate(turns):
        parts = [text_of(provider, part) for part in parts_of(provider, turn)]
        if provider.role_of(turn) not in _SYSTEM_ROLES or None in parts:
            return texts, turns[index:]
        texts += [part for part in parts if part is not None]
    return texts, []


def _appended(call: CallModel, name: str, text: str) -> Iterator[dict[str, str]]:
    current = _current(call, name)
    start = f"{current}\n\n" if current else ""
    if is_plain(text):
        yield {call.key(name): start + text}
    reference, helpers = reference_to(call, "gw_y", text, "")
    yield {call.key(name): start + reference, **helpers}


def _current(call: CallModel, name: str) -> str:
    """Return the value of a parameter as a request sends it: a connector's own is never escaped, a request's is."""
    own = call.base_parameters.get(name, "")
    if name in call.values:
        return own
    try:
        text = json.loads(f'"{own}"', strict=False)
    except ValueError:
        return own
    return str(text)


class _Apply(msgspec.Struct, frozen=True):
    """Appends the system text to the text of the template's slot."""

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
    """Move the system texts to the start of the first user turn; return None if there are none, or no such turn.

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
    reason = "no place for system text is known, so it is at the start of the first user turn"
    return replace(agent_input, messages=tuple(rest)), Notice("SYSTEM_FOLDED", reason, texts[0].at)

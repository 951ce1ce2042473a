"""Declares the tools of earlier calls beside the messages, for APIs that take no tool blocks without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Addition
from gateway.delivery.escaping import dump
from gateway.delivery.question_placements import raw_names
from gateway.delivery.target import Turn
from gateway.delivery.template_change import TOOLS_MEMBER, TOOLS_VALUE
from gateway.delivery.template_text import UnreadableTemplate, member_slots
from gateway.mlcommons.template import PREFIX, SUFFIX
from gateway.notices import Notice

_DECLARED = Notice("TOOLS_DECLARED", "the tools of earlier calls are declared as not available, as the API requires it")


def declarations(call: CallModel, messages: list[Turn]) -> Iterator[Addition]:
    """Yield ways to declare the tools of the calls in `messages`: one that adds nothing if that is not needed."""
    member = call.provider.tools_member
    value = call.provider.tool_declarations(messages) if member else None
    body = call.render(call.with_question({})) if value is not None else None
    if value is None or (isinstance(body, dict) and member in body):
        yield Addition()
        return
    try:
        slots = member_slots(call.model.connector.request_body)
    except (UnreadableTemplate, RecursionError):
        return
    # If an agent can't be called without messages, every LLM tool of a flow gets them, and needs the tools as well.
    key = call.key if call.legacy_body is not None else str
    for slot in slots:
        if call.base_parameters.get(slot):
            continue
        if f'"{member}"' in call.model.connector.parameters.get(TOOLS_MEMBER, ""):
            # The cluster escapes a request's parameters, but not those of the connector.
            reference = {key(slot): f"{PREFIX}{TOOLS_MEMBER}{SUFFIX}", key(TOOLS_VALUE): dump(value)}
            yield Addition(reference, _Declare(member, value), (_DECLARED,))
        elif call.inserts_raw(slot):
            text = f",{dump(member)}:{dump(value)}"
            names = raw_names(call, {slot: text}) if call.raw_parameters else {}
            yield Addition({key(slot): text, **names}, _Declare(member, value), (_DECLARED,))


@dataclass(frozen=True, slots=True)
class _Declare:
    """Adds the member that declares tools."""

    member: str
    value: Any

    def __call__(self, body: Any) -> Any:
        if not isinstance(body, dict) or self.member in body:
            return None
        return {**body, self.member: self.value}

"""A medium in the template's own part for one, which only the request's parameters can fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.delivery.call_model import CallModel
from gateway.delivery.slots import MARK, QUESTION
from gateway.delivery.strategies.neutral import TAIL, neutral_text
from gateway.notices import Notice
from gateway.providers.base import MappingOptions
from gateway.unified.model import AgentInput, InputType, Media, Message, Text
from gateway.unified.roles import meaning_of


@dataclass(frozen=True, slots=True)
class Filled:
    """Parameters that put a medium into the template's part, and the conversation without that medium."""

    parameters: Mapping[str, str]
    agent_input: AgentInput
    notices: tuple[Notice, ...]


def fill_media(call: CallModel, agent_input: AgentInput, options: MappingOptions) -> Filled | None:
    """Find a medium that the part takes, in the first turn that has any; None if there is none.

    The part is before all texts, so a medium of a later turn would come before those of earlier ones. Only for an agent
    that can't be called without that part's parameters.
    """
    if call.legacy_body is not None:
        return None
    for index, message in enumerate(agent_input.messages):
        media = [block for block in message.content if isinstance(block, Media)]
        if not media:
            continue
        if meaning_of(message, options.roles).standard != "user":
            return None
        parts, words = _own_parts(call)
        for medium in media:
            for part in parts:
                if values := _values(part, _mapped(call, medium, options), words):
                    return _filled(agent_input, index, medium, values)
        return None
    return None


def _filled(agent_input: AgentInput, index: int, medium: Media, values: Mapping[str, str]) -> Filled:
    """Return the conversation without `medium`, and with a neutral text where its turn has nothing else."""
    messages = list(agent_input.messages)
    rest = tuple(block for block in messages[index].content if block is not medium)
    messages[index] = replace(messages[index], content=rest or (Text(TAIL, medium.at),))
    notice = Notice("MEDIA_IN_SLOT", f"the {medium.kind} is in the template's own place for it", medium.at)
    notices = (notice,) if rest else (notice, neutral_text("last"))
    return Filled(values, replace(agent_input, messages=tuple(messages)), notices)


def _own_parts(call: CallModel) -> tuple[list[Any], dict[str, str]]:
    """Return the parts beside the question's, with a word for each parameter that nobody sends, and words → names."""
    names = [name for name in call.names if name != "question" and name not in call.base_parameters]
    words = {name: f"{MARK}{index}x" for index, name in enumerate(names)}
    position = call.position(call.probe({"question": QUESTION, **words}))
    if position is None:
        return [], {}
    parts = position.messages[position.turn][call.provider.content_field]
    own = [part for index, part in enumerate(parts) if index != position.part]
    return own, {word: name for name, word in words.items()}


def _mapped(call: CallModel, medium: Media, options: MappingOptions) -> Any:
    """Return the provider's part for `medium`, in its normal form."""
    message = Message("user", (Text("x", medium.at), medium), medium.at)
    request = call.provider.map(AgentInput(InputType.MESSAGES, (message,)), options)
    return call.provider.canonical(request.messages)[-1][call.provider.content_field][-1]


def _values(part: Any, wanted: Any, words: Mapping[str, str]) -> dict[str, str] | None:
    """Return the parameters with which `part` is `wanted`; None if nothing makes it so. words: word → parameter."""
    match part, wanted:
        case str(), str():
            word = next((word for word in words if word in part), None)
            if word is None:
                return {} if part == wanted else None
            before, _, after = part.partition(word)
            fits = wanted.startswith(before) and wanted.endswith(after) and len(wanted) > len(before) + len(after)
            return {words[word]: wanted[len(before) : len(wanted) - len(after)]} if fits else None
        case dict(), dict() if part.keys() == wanted.keys():
            found = [_values(part[name], wanted[name], words) for name in part]
            values = {name: value for one in found for name, value in (one or {}).items()}
            return values if None not in found else None
    return {} if part == wanted else None

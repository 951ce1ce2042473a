"""Plans for plain texts: proved once for an agent with a specimen text, then reused for every other plain text.

A plan depends on a text only through the signs that have a meaning for the cluster: ``$``, the braces and ``:-`` of
placeholders, and an opening bracket at the start, which may be JSON. A text without these signs differs from the
specimen only in characters that JSON writes unchanged or escapes, and the specimen has all kinds of them: a quote, a
backslash, a control character, a character beyond ASCII. So if the specimen was proved to arrive, a plain text in its
place arrives too:

- Escaped by the gateway or the cluster, at any depth, it is the same text after the JSON is parsed.
- Inside a prompt, it closes, opens and defaults no placeholder, whatever text is around it.
- It contains no probe word, so the proof would have found the same places.

The turn's id is a specimen, too.

Anything else is planned separately: a conversation, media, remembered turns, a text with such signs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.delivery.call_model import CallModelCache
from gateway.delivery.escaping import raw_text
from gateway.delivery.plan import Plan, Remembered, plan
from gateway.delivery.proof import Proved
from gateway.delivery.slots import MARK
from gateway.delivery.trees import Path, locate, with_value
from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.template import BLANK
from gateway.providers.base import MappingOptions, Provider, ProviderRequest
from gateway.recent import Recent
from gateway.unified.model import AgentInput, Message, Text
from gateway.unified.roles import meaning_of

# From Unicode's private use area, so that they don't occur in an agent's own text.
SPECIMEN = '\uf8f1"\\\n\uf8f2'
_ESCAPED = raw_text(SPECIMEN)
SPECIMEN_TURN = f"{MARK}turn"
_TRACE = re.compile(r"[\uf8f1\uf8f2]|\\u[fF]8[fF][12]")
_FIRST, _LAST = SPECIMEN[0], SPECIMEN[-1]
_RARE = MARK[0]

_OPENING = ("", "[")
_FAULTS = frozenset({"AGENT_NOT_CALLABLE", "AGENT_TOO_LARGE", "PROVIDER_UNKNOWN"})
"""Codes of problems that an agent has with every text: they are cached like a plan."""


class _SpecimenPlan(msgspec.Struct, frozen=True):
    """The plan for the specimen, None if it can't be reused for another text.

    places: where the specimen is in the provider's messages. fault: why no text at all can be delivered.
    """

    plan: Plan | None
    places: tuple[Path, ...] = ()
    fault: tuple[Problem, ...] = ()


class PlanCache:
    """Plans for one agent, and reuses what does not depend on the text.

    Its owner stores it with the profile and drops the two together.
    """

    MAX_ENTRIES = 16

    def __init__(self, profile: AgentProfile) -> None:
        self.profile = profile
        self._call_models = CallModelCache(profile)
        self._specimens: Recent[_SpecimenPlan] = Recent(self.MAX_ENTRIES)

    def plan(
        self,
        provider: Provider,
        agent_input: AgentInput,
        params: Mapping[str, str],
        options: MappingOptions,
        turn_id: str,
        remembered: Remembered = (),
    ) -> Plan:
        """Return the plan of `plan`, without a new proof if a text of the same kind was proved, or can't be.

        Raises:
            UndeliverableContent: as `plan`.
        """
        text = None if remembered or agent_input.tools else _plain_text(agent_input, options)
        if text is not None and sum(map(len, params.values())) <= CallModelCache.MAX_LENGTH:
            specimen = self._of_specimen(provider, agent_input, params, options)
            if specimen.plan is not None:
                return _with_text(specimen.plan, specimen.places, text, turn_id)
            if specimen.fault:
                raise UndeliverableContent.of(specimen.fault)
        return plan(self.profile, provider, agent_input, params, options, turn_id, remembered, self._call_models)

    def _of_specimen(
        self, provider: Provider, agent_input: AgentInput, params: Mapping[str, str], options: MappingOptions
    ) -> _SpecimenPlan:
        (message,) = agent_input.messages
        (block,) = message.content
        key = (provider.name, message.at, block.at, *sorted(params.items()))

        def prove() -> _SpecimenPlan:
            specimen = replace(message, content=(Text(SPECIMEN, block.at),))
            return self._of_text(provider, replace(agent_input, messages=(specimen,)), params, options)

        return self._specimens.get(key, prove)

    def _of_text(
        self, provider: Provider, specimen: AgentInput, params: Mapping[str, str], options: MappingOptions
    ) -> _SpecimenPlan:
        if any(_TRACE.search(value) or MARK in value for value in params.values()):
            return _SpecimenPlan(None)  # a text would be put into the caller's own parameters
        try:
            found = plan(self.profile, provider, specimen, params, options, SPECIMEN_TURN, (), self._call_models)
        except UndeliverableContent as error:
            # Otherwise the text itself is planned, so that the problems are about it.
            is_fault = all(problem.code in _FAULTS for problem in error.problems)
            return _SpecimenPlan(None, fault=error.problems if is_fault else ())
        request = found.request
        places = tuple(locate(request.messages, SPECIMEN)) if request is not None else ()
        rest = [_replaced(value, "", "") for value in found.parameters.values()]
        if request is not None:
            rest.append(repr(_put(request.messages, places, "")))
        return _SpecimenPlan(None if any(map(_TRACE.search, rest)) else found, places)


def is_plain_text(text: str) -> bool:
    """Return True if the specimen's proof is valid for `text`: it has no such sign and no probe word."""
    if "$" in text or "{" in text or "}" in text or (":" in text and ":-" in text):
        return False
    if (_RARE in text and MARK in text) or (not text.isascii() and (_FIRST in text or _LAST in text)):
        return False
    return text.lstrip(BLANK)[:1] not in _OPENING


def _plain_text(agent_input: AgentInput, options: MappingOptions) -> str | None:
    """Return the user's plain text if that is the whole input; None for any other input."""
    match agent_input.messages:
        case (Message(content=(Text(text=text),)) as message,) if is_plain_text(text):
            role = meaning_of(message, options.roles)
            return text if role.standard == "user" and not role.is_renamed else None
    return None


def _with_text(specimen: Plan, places: tuple[Path, ...], text: str, turn_id: str) -> Plan:
    escaped = raw_text(text)
    request = specimen.request
    if request is not None:
        request = ProviderRequest(_put(request.messages, places, text), request.system, request.notices)
    assert isinstance(specimen.parameters, Proved)
    parameters = specimen.parameters.with_texts(
        lambda value: _replaced(value, text, escaped).replace(SPECIMEN_TURN, turn_id)
    )
    return replace(specimen, parameters=parameters, question=text, request=request)


def _put(messages: Any, places: tuple[Path, ...], text: str) -> Any:
    for place in places:
        messages = with_value(messages, place, text)
    return messages


def _replaced(value: str, text: str, escaped: str) -> str:
    """Replace the specimen in `value` by `text`, and by `escaped` where it is the inside of a JSON string."""
    return value.replace(_ESCAPED, escaped).replace(SPECIMEN, text)

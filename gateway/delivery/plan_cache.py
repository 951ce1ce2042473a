"""Plans for plain texts: proved once for an agent with a specimen, then used for every text like it.

A plan never looks into a text but for signs that mean something to the cluster: ``$``, braces and ``:-`` of
placeholders, and an opening bracket at the start, which may be JSON. A text without them differs from the
specimen only in characters that JSON writes as they are or escapes, and the specimen has some of every such
kind: a quote, a backslash, a control character, one beyond ASCII. So wherever the specimen's proof shows it
arriving whole, the text in its place arrives whole:

- escaped by the gateway or by the cluster, at any depth, it is what it was once the JSON is parsed again;
- put between the words of a prompt, it closes, opens and defaults no placeholder, whatever stands around it;
- it holds no probe word, so the proof would have found the same places.

Anything else is planned anew: a conversation, media, remembered turns, a text with such signs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.delivery.call_model import CallModelCache
from gateway.delivery.escaping import raw_text
from gateway.delivery.plan import Plan, Remembered, plan
from gateway.delivery.slots import MARK
from gateway.delivery.trees import Path, locate, with_value
from gateway.errors import UndeliverableContent
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.template import BLANK
from gateway.providers.base import MappingOptions, Provider, ProviderRequest
from gateway.recent import Recent
from gateway.unified.model import AgentInput, Message, Text
from gateway.unified.roles import meaning_of

# From Unicode's private use area, so that no agent's own words are among them.
SPECIMEN = '\uf8f1"\\\n\uf8f2'
_CODED = raw_text(SPECIMEN)
_TRACE = re.compile(r"[\uf8f1\uf8f2]|\\u[fF]8[fF][12]")
_FIRST, _LAST = SPECIMEN[0], SPECIMEN[-1]

_OPENING = ("", "[")


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the planner said of the specimen; None where its plan can't be used for another text.

    places: where the specimen stands in the provider's messages.
    """

    plan: Plan | None
    places: tuple[Path, ...] = ()


class PlanCache:
    """Makes one agent's plans, and reuses what does not depend on the text.

    Its owner keeps it beside the profile and drops the two together.
    """

    MAX_ENTRIES = 16

    def __init__(self, profile: AgentProfile) -> None:
        self.profile = profile
        self._call_models = CallModelCache(profile)
        self._specimens: Recent[_Kept] = Recent(self.MAX_ENTRIES)

    def plan(
        self,
        provider: Provider,
        agent_input: AgentInput,
        params: Mapping[str, str],
        options: MappingOptions,
        remembered: Remembered = (),
    ) -> Plan:
        """Return the plan that `plan` makes, without its proof where a text of the same kind has one.

        Raises:
            UndeliverableContent: as `plan`.
        """
        text = None if remembered else _plain_text(agent_input, options)
        if text is not None and sum(map(len, params.values())) <= CallModelCache.MAX_LENGTH:
            kept = self._of_specimen(provider, agent_input, params, options)
            if kept.plan is not None:
                return _filled(kept.plan, kept.places, text)
        return plan(self.profile, provider, agent_input, params, options, remembered, self._call_models)

    def _of_specimen(
        self, provider: Provider, agent_input: AgentInput, params: Mapping[str, str], options: MappingOptions
    ) -> _Kept:
        (message,) = agent_input.messages
        (block,) = message.content
        key = (provider.name, message.at, block.at, *sorted(params.items()))

        def prove() -> _Kept:
            specimen = replace(message, content=(Text(SPECIMEN, block.at),))
            return _Kept(*self._usable(provider, replace(agent_input, messages=(specimen,)), params, options))

        return self._specimens.get(key, prove)

    def _usable(
        self, provider: Provider, specimen: AgentInput, params: Mapping[str, str], options: MappingOptions
    ) -> tuple[Plan | None, tuple[Path, ...]]:
        try:
            found = plan(self.profile, provider, specimen, params, options, (), self._call_models)
        except UndeliverableContent:
            return None, ()  # the text itself is planned, so that the problems are about it
        request = found.request
        places = tuple(locate(request.messages, SPECIMEN)) if request is not None else ()
        rest = [_replaced(value, "", "") for value in found.parameters.values()]
        if request is not None:
            rest.append(repr(_put(request.messages, places, "")))
        return (None if any(map(_TRACE.search, rest)) else found), places


def is_plain_text(text: str) -> bool:
    """Whether the specimen's proof holds for `text`: it has no sign and none of the words the planner probes with."""
    # One by one, as a loop over them would take longer than they do; `:` is found in no time, `:-` is not.
    if "$" in text or "{" in text or "}" in text or (":" in text and ":-" in text):
        return False
    if MARK in text or _FIRST in text or _LAST in text:
        return False
    return text.lstrip(BLANK)[:1] not in _OPENING


def _plain_text(agent_input: AgentInput, options: MappingOptions) -> str | None:
    """The one plain text of the user's that is all of the input; None for any other input."""
    match agent_input.messages:
        case (Message(content=(Text(text=text),)) as message,) if is_plain_text(text):
            role = meaning_of(message, options.roles)
            return text if role.standard == "user" and not role.is_renamed else None
    return None


def _filled(known: Plan, places: tuple[Path, ...], text: str) -> Plan:
    coded = raw_text(text)
    request = known.request
    if request is not None:
        request = ProviderRequest(_put(request.messages, places, text), request.system, request.notices)
    parameters = {name: _replaced(value, text, coded) for name, value in known.parameters.items()}
    return Plan(known.strategy, known.provider, parameters, text, request, known.notices)


def _put(messages: Any, places: tuple[Path, ...], text: str) -> Any:
    for place in places:
        messages = with_value(messages, place, text)
    return messages


def _replaced(value: str, text: str, coded: str) -> str:
    """`value` with `text` for the specimen, and `coded` where that stands as the inside of a JSON string."""
    return value.replace(_CODED, coded).replace(SPECIMEN, text)

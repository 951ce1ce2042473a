"""The generations of ML Commons clusters and agents, as a table.

Recorded on 2.19.0, 3.4.0, 3.5.0, 3.6.0 and 3.8.0, and tried on a build of 3.9 (docs/evidence/facts.md). A generation
decides only what can't be read from the template: which request fields an agent understands and how the cluster renders
parameters.
"""

from __future__ import annotations

from enum import Enum, StrEnum

import msgspec

from gateway.codes import Notice


class AgentType(StrEnum):
    """A type, by the name that ML Commons gives it."""

    FLOW = "flow"
    CONVERSATIONAL_FLOW = "conversational_flow"
    CONVERSATIONAL = "conversational"
    PLANNER = "plan_execute_and_reflect"
    CONVERSATIONAL_V2 = "conversational_v2"
    AG_UI = "ag_ui"

    @classmethod
    def of(cls, name: str) -> AgentType | None:
        """Return the type called `name`, in any case or spelling; None for one that is not known."""
        lower = name.lower()
        return next((type_ for type_ in cls if lower in (type_.value, _SPELLINGS.get(type_))), None)


_SPELLINGS = {AgentType.CONVERSATIONAL_V2: "conversational/v2"}

FLOW_TYPES = frozenset({AgentType.FLOW, AgentType.CONVERSATIONAL_FLOW})
"""Agents that run their tools in order and never their `llm` block."""


NEWEST_KNOWN = (3, 9)
"""The newest release that was tried. A later one is taken to behave as this one does, and that is reported."""

VERSION_NOT_KNOWN = "VERSION_NOT_KNOWN"
"""The code that reports it."""


class Generation(Enum):
    """How an agent takes its input.

    TEXT: 2.x, `parameters.question` only; only values that look like JSON are inserted into the body raw.
    FUNCTION_CALLING: 3.0–3.4, and every agent registered the old way on later clusters;
        `no_escape_params` exists, `_llm_interface` turns function calling on.
    UNIFIED_V1: 3.5+, registered with a `model` block: takes text as `input`, anything else by a workaround.
    UNIFIED_V2: 3.6+, `conversational_v2`: takes all of `input`, refuses `parameters.question`.
    """

    TEXT = "text"
    FUNCTION_CALLING = "function_calling"
    UNIFIED_V1 = "unified_v1"
    UNIFIED_V2 = "unified_v2"


class Abilities(msgspec.Struct, frozen=True):
    """What a cluster of a generation does with a request.

    native: the input types it takes as `input` when the unified API is on.
    raw_parameters: `no_escape_params` exists, so a parameter can be inserted unescaped (3.0).
    question: `parameters.question` works.
    """

    native: frozenset[str]
    raw_parameters: bool
    question: bool


_ALL = frozenset({"text", "content_blocks", "messages"})

ABILITIES: dict[Generation, Abilities] = {
    Generation.TEXT: Abilities(frozenset(), raw_parameters=False, question=True),
    Generation.FUNCTION_CALLING: Abilities(frozenset(), raw_parameters=True, question=True),
    Generation.UNIFIED_V1: Abilities(frozenset({"text"}), raw_parameters=True, question=True),
    Generation.UNIFIED_V2: Abilities(_ALL, raw_parameters=True, question=False),
}


def version_notice(version: tuple[int, ...]) -> Notice | None:
    """Return the notice of a version that is newer than any known one, else None."""
    if version[:2] <= NEWEST_KNOWN:
        return None
    found, newest = (".".join(map(str, numbers)) for numbers in (version, NEWEST_KNOWN))
    reason = f"this gateway does not know OpenSearch {found} and treats it as {newest}, the newest that it knows"
    return Notice(VERSION_NOT_KNOWN, reason, "cluster")


def generation_of(version: tuple[int, ...], agent_type: str, has_model_block: bool) -> Generation:
    """Return the generation of an agent, from the cluster's version and the response of `GET` agent.

    That response has a `model` for a unified agent, and none for a legacy one (docs/evidence/facts.md, "3.5, 3.6,
    3.8").
    """
    if AgentType.of(agent_type) is AgentType.CONVERSATIONAL_V2:
        return Generation.UNIFIED_V2
    if has_model_block:
        return Generation.UNIFIED_V1
    if version and version[0] < 3:
        return Generation.TEXT
    return Generation.FUNCTION_CALLING

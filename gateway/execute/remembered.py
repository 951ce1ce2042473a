"""Reads the turns that an agent will replay from its memory, so that a plan can take them into account."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.agents.errors import FailedLookup
from gateway.agents.memory import DEFAULT_LIMIT, MemoryReader
from gateway.delivery.plan import Remembered
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.notices import Notice
from gateway.unified.request import ExecuteRequest, parameters_as_strings

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")


async def read_remembered(
    memory: MemoryReader, profile: AgentProfile, request: ExecuteRequest, headers: Mapping[str, str]
) -> tuple[Remembered, tuple[Notice, ...]]:
    """Return what the agent will replay for the caller's `memory_id`, and a notice if the memory can't be read.

    Nothing is read for an agent without memory, or a request without `memory_id`. headers: the caller's.
    """
    memory_id = request.parameters.get("memory_id")
    if (
        profile.generation is Generation.UNIFIED_V2
        or not profile.memory_type
        or not isinstance(memory_id, str)
        or not memory_id
    ):
        return (), ()
    try:
        found = await memory.remembered(memory_id, headers, _limit(profile, request))
    except FailedLookup:
        return (), (Notice("MEMORY_NOT_READ", "the agent's memory could not be read, so its content was not checked"),)
    return found, ()


def _limit(profile: AgentProfile, request: ExecuteRequest) -> int | None:
    """Return how many turns the agent recalls; None for no limit.

    A unified agent (V1) counts messages, of which a turn has one or two, and recalls all with a limit of 0
    (docs/internals/facts.md, "What memory keeps from turn to turn"). The cluster refuses what is no integer of Java.
    """
    written = parameters_as_strings(request.parameters).get("message_history_limit", str(DEFAULT_LIMIT))
    if not _INTEGER.fullmatch(written):
        return DEFAULT_LIMIT
    limit = int(written)
    return None if limit == 0 and profile.generation is Generation.UNIFIED_V1 else limit

"""Reads the turns that an agent will replay from its memory, so that a plan can take them into account."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.agents.errors import FailedLookup
from gateway.agents.memory import DEFAULT_LIMIT, MemoryReader
from gateway.delivery.plan import Remembered
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.notices import Notice
from gateway.unified.request import ExecuteRequest


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
    limit = str(request.parameters.get("message_history_limit", DEFAULT_LIMIT))
    try:
        found = await memory.remembered(memory_id, headers, int(limit) if limit.isdigit() else DEFAULT_LIMIT)
    except FailedLookup:
        return (), (Notice("MEMORY_NOT_READ", "the agent's memory could not be read, so its content was not checked"),)
    return found, ()

"""Reads the turns that an agent will replay from its memory, so that a plan can take them into account."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.agents.errors import FailedLookup
from gateway.agents.memory import DEFAULT_LIMIT, MemoryReader
from gateway.delivery.plan import Remembered
from gateway.mlcommons.generations import AgentType, Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.notices import Notice
from gateway.unified.budget import SMALL_TEXT
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
    written = parameters_as_strings(request.parameters).get("message_history_limit", str(DEFAULT_LIMIT))
    if not _INTEGER.fullmatch(written):  # the cluster refuses what is no integer of Java
        return (), ()
    limit = _limit(profile, int(written))
    try:
        found = await memory.remembered(memory_id, headers, limit)
    except FailedLookup:
        return (), (Notice("MEMORY_NOT_READ", "the agent's memory could not be read, so its content was not checked"),)
    return (_newest(found, limit) if _counts_messages(profile) else found), ()


def is_short(remembered: Remembered) -> bool:
    """Return True if the turns can be planned with on the event loop."""
    return sum(len(text) for turn in remembered for text in turn) <= SMALL_TEXT


def _counts_messages(profile: AgentProfile) -> bool:
    """Return True for an agent that recalls messages, also the question of a turn that failed, and not whole turns."""
    return profile.generation is Generation.UNIFIED_V1 and profile.agent_type is AgentType.CONVERSATIONAL


def _newest(turns: Remembered, limit: int | None) -> Remembered:
    """Return the turns that the newest `limit` messages are of; all of them for None."""
    count = 0
    for index in reversed(range(len(turns))):
        if limit is not None and count >= limit:
            return turns[index + 1 :]
        count += sum(1 for text in turns[index] if text)
    return turns


def _limit(profile: AgentProfile, limit: int) -> int | None:
    """Return how many turns the agent recalls, or messages (`_counts_messages`); None for no limit.

    A unified agent (V1) recalls all with a limit of 0 (docs/internals/facts.md, "What memory keeps from turn to turn").
    """
    return None if limit == 0 and profile.generation is Generation.UNIFIED_V1 else limit

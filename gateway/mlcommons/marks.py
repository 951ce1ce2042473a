"""Parameters of an agent with which a registration says what the gateway does for it.

They are in the agent's document, so that every gateway reads them. Templates don't use them, so they never reach the
LLM. Names that start with ``gw_`` are the gateway's own; a request that sends one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MEMORY_MARK = "gw_memory"
GATEWAY_SESSIONS = "sessions"
"""The value of `MEMORY_MARK`: the gateway keeps the agent's sessions."""

OUTPUT_MARK = "gw_output"
UNIFIED = "unified"
"""The value of `OUTPUT_MARK`: the gateway answers in the unified form."""

MARKS = frozenset({MEMORY_MARK, OUTPUT_MARK})


def has_gateway_memory(parameters: Mapping[str, Any]) -> bool:
    """Return True if the gateway keeps the sessions of the agent with these parameters."""
    return parameters.get(MEMORY_MARK) == GATEWAY_SESSIONS


def has_unified_output(parameters: Mapping[str, Any]) -> bool:
    """Return True if the gateway answers for the agent with these parameters in the unified form."""
    return parameters.get(OUTPUT_MARK) == UNIFIED

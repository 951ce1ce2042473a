"""What the gateway does for an agent that the cluster can't have as requested: keep its sessions, convert its answers.

A mark in the agent's parameters says so (`gateway.mlcommons.marks`). Pure.
"""

from __future__ import annotations

from gateway.mlcommons.marks import GATEWAY_SESSIONS, MEMORY_MARK, OUTPUT_MARK, UNIFIED
from gateway.register.specs import Registration
from gateway.register.target import CONVERSATION_INDEX, V2, Target


def keeps_sessions(registration: Registration, target: Target) -> bool:
    """Return True for an `agentic_memory` that the cluster does not have, and for a V2 agent that it can't have.

    A V2 agent that asks for a `conversation_index` gets it.
    """
    asked = registration.memory_type
    if not target.keeps_sessions or asked == CONVERSATION_INDEX:
        return False
    return answers_unified(registration, target) or (bool(asked) and not target.has_memory(asked))


def answers_unified(registration: Registration, target: Target) -> bool:
    """Return True for a V2 agent on a cluster that has none."""
    return registration.type == V2 and not target.has_type(V2)


def marks(registration: Registration, target: Target) -> dict[str, str]:
    """Return the agent's parameters that say what the gateway does for it."""
    found: dict[str, str] = {}
    if keeps_sessions(registration, target):
        found[MEMORY_MARK] = GATEWAY_SESSIONS
    if answers_unified(registration, target):
        found[OUTPUT_MARK] = UNIFIED
    return found

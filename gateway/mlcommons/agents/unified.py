"""Unified agents of the first generation (V1, 3.5 and later): they write the user's turn before they run."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.mlcommons.agents.base import AgentBehaviour
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.providers import registry


def with_user_turn(profile: AgentProfile, behaviour: AgentBehaviour, params: Mapping[str, str]) -> Mapping[str, str]:
    """Return the request's parameters with the user's turn as `body`, in place of the request's own (body_override).

    Any agent but a unified V1 agent runs with `params` unchanged.
    """
    if profile.generation is not Generation.UNIFIED_V1:
        return params
    known = ((provider.name, provider.cluster) for provider in registry.providers())
    turn = next((support.user_turn for name, support in known if support and profile.provider.startswith(name)), "")
    return {**params, "body": turn.replace("TEXT", behaviour.turn_text(params.get("question", "")))}

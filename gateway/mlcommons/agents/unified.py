"""Unified agents of the first generation (V1, 3.5 and later): they write the user's turn before they run."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.mlcommons.agents.base import AgentBehaviour
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile

# The user's turn that a unified V1 agent makes of a text, by provider (recorded LLM bodies of 3.5 to 3.8).
_TURNS = {
    "bedrock/converse": '{"role":"user","content":[{"text":"TEXT"}]}',
    "openai/v1/chat/completions": '{"role":"user","content":"TEXT"}',
    "gemini/v1beta/generatecontent": '{"role":"user","parts":[{"text":"TEXT"}]}',
}


def with_user_turn(profile: AgentProfile, behaviour: AgentBehaviour, params: Mapping[str, str]) -> Mapping[str, str]:
    """Return the request's parameters with the user's turn as `body`, in place of the request's own (body_override).

    Any agent but a unified V1 agent runs with `params` unchanged.
    """
    if profile.generation is not Generation.UNIFIED_V1:
        return params
    turn = next((turn for start, turn in _TURNS.items() if profile.provider.startswith(start)), "")
    return {**params, "body": turn.replace("TEXT", behaviour.turn_text(params.get("question", "")))}

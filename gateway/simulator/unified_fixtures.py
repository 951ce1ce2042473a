"""The usual unified V1 agents (3.5 and later)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MODELS: Mapping[str, Mapping[str, Any]] = {
    "bedrock": {
        "model_id": "claude-3-7",
        "model_provider": "bedrock/converse",
        "credential": {"access_key": "not-a-secret", "secret_key": "not-a-secret"},
    },
    "openai": {
        "model_id": "gpt-4o",
        "model_provider": "openai/v1/chat/completions",
        "credential": {"openai_api_key": "not-a-secret"},
    },
    "gemini": {
        "model_id": "gemini-2.5-pro",
        "model_provider": "gemini/v1beta/generatecontent",
        "credential": {"gemini_api_key": "not-a-secret"},
    },
}
"""By provider: the ``model`` of a registration."""
_UNIFIED_KINDS = {"v1": "conversational", "v1per": "plan_execute_and_reflect"}


def unified_bodies() -> Iterator[dict[str, Any]]:
    """Yield the bodies of ``POST /agents/_register`` for unified V1 agents (3.5 and later)."""
    for kind, type_ in _UNIFIED_KINDS.items():
        for provider, model in MODELS.items():
            if (kind, provider) != ("v1per", "gemini"):
                yield {
                    "name": f"{kind}-{provider}",
                    "type": type_,
                    "model": {**model, "model_parameters": {"system_prompt": "Be brief."}},
                    "parameters": {"max_iteration": "5"},
                    "memory": {"type": "conversation_index"},
                    "tools": [{"type": "ListIndexTool", "name": "ListIndexTool"}],
                }

"""Unified agents of the second generation (`conversational_v2`, 3.6 and later), which take all of `input`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.mlcommons.agents.base import AgentBehaviour
from gateway.mlcommons.agents.conversational import with_tools
from gateway.mlcommons.agents.flow import selected_tools
from gateway.mlcommons.profile import AgentProfile, overlay
from gateway.mlcommons.runtime_values import RuntimeValues

_DEFAULT_SYSTEM = "You are a helpful assistant"
_MODEL_IGNORED = ("system_prompt", "max_iteration")
"""Members of `model_parameters` that have no effect (docs/internals/facts.md, "conversational_v2")."""


class ConversationalV2(AgentBehaviour):
    """`conversational_v2`: the messages are the parameter `body`, which `gateway.mlcommons.v2_messages` renders."""

    def calls_functions(self, profile: AgentProfile, params: Mapping[str, str]) -> bool:
        """Return True: it always uses the LLM's own function calling."""
        return True

    def call_values(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
        """Return the merged parameters: the request's over the agent's over the model's, with `body` inserted raw."""
        values = with_tools(profile, overlay(profile.parameters, params))
        if not selected_tools(profile, params):
            values["tool_configs"] = ""
        values["no_escape_params"] += ",body"
        values.setdefault("system_prompt", _DEFAULT_SYSTEM)
        own = {name: value for name, value in profile.llm_parameters.items() if name not in _MODEL_IGNORED}
        return overlay(own, values)

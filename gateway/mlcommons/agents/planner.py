"""Planners: `plan_execute_and_reflect`. The first LLM call writes the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gateway.mlcommons.agents.base import AgentBehaviour
from gateway.mlcommons.expansion import expand
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.template import RuntimeValues

_RAW = "tool_configs,_tools"
# Stands for the cluster's own text: only the placeholders in it matter to the proof.
_BUILTIN_PROMPT = "<built-in> ${parameters.planner_prompt} \n${parameters.user_prompt} \n<end>"


class Planner(AgentBehaviour):
    """`plan_execute_and_reflect`: the agent's own parameters over the request's."""

    has_fixed_prompts: ClassVar[bool] = True

    def turn_text(self, question: str) -> str:
        """Return a reference to the prompt, into which the planner puts the question."""
        return "${parameters.prompt}"

    def call_values(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
        """Return the merged parameters, with the question as `user_prompt` inside the planner's prompt."""
        values = {**params, **profile.parameters}
        values.pop("prompt", None)
        values["user_prompt"] = values.get("question", "")
        values.setdefault("system_prompt", "<built-in>")
        values.setdefault("planner_prompt", "<built-in>")
        values["no_escape_params"] = _RAW
        template = values.get("planner_prompt_template", _BUILTIN_PROMPT)
        if env.history is not None:
            values["completed_steps"] = env.history
            template = values.get("planner_with_history_template", f"{_BUILTIN_PROMPT} ${{parameters.completed_steps}}")
        values["prompt"] = expand(template, values)
        return values

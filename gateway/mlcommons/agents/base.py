"""The interface of an agent type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from gateway.mlcommons.expansion import expand
from gateway.mlcommons.profile import AgentProfile, Model, Tool
from gateway.mlcommons.template import RuntimeValues, escape_json

Requirement = Literal["tool", "memory"]


class AgentBehaviour(ABC):
    """What is particular to an agent type. The defaults are those of an agent that calls its `llm` block first.

    runs_tools: the agent runs its tools in order and never its `llm` block.
    has_fixed_prompts: a request can't change the agent's prompt, its system text or `no_escape_params`.
    """

    runs_tools: ClassVar[bool] = False
    has_fixed_prompts: ClassVar[bool] = False

    def lacks(self, profile: AgentProfile, params: Mapping[str, str]) -> tuple[Requirement, ...]:
        """Return what the agent can't run without and does not have (docs/evidence/facts.md, "Agents without tools,
        and registrations at once").

        Raises:
            RenderFailure: the request's `selected_tools` can't be read.
        """
        return ()

    @abstractmethod
    def call_values(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
        """Return the parameters of the first LLM call as the agent passes them to the connector, before escaping.

        Raises:
            RenderFailure: the agent would fail before it calls the LLM.
        """

    def first_llm(self, profile: AgentProfile, params: Mapping[str, str]) -> tuple[Model | None, Tool | None]:
        """Return the model that is called first, and the flow's tool that calls it.

        Raises:
            RenderFailure: the request's `selected_tools` can't be read.
        """
        return profile.llm, None

    def calls_functions(self, profile: AgentProfile, params: Mapping[str, str]) -> bool:
        """Return True if the agent uses the LLM's own function calling (3.0 and later)."""
        return False

    def prompt(self, profile: AgentProfile, params: Mapping[str, str]) -> str | None:
        """Return the prompt that goes through the agent's prompt passes; None where nobody set one."""
        return None

    def turn_text(self, question: str) -> str:
        """Return the text of the user's turn that a unified V1 agent makes of a question.

        It is escaped and substituted once without parameters, so a `$` that escapes a placeholder is removed (3.8.0
        placeholder_trick).
        """
        return expand(escape_json(question), {})

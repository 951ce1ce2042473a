"""The interface of a provider: the wire format of one LLM API.

A third party adds one with a class that implements `Provider` and an entry point in the group
``mlc_gateway.providers`` (see ``docs/internals/extending.md``). Providers are pure: plain values in, plain values out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

from gateway.providers.capabilities import Capabilities, Role
from gateway.providers.connector import ConnectorTemplate
from gateway.providers.conversation import Conversation, prepare
from gateway.providers.tools import Turn
from gateway.providers.values import (
    Claim,
    ClusterSupport,
    ConnectorHints,
    Evidence,
    Findings,
    Inexpressible,
    LlmResponse,
    MappingOptions,
    ProviderRequest,
    ToolCall,
    Usage,
)
from gateway.unified.model import AgentInput, ClientTools, ToolSpec

__all__ = [
    "Capabilities",
    "Claim",
    "ClusterSupport",
    "ConnectorHints",
    "ConnectorTemplate",
    "Conversation",
    "Evidence",
    "Findings",
    "Inexpressible",
    "LlmResponse",
    "MappingOptions",
    "Provider",
    "ProviderRequest",
    "Role",
    "ToolCall",
    "Turn",
    "Usage",
]


class Provider(ABC):
    """One wire format.

    name: ``bedrock/converse`` and the like. messages_field: the body's member that holds the turns.
    content_field: a turn's member that holds its parts. capabilities: what the format can carry.
    connector: the connector that a registration makes, None if agents can't be registered with this provider.
    cluster: how ML Commons itself supports the provider, None if it does not. tools_member: the body's member that
    declares tools; "" if tools can't be declared. needs_declarations: the API requires it beside calls and results.
    """

    name: ClassVar[str]
    messages_field: ClassVar[str]
    content_field: ClassVar[str]
    capabilities: Capabilities
    connector: ClassVar[ConnectorTemplate | None] = None
    cluster: ClassVar[ClusterSupport | None] = None
    tools_member: ClassVar[str] = ""
    needs_declarations: ClassVar[bool] = False

    @final
    def map(self, agent_input: AgentInput, options: MappingOptions) -> ProviderRequest:
        """Write the conversation as this provider's messages.

        Raises:
            Inexpressible: with every block that the provider can't carry.
        """
        conversation = self.prepare(agent_input, options)
        messages = self.write(conversation.turns, conversation.findings)
        notices = tuple(conversation.findings.notices)
        return ProviderRequest(messages, conversation.system, notices, agent_input.tools)

    def prepare(self, agent_input: AgentInput, options: MappingOptions) -> Conversation:
        """Check the conversation and bring it into turns that `write` can write down block by block.

        Raises:
            Inexpressible: with every block that the provider can't carry.
        """
        return prepare(agent_input, options, self.capabilities)

    @abstractmethod
    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Write prepared turns as messages.

        Every block is one that `capabilities` allows where it is, and each tool result follows its call. Report
        what has to be changed with `findings.note`.
        """

    @abstractmethod
    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """Return a text part of a turn of `role`: ``{"text": …}`` or ``{"type": "text", "text": …}``."""

    def role_of(self, turn: Mapping[str, Any]) -> str:
        """Return the standard role of a written turn: system, developer, user, assistant or tool; "" for none."""
        role = turn.get("role")
        return role if isinstance(role, str) else ""

    def is_tool_result(self, part: Any) -> bool:
        """Return True for a part that is a tool's result and must come before all other parts of its turn."""
        return False

    @abstractmethod
    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the body members that carry system text apart from the messages; {} if there are none."""

    def simplest(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message in the spelling that the most servers of this API take; by default the message itself."""
        return message

    @abstractmethod
    def canonical(self, messages: Any) -> Any:
        """Return the same messages in one normal form, so that two spellings the API treats alike compare equal.

        Return anything that is not a list of turns unchanged.
        """

    @abstractmethod
    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim a connector whose URL or template shows this provider's format; None for any other connector.

        Claim by the URL wherever it identifies the API. Claim by the template only for what no other API has, and not
        where the URL is another API's. The registry compares names (`model_provider`, `llm_interface`) itself.
        """

    def read_response(self, response: Any) -> LlmResponse | None:
        """Read text, tool calls and usage from the API's response; None if it is not in this provider's format."""
        return None

    def continues_assistant(self, url: str, body: Mapping[str, Any]) -> bool:
        """Return True if the model that gets `body` at `url` is known to continue an assistant turn.

        Asked only where `capabilities.assistant_last` is ``prefill`` and the operator did not allow it for all models.
        """
        return False

    def called_tools(self, messages: Sequence[Any]) -> list[str]:
        """Return the names of the tools that are called in `messages`, each once. Asked if it `needs_declarations`."""
        return []

    def declare(self, tools: Sequence[ToolSpec], choice: ClientTools | None) -> dict[str, Any]:
        """Return the body members that declare `tools`; with a `choice`, also which of them the LLM must call, if any.

        Asked only where there is a `tools_member`, which is one of them.
        """
        return {}

    def fields(self, request: ProviderRequest) -> dict[str, Any]:
        """Return the body members of `request`: messages (or contents) and the system text."""
        return {**self.system_fields(request.system), self.messages_field: request.messages}

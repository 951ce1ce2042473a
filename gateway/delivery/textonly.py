"""The provider of agents whose LLM's format is unknown. Text can still be sent as the agent's question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.errors import Problem
from gateway.notices import Notice
from gateway.providers.base import ConnectorHints, Inexpressible, MappingOptions, Provider, ProviderRequest
from gateway.unified.model import AgentInput, ConverseBlock, Media, Message, Text
from gateway.unified.roles import meaning_of

_HELP = "name the agent's provider in a rule of the gateway's settings: `agents.rules[].provider`"


class TextOnly(Provider):
    """Turns of text only. Strategies that need the place of the messages find none."""

    name = ""
    messages_field = ""
    content_field = "content"

    def map(self, agent_input: AgentInput, options: MappingOptions) -> ProviderRequest:
        """Map the texts of the conversation, turn by turn.

        Raises:
            Inexpressible: with every block that is not text (code PROVIDER_UNKNOWN).
        """
        problems = [
            Problem(
                block.at,
                "no provider is known for this agent, so only text can be delivered to it",
                expected="text",
                received=block.kind if isinstance(block, Media | ConverseBlock) else type(block).__name__.lower(),
                code="PROVIDER_UNKNOWN",
                help=_HELP,
            )
            for message in agent_input.messages
            for block in message.content
            if not isinstance(block, Text)
        ]
        if problems:
            raise Inexpressible(problems)
        notices: list[Notice] = []
        for message in agent_input.messages:
            notices += meaning_of(message, options.roles).notices(message.at)
            blank = (block for block in message.content if isinstance(block, Text) and not block.text.strip())
            notices += (Notice("BLANK_TEXT_DROPPED", "The block holds nothing but white space", b.at) for b in blank)
        return ProviderRequest([self._turn(message, options) for message in agent_input.messages], [], tuple(notices))

    def _turn(self, message: Message, options: MappingOptions) -> dict[str, Any]:
        role = meaning_of(message, options.roles)
        texts = [block.text for block in message.content if isinstance(block, Text) and block.text.strip()]
        if role.prefix and texts:
            texts[0] = f"{role.prefix} {texts[0]}"
        return {"role": role.standard, "content": [self.text_part(text) for text in texts]}

    def text_part(self, text: str) -> dict[str, Any]:
        """Return a text part."""
        return {"text": text}

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return {}: no place for system text is known."""
        return {}

    def canonical(self, messages: Any) -> Any:
        """Return `messages` unchanged: their format is unknown."""
        return messages

    def claims(self, connector: ConnectorHints) -> None:
        """Claim no connector."""

    def fields(self, request: ProviderRequest) -> dict[str, Any]:
        """Return {}: no body members are known."""
        return {}

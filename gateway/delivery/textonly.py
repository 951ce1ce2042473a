"""The provider of agents whose LLM's format is unknown. Text can still be sent as the agent's question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from gateway.delivery.tool_slot import tools_as_text
from gateway.errors import Problem
from gateway.mlcommons.profile import Tool
from gateway.notices import Notice
from gateway.providers.base import (
    Capabilities,
    ConnectorHints,
    Conversation,
    Findings,
    Inexpressible,
    MappingOptions,
    Provider,
    ProviderRequest,
    Role,
    Turn,
)
from gateway.unified.model import AgentInput, ConverseBlock, Media, Message, Text
from gateway.unified.roles import meaning_of

NAME_PROVIDER = "name the agent's provider in a rule of the gateway's settings: `agents.rules[].provider`"
NAME_OR_TEXT = f"{NAME_PROVIDER}, if its LLM takes the format of one, or send text only"
COMPLETES_TEXT = "send text only, since the agent's LLM completes a text, or use an agent whose LLM takes messages"


def use_another_agent(unread: Tool) -> str:
    """Return what to do where the tool `unread` of a flow calls an LLM that is not read."""
    ran = {**unread.parameters, **unread.config}.get("agent_id", "")
    if ran:
        return f"send this input to the agent {ran}, which the flow's tool {unread.key} runs"
    return f"use an agent without the tool {unread.key}, whose LLM the gateway does not read"


class TextOnly(Provider):
    """Turns of text only. Strategies that need the place of the messages find none.

    help: what to do to send other blocks.
    """

    name = ""
    messages_field = ""
    content_field = "content"
    capabilities = Capabilities("this agent's provider", {}, {})

    def __init__(self, help: str = NAME_OR_TEXT) -> None:
        self._help = help

    def prepare(self, agent_input: AgentInput, options: MappingOptions) -> Conversation:
        """Take the texts of the conversation, turn by turn; roles stay as they are. Tool calls and results become text.

        Raises:
            Inexpressible: with every block that is not text (code PROVIDER_UNKNOWN).
        """
        notices: list[Notice] = []
        if written := tools_as_text(agent_input, options.roles):
            agent_input, notice = written
            notices.append(notice)
        problems = [
            Problem(
                block.at,
                "no provider is known for this agent, so only text can be delivered to it",
                expected="text",
                received=block.kind if isinstance(block, Media | ConverseBlock) else type(block).__name__.lower(),
                code="PROVIDER_UNKNOWN",
                help=self._help,
            )
            for message in agent_input.messages
            for block in message.content
            if not isinstance(block, Text)
        ]
        if problems:
            raise Inexpressible(problems)
        for message in agent_input.messages:
            notices += meaning_of(message, options.roles).notices(message.at)
            blank = (block for block in message.content if isinstance(block, Text) and not block.text.strip())
            notices += (Notice("BLANK_TEXT_DROPPED", "The block holds nothing but white space", b.at) for b in blank)
        turns = [turn for message in agent_input.messages if (turn := self._turn(message, options)).content]
        return Conversation([], turns, Findings(notices=notices))

    def _turn(self, message: Message, options: MappingOptions) -> Turn:
        role = meaning_of(message, options.roles)
        texts = [block for block in message.content if isinstance(block, Text) and block.text.strip()]
        if role.prefix and texts:
            texts[0] = replace(texts[0], text=f"{role.prefix} {texts[0].text}")
        return Turn(cast(Role, role.standard), tuple(texts), message.at)  # also `tool`, as nothing is mapped

    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Write one turn for each message."""
        return [
            {"role": turn.role, "content": [self.text_part(b.text) for b in turn.content if isinstance(b, Text)]}
            for turn in turns
        ]

    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """A text by itself."""
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
